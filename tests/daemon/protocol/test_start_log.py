"""What outlives workers and their manager: which runs have begun."""

from __future__ import annotations

from taskqueue.daemon.protocol.start_log import Entry, StartLog
from taskqueue.daemon.runtime import child_process

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
    first, second = start_log.acquire(), start_log.acquire()

    written_by_a_child(first, [(IDS[0], 1), (IDS[1], 7)])
    written_by_a_child(second, [(IDS[2], 1)])

    assert first.read() == ((IDS[1], 7), 1_763_800_001.25)
    assert {key: at for key, at in start_log.start_times().items() if key[1]} == {
        (IDS[1], 7): 1_763_800_001.25,
        (IDS[2], 1): 1_763_800_000.25,
    }


def test_an_entry_that_was_never_written_is_of_no_claim() -> None:
    start_log = StartLog()

    (id, claims), _ = start_log.acquire().read()

    assert (id.strip("\0"), claims) == ("", 0)


def test_what_a_worker_has_left_behind_stays_until_another_one_begins() -> None:
    start_log = StartLog(entries=1)
    entry = start_log.acquire()
    entry.write((IDS[0], 1), 1.0)
    start_log.release(entry)
    assert start_log.start_times() == {(IDS[0], 1): 1.0}

    start_log.acquire().write((IDS[1], 2), 2.0)

    assert start_log.start_times() == {(IDS[1], 2): 2.0}


def test_one_worker_more_than_there_are_entries_has_one_that_its_manager_alone_reads() -> None:
    start_log = StartLog(entries=1)
    start_log.acquire().write((IDS[0], 1), 1.0)
    extra = start_log.acquire()

    written_by_a_child(extra, [(IDS[1], 1)])
    start_log.release(extra)

    assert extra.read()[0] == (IDS[1], 1)
    assert list(start_log.start_times()) == [(IDS[0], 1)]
