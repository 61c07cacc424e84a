"""The settings of Sphinx for the site, which is made of the front page and ``docs`` as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import diagrams  # noqa: E402
import navigation  # noqa: E402
import reference  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "taskqueue"
copyright = "the authors of taskqueue"
html_title = "taskqueue"
extensions = ["myst_parser", "sphinx.ext.autodoc"]

root_doc = "README"
include_patterns = ["README.md", "SECURITY.md", "docs/**"]
exclude_patterns = [".*", "benchmarks", "build", "dist", "systemd", "taskqueue", "tests"]

myst_heading_anchors = 4
smartquotes = False  # '--option' is not to become a dash

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "monokai"

CHANGES: tuple[Callable[[str, str], str], ...] = (navigation.with_contents, reference.with_docstrings, diagrams.drawn)
"""What the site shows in another way than a reader of the Markdown sees it: each takes a page's name and its text."""


def change(_app: Sphinx, page: str, source: list[str]) -> None:
    """Change the text of a page before it is read."""
    for each in CHANGES:
        source[0] = each(page, source[0])


def setup(app: Sphinx) -> None:
    """Connect what changes the pages."""
    app.connect("source-read", change)
