"""Each story of the pages on incidents goes as its page tells it: its commands, and their answers."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.docs import pages

pytestmark = pytest.mark.long

PAGES = sorted((Path(__file__).parents[2] / "docs/how-to/operations").glob("incidents-*.md"))


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


@pytest.mark.parametrize("title", ["A failing deploy", "A poisoned job", "A dead leader", "A runaway backlog"])
def test_the_story_goes_as_the_page_tells_it(title: str, reader: pages.Reader) -> None:
    reader.follow(list(pages.blocks_of(section(title))))


def test_a_full_disk_loses_nothing_and_its_node_goes_on_as_the_page_tells(reader: pages.Reader) -> None:
    before, rest = section("A full disk").split("<!-- the disk fills -->")
    full, after = rest.split("<!-- there is room -->")
    reader.follow(list(pages.blocks_of(before)))
    [node] = reader.started
    limit_files(node.pid, 0)
    reader.prelude = "ulimit -S -f 0\n"
    reader.follow(list(pages.blocks_of(full)))
    limit_files(node.pid, resource.RLIM_INFINITY)
    reader.prelude = ""
    reader.follow(list(pages.blocks_of(after)))


def limit_files(pid: int, size: int) -> None:
    """Let the node and all that it has started write no file beyond this size: it is as if the disk were full."""
    node = psutil.Process(pid)
    for member in (node, *node.children(recursive=True)):
        member.rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def section(title: str) -> str:
    """Return a section of these pages."""
    sections = (section for page in PAGES for section in page.read_text().split("\n## "))
    [titled] = [section for section in sections if section.startswith(f"{title}\n")]
    return titled
