"""The site of the documentation: its contents, its entries of the API and its diagrams. ``bin/docs`` builds it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SITE = CHECKOUT / "docs/site"
PAGES = [CHECKOUT / "SECURITY.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]

parts = runpy.run_path(str(SITE / "navigation.py"))["parts"]
with_docstrings = runpy.run_path(str(SITE / "reference.py"))["with_docstrings"]
graph = runpy.run_path(str(SITE / "diagrams.py"))["graph"]


def test_the_contents_have_each_page_once() -> None:
    named = ["docs/README", *(page for part in parts() for page in part.pages)]

    assert sorted(named) == sorted(str(page.relative_to(CHECKOUT).with_suffix("")) for page in PAGES)


def test_the_contents_have_the_headings_of_the_page_that_lists_all_pages() -> None:
    headings = [part.heading for part in parts()]

    assert headings[:3] == ["Learn", "Do", "Write jobs"]
    assert headings[-1] == "The ancestors"


@pytest.mark.parametrize("name", ["api", "job-api", "asyncio-api"])
def test_the_site_has_an_entry_for_each_class_and_member_of_a_page(name: str) -> None:
    page = (CHECKOUT / f"docs/reference/{name}.md").read_text()
    site = with_docstrings(name, page)

    classes = re.findall(r"^## `(\w+)", page, re.MULTILINE)
    assert re.findall(r"^\.\. auto(?:class|function):: (\w+)$", site, re.MULTILINE) == classes
    members = [name for line in re.findall(r":members: (.*)", site) for name in line.split(", ")]
    assert members == re.findall(r"^\| `(\w+)[(`]", page, re.MULTILINE)


def test_a_diagram_becomes_a_graph() -> None:
    drawn = graph("flowchart LR\n    client[your application] -- add_job --> store[(store)]\n    store --> [*]\n")

    assert '"client" [label="your application"]' in drawn
    assert '"store" [label="store", shape="cylinder", style=""]' in drawn
    assert '"client" -> "store" [label="add_job"]' in drawn
    assert '"end of [*]" [shape="point"' in drawn


def test_a_line_of_a_diagram_that_is_not_understood_is_named() -> None:
    with pytest.raises(ValueError, match="no arrow of a diagram: 'note over node'"):
        graph("stateDiagram-v2\n    note over node\n")


def test_each_arrow_of_the_pages_is_in_its_graph() -> None:
    block = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    diagrams = [diagram for page in PAGES for diagram in block.findall(page.read_text())]

    assert diagrams
    for diagram in diagrams:
        assert graph(diagram).count(" -> ") == diagram.count("-->")
