"""The version and the name of the distribution are said in one place, and messages name extras that are there."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from taskqueue.model.version import VERSION

CHECKOUT = Path(__file__).parents[2]
EXTRA = re.compile(r"\btaskqueue(?:-jobs)?\[[a-z,]+\]")


def configuration() -> configparser.ConfigParser:
    """Return what ``setup.cfg`` says."""
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    return parser


def test_the_front_page_and_the_changelog_have_the_version() -> None:
    assert configuration()["metadata"]["version"] == "attr: taskqueue.model.version.VERSION"
    assert f"Version {VERSION}, " in (CHECKOUT / "README.md").read_text()
    assert f"\n## {VERSION}" in (CHECKOUT / "docs/changelog.md").read_text()


def test_extras_are_named_with_the_distribution_and_are_there() -> None:
    parser = configuration()
    known = {f"{parser['metadata']['name']}[{extra}]" for extra in parser["options.extras_require"]}
    paths = (path for folder in ("benchmarks", "docs", "taskqueue") for path in (CHECKOUT / folder).rglob("*"))
    pages = [path for path in paths if path.suffix in (".md", ".py")]
    named = {found for path in pages for found in EXTRA.findall(path.read_text())}

    assert named
    assert named <= known
