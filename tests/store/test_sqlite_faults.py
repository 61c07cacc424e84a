"""Faults below a SQLite store: each error names the file and the way out, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from bson import ObjectId

from taskqueue.errors import StoreReplaced, StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.model.limits import Rate, lane
from taskqueue.model.query import parse
from taskqueue.model.record import Record, Status
from taskqueue.store import Event, Note, Store
from taskqueue.store.open import open_store
from taskqueue.store.sqlite.url import shares_memory
from tests.nodes import LIMIT
from tests.store.children import Child, in_child
from tests.store.records import MINUTE, NOON, WEB_1, a_record, all_kept, claim, ids, kept, now_cursor, settlement


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{path}?timeout=0.2")) as opened:
        yield opened


def add_until_refused(store: Store) -> tuple[list[JobId], StoreUnavailable]:
    """Add jobs until the store refuses one, and return what it has acknowledged until then."""
    acknowledged: list[JobId] = []
    while len(acknowledged) < 10_000:
        record = a_record(data=f'"{"x" * 2000}"')
        try:
            store.add([record])
        except StoreUnavailable as error:
            return acknowledged, error
        acknowledged.append(record.id)
    raise AssertionError("the store never refused a job")


def test_a_full_disk_is_named_and_loses_nothing(path: Path, store: Store) -> None:
    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        acknowledged, error = add_until_refused(store)
        assert len(acknowledged) > 10
        assert str(path) in str(error)
        assert "space" in str(error)
        assert ids(all_kept(store)) == acknowledged

        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.add([a_record()])
        assert len(claim(store, 10_000).records) == len(acknowledged) + 1

    in_child(fill)


def test_a_full_disk_is_named_where_nobody_has_the_store_open(path: Path, store: Store) -> None:
    store.add([a_record()])
    store.close()

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))  # an index is longer
        with pytest.raises(StoreUnavailable, match=r"refused to write more.*space"):
            open_store(str(path))

        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with closing(open_store(str(path))) as opened:
            assert len(all_kept(opened)) == 1

    in_child(fill)


def test_processes_share_memory_on_a_local_disk(tmp_path: Path) -> None:
    assert shares_memory(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_store_in_use_needs_no_more_space_on_a_full_disk(path: Path, store: Store) -> None:
    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        record, kept_notes, refused = a_record(), 0, 0
        store.add([record])
        run = claim(store)
        while kept_notes < 300:
            try:
                store.note(WEB_1, {record.id: Note(state=f'"{kept_notes}"')})
            except StoreUnavailable:
                refused += 1
                store.note(WEB_1, {record.id: Note(state=f'"{kept_notes}"')})
            kept_notes += 1
        assert refused
        assert len(run.records) == 1
        assert kept(store, record.id).state == '"299"'

    in_child(fill)


def test_a_full_database_is_named_and_works_again_when_there_is_space(path: Path, store: Store) -> None:
    raw = store._engine._raw  # type: ignore[attr-defined]
    raw.execute("PRAGMA max_page_count = 100")

    acknowledged, error = add_until_refused(store)

    assert "the disk is full" in str(error)
    assert ids(all_kept(store)) == acknowledged
    raw.execute("PRAGMA max_page_count = 1000000")
    store.add([a_record()])


def test_what_was_acknowledged_survives_the_kill_of_its_writer(path: Path) -> None:
    open_store(str(path)).close()
    reading, writing = os.pipe()

    def write() -> None:
        with closing(open_store(str(path))) as mine:
            while True:
                record = a_record()
                mine.add([record])
                os.write(writing, record.id.binary)

    acknowledged: list[JobId] = []
    for rounds in range(4):
        child = Child(write)
        acknowledged.extend(ObjectId(os.read(reading, 12)) for _ in range(50 * (rounds + 1)))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    os.close(writing)
    while left := os.read(reading, 12):
        acknowledged.append(ObjectId(left))
    os.close(reading)

    with closing(open_store(str(path))) as store:
        assert set(acknowledged) <= set(ids(all_kept(store)))
        assert len(all_kept(store)) <= len(acknowledged) + 4


def test_a_writer_that_holds_the_file_too_long_is_told_of(path: Path, store: Store) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match="locked"):
            store.add([a_record()])
        assert all_kept(store) == []

        other.execute("ROLLBACK")
    store.add([a_record()])


HOLDING = """
import sqlite3, sys
raw = sqlite3.connect(sys.argv[1], isolation_level=None)
raw.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_who_holds_the_file_too_long_is_named_with_its_command_and_that_it_is_stopped(path: Path) -> None:
    with closing(open_store(f"sqlite://{path}?timeout=0.1")) as store:
        command = [sys.executable, "-c", HOLDING, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()

            with pytest.raises(StoreUnavailable, match=rf"by pid {other.pid} \({sys.executable} -c ") as named:
                store.add([a_record()])
            assert named.value.held_by == other.pid
            other.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
            with pytest.raises(StoreUnavailable, match="which is stopped"):
                store.add([a_record()])

            other.kill()
        store.add([a_record()])


def test_another_connection_of_the_same_process_is_named(path: Path) -> None:
    with (
        closing(open_store(f"sqlite://{path}?timeout=0.1")) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match=f"by this very process, pid {os.getpid()}"):
            store.add([a_record()])


def test_a_writer_that_holds_the_file_for_a_moment_is_waited_for(path: Path) -> None:
    open_store(str(path)).close()
    holding, let_go = os.pipe(), os.pipe()

    def hold() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            os.write(holding[1], b"!")
            os.read(let_go[0], 1)
            other.execute("COMMIT")

    child = Child(hold)
    os.read(holding[0], 1)
    with closing(open_store(str(path))) as store:
        adding = threading.Thread(target=lambda: store.add([a_record()]))
        adding.start()
        os.write(let_go[1], b"!")
        adding.join()
        assert child.wait() == 0
        assert len(all_kept(store)) == 1
    for end in (*holding, *let_go):
        os.close(end)


def test_a_removed_file_is_noticed(path: Path, store: Store) -> None:
    store.add([a_record()])
    path.unlink()

    with pytest.raises(StoreUnavailable, match="was removed"):
        store.add([a_record()])
    with pytest.raises(StoreUnavailable, match="was removed"):
        all_kept(store)
    assert not path.exists()


def test_a_replaced_file_is_noticed(path: Path, store: Store) -> None:
    store.add([a_record()])
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").rename(path.with_name(f"old.db{end}"))
    open_store(str(path)).close()

    with pytest.raises(StoreReplaced, match="was replaced"):
        store.add([a_record()])
    with closing(open_store(str(path))) as fresh:
        assert all_kept(fresh) == []


def test_damage_is_named_when_it_is_met(path: Path) -> None:
    with closing(open_store(str(path))) as store:
        store.add([a_record() for _ in range(2000)])
    with closing(open_store(str(path))) as store:
        with path.open("r+b") as file:
            file.seek(20 * 4096)
            file.write(os.urandom(path.stat().st_size - 20 * 4096))

        with pytest.raises(StoreUnavailable, match="damaged"):
            all_kept(store)


def test_an_error_of_sqlite_without_a_name_is_told_as_it_is(path: Path, store: Store) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE leases")

    with pytest.raises(StoreUnavailable, match="leases"):
        store.leases()


def test_what_was_begun_is_undone_when_something_else_fails(store: Store) -> None:
    run = a_record()
    store.add([run])
    [taken] = claim(store).records
    cursor = now_cursor(store)
    broken = settlement(taken)

    with pytest.raises(AttributeError):
        store.settle([broken, None], NOON)  # type: ignore[list-item]

    assert kept(store, run.id) == taken
    assert store.events(cursor)[0] == []
    assert store.settle([broken], NOON) == {run.id}


def test_a_mistake_of_the_store_stays_what_it_is(store: Store) -> None:
    store.close()
    raw = sqlite3.connect(":memory:")
    raw.close()
    store._engine._raw = raw  # type: ignore[attr-defined]

    with pytest.raises(sqlite3.ProgrammingError):
        store.leases()


def test_a_value_that_cannot_be_stored_undoes_everything(store: Store) -> None:
    with pytest.raises(OverflowError):
        store.add([a_record(), a_record(claims=2**70)])
    with pytest.raises(OverflowError):
        store.add([a_record(created_at=NOON, claims=0, rank=2**70, ready_at=None)])

    assert all_kept(store) == []


def test_a_file_that_cannot_have_a_journal_is_refused(path: Path) -> None:
    open_store(str(path)).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        path.with_name("jobs.db-wal").mkdir()

        with pytest.raises(StoreUnavailable, match=r"jobs\.db"):
            open_store(str(path))


def test_an_interrupted_transaction_is_undone_and_the_store_goes_on(store: Store) -> None:
    class Enough(BaseException):
        """What a signal handler raises."""

    class Batch(list[Record]):
        """Records that are interrupted after the first one, the second time somebody goes through them."""

        times = 0

        def __iter__(self) -> Iterator[Record]:
            self.times += 1
            for record in super().__iter__():
                yield record
                if self.times == 2:
                    raise Enough

    with pytest.raises(Enough):
        store.add(Batch([a_record(), a_record()]))

    assert all_kept(store) == []
    store.add([a_record()])


def test_a_transaction_that_was_left_open_is_undone_by_the_next(store: Store) -> None:
    raw = store._engine._raw  # type: ignore[attr-defined]
    raw.execute("BEGIN IMMEDIATE")
    raw.execute("DELETE FROM jobs")

    store.add([a_record()])

    assert len(all_kept(store)) == 1


def test_a_closed_store_can_be_closed_again(path: Path) -> None:
    store = open_store(str(path))
    store.close()
    store.close()


def test_a_job_is_seen_at_once_and_acknowledged_when_it_is_on_the_disk(path: Path) -> None:
    """A pipe in the place of the journal keeps who syncs it waiting, and then refuses, as a broken disk would."""
    journal, pipe = path.with_name("jobs.db-wal"), path.with_name("pipe")
    record = a_record()
    refused: list[StoreUnavailable] = []
    with closing(open_store(f"sqlite://{path}")) as store:
        store.add([a_record()])
        os.mkfifo(pipe)
        ringer = store._ringer  # type: ignore[attr-defined]
        ring = ringer.ring
        rung = threading.Event()

        def swap_and_ring(topics: set[str], end: bytes) -> None:
            """Ring as always, behind the commit, and put the pipe into the place of the journal."""
            pipe.rename(journal)
            ring(topics, end)
            rung.set()

        ringer.ring = swap_and_ring
        raw = store._engine._raw  # type: ignore[attr-defined]

        def add() -> None:
            try:
                store.add([record])
            except StoreUnavailable as error:
                refused.append(error)

        adding = threading.Thread(target=add)
        adding.start()
        assert rung.wait(LIMIT)
        assert raw.execute("SELECT count(*) FROM jobs WHERE id = ?", (str(record.id),)).fetchone() == (1,)
        assert adding.is_alive()

        os.close(os.open(journal, os.O_WRONLY))
        adding.join(LIMIT)

    assert not adding.is_alive()
    [error] = refused
    assert str(path) in str(error)
    assert "may not be on the disk" in str(error)


def test_damaged_text_is_read_as_it_is_and_hides_nothing_else(store: Store, path: Path) -> None:
    damaged, whole = a_record(), a_record()
    store.add([damaged, whole])
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE jobs SET job = CAST(x'6170ff' AS TEXT) WHERE id = ?", (str(damaged.id),))

    assert ids(all_kept(store)) == [damaged.id, whole.id]
    assert kept(store, damaged.id).job == "ap\\xff"
    assert ids(claim(store, 2).records) == [damaged.id, whole.id]


def test_a_job_whose_id_cannot_be_read_ends_and_is_counted_once(store: Store, path: Path) -> None:
    damaged, whole = a_record(), a_record()
    store.add([damaged, whole])
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE jobs SET id = 'garbage' WHERE id = ?", (str(damaged.id),))

    assert ids(claim(store, 2).records) == [whole.id]
    assert store.tally() == {("default", Status.PROCESSING): 1, ("default", Status.FAILED): 1}


@pytest.mark.parametrize("value", ["garbage", b"\xff", 1.5])
def test_jobs_are_counted_where_their_tally_is_damaged(store: Store, path: Path, value: object) -> None:
    jobs = [a_record(ready_at=NOON), a_record(ready_at=NOON)]
    store.add(jobs)
    store.settle([settlement(one) for one in claim(store, 2).records], NOON)
    store.tidy_history(NOON, 1)
    with closing(sqlite3.connect(path)) as raw, raw:
        assert raw.execute("UPDATE tally SET records = ? WHERE status > 2", (value,)).rowcount == 1

    assert list(store.tally().values()) == [2]
    assert store.count(parse({"status": "DONE"})) == 2


@pytest.mark.parametrize("end", ["soon", b"\xff", 1.5e300])
def test_a_damaged_end_of_a_start_holds_jobs_of_a_rate_back_for_its_period_at_most(
    store: Store, path: Path, end: object
) -> None:
    store.add([a_record(lane=lane([Rate(1, per=60)], "app:Mail", None)) for _ in range(2)])
    [run] = claim(store).records
    store.note(WEB_1, {run.id: Note(started_at=NOON)})
    with closing(sqlite3.connect(path)) as raw, raw:
        assert raw.execute("UPDATE slots SET until = ?", (end,)).rowcount == 1

    full = claim(store, now=NOON + MINUTE)
    assert (full.records, full.next_at) == ([], NOON + 2 * MINUTE)
    assert len(claim(store, now=NOON + 2 * MINUTE).records) == 1


@pytest.mark.parametrize("field", ["name", "at", "status", "about", "job", "claims"])
@pytest.mark.parametrize("value", ["garbage", "[1]", '{"id": [1], "node": 2}', b"\xff", 1.5, 10**17])
def test_a_damaged_event_stops_no_reader(store: Store, path: Path, field: str, value: object) -> None:
    store.record_events([Event(id="a", name="node_up", at=NOON, node="web-1")])
    store.add([a_record()])
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(f"UPDATE events SET {field} = ?", (value,))
    store.add([last := a_record()])

    events, _ = store.events("0", 100)
    assert events[-1].job_id == last.id
    for event in events:
        assert isinstance(event.name, str)
        assert isinstance(event.node, str)


def test_a_damaged_time_of_an_event_stops_no_retention(store: Store, path: Path) -> None:
    store.add([a_record()])
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE events SET at = 'x'")
    store.add([a_record(), a_record()])

    store.prune({}, NOON + timedelta(days=9), 100)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM events").fetchone() == (1,)
