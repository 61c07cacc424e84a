"""The piece of memory that a manager shares with one worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue.daemon import process
from taskqueue.daemon.slate import REASONS, Mark, Slate, shortened


@pytest.fixture
def slate() -> Iterator[Slate]:
    slate = Slate()
    yield slate
    slate.close()


def test_an_empty_slate_asks_for_nothing(slate: Slate) -> None:
    assert not slate.is_written
    assert not slate.stopping
    assert slate.reason_for(0) == ""
    assert slate.reason_for(1) == ""
    assert slate.marked() is None


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_for_one_run_only(slate: Slate, reason: str) -> None:
    slate.stop(7, reason)

    assert slate.reason_for(7) == reason
    assert slate.reason_for(8) == ""
    assert slate.is_written


def test_a_message_that_is_no_unicode_is_written_out() -> None:
    assert shortened("caf\udce9.txt") == "caf\\udce9.txt"


def test_what_a_dead_process_wrote_can_be_read(slate: Slate) -> None:
    mark = Mark(number=3, progress=40.5, message=shortened("ü" * 1000), at=1234.5)

    def write() -> int:
        slate.mark(mark)
        return 0

    child = process.fork(write, name="writer")
    child.reap()
    child.close()

    assert slate.marked() == mark
    assert len(mark.message) == 500


def test_the_longest_message_fits_whatever_its_characters(slate: Slate) -> None:
    mark = Mark(number=2**53, progress=100.0, message=shortened("\U0001f600" * 1000), at=1e10)
    slate.mark(mark)
    slate.stop(1, "cancel")

    assert slate.marked() == mark
