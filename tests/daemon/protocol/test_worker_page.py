"""The piece of memory that a manager shares with one worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue.daemon.protocol.worker_page import REASONS, Mark, WorkerPage
from taskqueue.daemon.runtime import child_process
from taskqueue.execution.job_context import shortened


@pytest.fixture
def slate() -> Iterator[WorkerPage]:
    slate = WorkerPage()
    yield slate
    slate.close()


def test_an_empty_slate_asks_for_nothing(slate: WorkerPage) -> None:
    assert not slate.is_written
    assert not slate.stopping
    assert slate.reason_for(0) == ""
    assert slate.reason_for(1) == ""
    assert slate.marked() is None


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_for_one_run_only(slate: WorkerPage, reason: str) -> None:
    slate.stop(7, reason)

    assert slate.reason_for(7) == reason
    assert slate.reason_for(8) == ""
    assert slate.is_written


def test_a_message_that_is_no_unicode_is_written_out() -> None:
    assert shortened("caf\udce9.txt") == "caf\\udce9.txt"


def test_what_a_dead_process_wrote_can_be_read(slate: WorkerPage) -> None:
    mark = Mark(number=3, progress=40.5, message=shortened("ü" * 1000), at=1234.5)

    def write() -> int:
        slate.mark(mark)
        return 0

    child = child_process.fork(write, name="writer")
    child.reap()
    child.close()

    assert slate.marked() == mark
    assert len(mark.message) == 500


def test_the_longest_message_fits_whatever_its_characters(slate: WorkerPage) -> None:
    mark = Mark(number=2**53, progress=100.0, message=shortened("\U0001f600" * 1000), at=1e10)
    slate.mark(mark)
    slate.stop(1, "cancel")

    assert slate.marked() == mark


def test_the_latest_place_is_read_and_only_for_its_run(slate: WorkerPage) -> None:
    assert slate.placed(0) is None
    assert slate.placed(1) is None
    for place in range(5):
        assert slate.place(1, f"ü{place}")
    assert slate.placed(1) == "ü4"

    slate.place(2, "[]")
    assert (slate.placed(1), slate.placed(2)) == (None, "[]")


def test_a_place_that_was_written_halfway_leaves_the_one_before(slate: WorkerPage) -> None:
    slate.place(1, "before")
    slate.place(1, "half")
    whole = bytes(slate._page[:])  # a death between two bytes cannot be had otherwise
    at = whole.index(b"half")
    slate._page[at : at + 2] = b"??"

    assert slate.placed(1) == "before"


def test_a_place_without_room_is_refused(slate: WorkerPage) -> None:
    assert slate.place(1, "x" * 4000)
    assert not slate.place(1, "x" * 4096)
    assert slate.placed(1) == "x" * 4000


def test_a_place_is_forgotten_for_a_later_one_that_was_sent(slate: WorkerPage) -> None:
    slate.place(1, "small")

    assert slate.place(1, "")
    assert slate.placed(1) is None
    slate.place(1, "small again")
    assert slate.placed(1) == "small again"
