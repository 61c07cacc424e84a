"""The piece of memory that a manager shares with one worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue.daemon.protocol.worker_page import REASONS, ProgressEntry, WorkerPage
from taskqueue.daemon.runtime import child_process
from taskqueue.execution.job_context import shortened


@pytest.fixture
def page() -> Iterator[WorkerPage]:
    page = WorkerPage()
    yield page
    page.close()


def test_an_empty_slate_asks_for_nothing(page: WorkerPage) -> None:
    assert not page.has_stop_request
    assert not page.is_node_stopping
    assert page.stop_reason_of(0) == ""
    assert page.stop_reason_of(1) == ""
    assert page.read_progress() is None


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_for_one_run_only(page: WorkerPage, reason: str) -> None:
    page.request_stop(7, reason)

    assert page.stop_reason_of(7) == reason
    assert page.stop_reason_of(8) == ""
    assert page.has_stop_request


def test_a_message_that_is_no_unicode_is_written_out() -> None:
    assert shortened("caf\udce9.txt") == "caf\\udce9.txt"


def test_what_a_dead_process_wrote_can_be_read(page: WorkerPage) -> None:
    progress = ProgressEntry(number=3, progress=40.5, message=shortened("ü" * 1000), at=1234.5)

    def write() -> int:
        page.write_progress(progress)
        return 0

    child = child_process.fork(write, name="writer")
    child.reap()
    child.close()

    assert page.read_progress() == progress
    assert len(progress.message) == 500


def test_the_longest_message_fits_whatever_its_characters(page: WorkerPage) -> None:
    progress = ProgressEntry(number=2**53, progress=100.0, message=shortened("\U0001f600" * 1000), at=1e10)
    page.write_progress(progress)
    page.request_stop(1, "cancel")

    assert page.read_progress() == progress


def test_the_latest_place_is_read_and_only_for_its_run(page: WorkerPage) -> None:
    assert page.read_position(0) is None
    assert page.read_position(1) is None
    for place in range(5):
        assert page.write_position(1, f"ü{place}")
    assert page.read_position(1) == "ü4"

    page.write_position(2, "[]")
    assert (page.read_position(1), page.read_position(2)) == (None, "[]")


def test_a_place_that_was_written_halfway_leaves_the_one_before(page: WorkerPage) -> None:
    page.write_position(1, "before")
    page.write_position(1, "half")
    whole = bytes(page._page[:])  # a death between two bytes cannot be had otherwise
    at = whole.index(b"half")
    page._page[at : at + 2] = b"??"

    assert page.read_position(1) == "before"


def test_a_place_without_room_is_refused(page: WorkerPage) -> None:
    assert page.write_position(1, "x" * 4000)
    assert not page.write_position(1, "x" * 4096)
    assert page.read_position(1) == "x" * 4000


def test_a_place_is_forgotten_for_a_later_one_that_was_sent(page: WorkerPage) -> None:
    page.write_position(1, "small")

    assert page.write_position(1, "")
    assert page.read_position(1) is None
    page.write_position(1, "small again")
    assert page.read_position(1) == "small again"
