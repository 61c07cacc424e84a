"""Many threads and processes on one SQLite file: nothing is claimed twice, no lock is lost in a fork."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.record import Holder, OnCrash, Options, Status
from taskqueue.store import Note, Store
from taskqueue.store.open import open_store
from tests.store.children import Child, in_child
from tests.store.records import NOON, WEB_1, a_record, all_kept, claim, running, settlement


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{path}?synchronous=normal")) as opened:
        yield opened


def claim_all(store: Store, holder: Holder, size: int) -> Iterator[JobId]:
    """Claim and settle until nothing is left, and return what this holder has settled."""
    while runs := claim(store, size, holder=holder).records:
        yield from store.settle([settlement(run) for run in runs], NOON)


@pytest.mark.parametrize(("processes", "jobs"), [(4, 600), pytest.param(8, 10_000, marks=pytest.mark.long)])
def test_processes_claim_all_jobs_and_none_twice(
    path: Path, store: Store, tmp_path: Path, processes: int, jobs: int
) -> None:
    records = [a_record(queue=f"q{number % 3}") for number in range(jobs)]
    store.add(records)

    def work(number: int) -> None:
        holder = Holder(seat=f"node-{number}", incarnation=str(number))
        with closing(open_store(f"sqlite://{path}?synchronous=normal&timeout=30")) as mine:
            settled = b"".join(id.binary for id in claim_all(mine, holder, 4 + 4 * number))
        (tmp_path / f"settled-{number}").write_bytes(settled)

    for child in [Child(lambda number=number: work(number)) for number in range(processes)]:  # type: ignore[misc]
        assert child.wait() == 0

    told = b"".join((tmp_path / f"settled-{number}").read_bytes() for number in range(processes))
    counts = Counter(ObjectId(told[at : at + 12]) for at in range(0, len(told), 12))
    assert counts == Counter(record.id for record in records)
    assert sum(store.tally().values()) == jobs
    assert {status for _, status in store.tally()} == {Status.DONE}
    assert {record.claims for record in all_kept(store)} == {1}


def test_threads_share_a_store(store: Store) -> None:
    settled: list[JobId] = []
    added: list[JobId] = []

    def work(number: int) -> None:
        holder = Holder(seat="threads", incarnation=str(number))
        for _ in range(20):
            records = [a_record(), a_record()]
            store.add(records)
            added.extend(record.id for record in records)
            runs = claim(store, 3, holder=holder).records
            settled.extend(store.settle([settlement(run) for run in runs], NOON))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled.extend(claim_all(store, WEB_1, 50))

    assert Counter(settled) == Counter(added)


def test_threads_open_and_close_stores_of_one_file_at_the_same_time(path: Path) -> None:
    def open_and_close(_: int) -> None:
        with closing(open_store(f"sqlite://{path}")) as own:
            own.add([a_record()])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(open_and_close, range(60)))
    finally:
        sys.setswitchinterval(before)

    with closing(open_store(f"sqlite://{path}")) as own:
        assert len(all_kept(own)) == 60


def locks(path: Path, pid: int) -> list[str]:
    """Return the kinds of lock that a process holds on a file, as the kernel tells them."""
    inode = str(path.stat().st_ino)
    rows = (line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines())
    return [row[3] for row in rows if row[4] == str(pid) and row[5].rpartition(":")[2] == inode]


def test_a_forked_child_opens_the_file_with_locks_of_its_own(path: Path, store: Store) -> None:
    store.add([a_record()])

    def use_it() -> None:
        assert len(all_kept(store)) == 1
        store.add([a_record()])
        assert locks(path, os.getpid()) == ["READ"]  # without it another process could remove the journal

    in_child(use_it)

    store.add([a_record()])
    assert locks(path, os.getpid()) == ["READ"]
    assert len(all_kept(store)) == 3


def test_children_that_leave_take_nothing_from_their_parent(path: Path, store: Store) -> None:
    for number in range(5):
        store.add([a_record()])
        in_child(store.close if number % 2 else lambda: claim(store))

    with closing(open_store(str(path))) as other:
        assert len(all_kept(other)) == 5
    assert len(all_kept(store)) == 5


def test_a_fork_waits_for_the_transactions_of_other_threads(store: Store) -> None:
    done = threading.Event()

    def keep_adding() -> None:
        while not done.is_set():
            store.add([a_record()])

    thread = threading.Thread(target=keep_adding)
    thread.start()
    for _ in range(20):
        in_child(lambda: store.add([a_record()]))
    done.set()
    thread.join()

    store.add([a_record()])
    assert len(all_kept(store)) > 20


def test_the_start_of_an_at_most_once_job_reaches_the_disk_before_it_is_told(tmp_path: Path) -> None:
    with closing(open_store(f"{tmp_path}/full.db")) as store:
        run = running(store, a_record(options=Options(on_crash=OnCrash.FAIL)))

        store.note(WEB_1, {run.id: Note(started_at=NOON)})

        [noted] = all_kept(store)
        assert noted.started_at == NOON


def test_without_sync_the_start_of_an_at_most_once_job_is_noted_too(store: Store) -> None:
    run = running(store, a_record(options=Options(on_crash=OnCrash.FAIL)))

    store.note(WEB_1, {run.id: Note(started_at=NOON)})

    [noted] = all_kept(store)
    assert noted.started_at == NOON
