"""Memory that processes share: the start log outlives workers and their manager, a page is of one worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue.daemon.protocol.shared_memory import REASONS, Entry, ProgressEntry, StartLog, WorkerPage
from taskqueue.daemon.runtime import child_process
from taskqueue.execution.job_context import shortened
from taskqueue.model.log_lines import MOST_BYTES

IDS = [f"{number:024x}" for number in range(4)]


def written_by_a_child(entry: Entry, runs: list[tuple[str, int]]) -> None:
    """Have a process write that each of these runs begins, and die."""

    def write() -> int:
        for second, key in enumerate(runs):
            entry.write(key, 1_763_800_000.25 + second)
        return 0

    child = child_process.fork(write, name="writer")
    child.reap()
    child.close()


def test_the_run_that_a_dead_process_began_last_is_read() -> None:
    start_log = StartLog()
    first, second = start_log.acquire(2)

    written_by_a_child(first, [(IDS[0], 1), (IDS[1], 7)])
    written_by_a_child(second, [(IDS[2], 1)])

    assert first.read() == ((IDS[1], 7), 1_763_800_001.25)
    assert {key: at for key, at in start_log.start_times().items() if key[1]} == {
        (IDS[1], 7): 1_763_800_001.25,
        (IDS[2], 1): 1_763_800_000.25,
    }


def test_an_entry_that_was_never_written_is_of_no_claim() -> None:
    start_log = StartLog()

    (id, claims), _ = start_log.acquire(1)[0].read()

    assert (id.strip("\0"), claims) == ("", 0)


def test_what_a_worker_has_left_behind_stays_until_another_one_begins() -> None:
    start_log = StartLog(entries=1)
    [entry] = start_log.acquire(1)
    entry.write((IDS[0], 1), 1.0)
    start_log.release(entry)
    assert start_log.start_times() == {(IDS[0], 1): 1.0}

    start_log.acquire(1)[0].write((IDS[1], 2), 2.0)

    assert start_log.start_times() == {(IDS[1], 2): 2.0}


def test_one_worker_more_than_there_are_entries_has_one_that_its_manager_alone_reads() -> None:
    start_log = StartLog(entries=1)
    start_log.acquire(1)[0].write((IDS[0], 1), 1.0)
    [extra] = start_log.acquire(1)

    written_by_a_child(extra, [(IDS[1], 1)])
    start_log.release(extra)

    assert extra.read()[0] == (IDS[1], 1)
    assert list(start_log.start_times()) == [(IDS[0], 1)]


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


def test_the_last_lines_of_a_run_are_read_whatever_was_written_before(page: WorkerPage) -> None:
    for number in range(1, 4000):
        page.write_line(b"[1,%d]\n" % number)
    before = page.logged
    for number in range(1, 10):
        page.write_line(b"[2,%d]\n" % number)

    assert page.read_lines(2) == page.read_lines(2, before) == [b"[2,%d]\n" % number for number in range(1, 10)]
    assert page.read_lines(1)[-1] == b"[1,3999]\n"
    assert page.read_lines(3) == []


def test_lines_go_over_the_end_of_the_ring_in_whole(page: WorkerPage) -> None:
    line = b"[1," + b"x" * 20_000 + b"]\n"
    for _ in range(50):
        page.write_line(line)
        assert set(page.read_lines(1)) == {line}
    assert len(page.read_lines(1)) == MOST_BYTES // len(line)
