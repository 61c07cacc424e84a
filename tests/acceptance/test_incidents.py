"""Each story of the page on incidents goes as the page tells it: its commands, and their answers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import pages

PAGE = Path(__file__).parents[2] / "docs/how-to/incidents.md"


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pages.Reader]:
    """Return an operator on a host of their own, whose nodes end with the test."""
    with tempfile.TemporaryDirectory(prefix="tq-") as nodes:
        monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", nodes)
        reader = pages.Reader(tmp_path, {})
        try:
            yield reader
        finally:
            reader.close()


@pytest.mark.parametrize("title", ["A failing deploy", "A poisoned job", "A dead leader"])
def test_the_story_goes_as_the_page_tells_it(title: str, reader: pages.Reader) -> None:
    reader.follow(story(title))


def story(title: str) -> list[pages.Block]:
    """Return the blocks of a section of the page."""
    [told] = [section for section in PAGE.read_text().split("\n## ") if section.startswith(f"{title}\n")]
    return list(pages.blocks_of(told))
