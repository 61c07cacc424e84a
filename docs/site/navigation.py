"""The contents beside each page of the site: the pages that ``docs/README.md`` links, by its headings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

DOCS = Path(__file__).parents[1]
FRONT = "README"
LINK = re.compile(r"\]\(([^)#]+\.md)[^)]*\)")


class Part(NamedTuple):
    """A heading of the contents, and its pages as Sphinx names them, in order."""

    heading: str
    pages: tuple[str, ...]


def parts() -> Iterator[Part]:
    """Yield the parts of the contents. A page that is linked twice is in the first part that links it."""
    named = {FRONT}
    for section in re.split(r"^##+ ", (DOCS / "README.md").read_text("utf-8"), flags=re.MULTILINE):
        heading, _, text = section.partition("\n")
        pages = tuple(dict.fromkeys(page for page in map(_name, LINK.findall(text)) if page not in named))
        named.update(pages)
        if pages:
            yield Part(heading.lstrip("# "), pages)


def with_contents(page: str, text: str) -> str:
    """Return the front page with the contents, which Sphinx shows beside every page; another page as it is."""
    if page != FRONT:
        return text
    trees = (_tree(["docs/README"]), *(_tree(part.pages, f":caption: {part.heading}") for part in parts()))
    return "\n\n".join([text, *trees])


def _name(link: str) -> str:
    """Return what Sphinx calls the page of a link in ``docs/README.md``."""
    parent = [*PurePosixPath("docs").parts]
    for step in PurePosixPath(link).with_suffix("").parts:
        parent = parent[:-1] if step == ".." else [*parent, step]
    return "/".join(parent)


def _tree(pages: Sequence[str], *options: str) -> str:
    return "\n".join(["```{toctree}", ":hidden:", *options, "", *pages, "```"])
