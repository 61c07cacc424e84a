"""Files that are removed or replaced beside an open store: nothing acknowledged is lost, or the store says so."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from taskqueue.errors import StoreReplaced, StoreUnavailable
from taskqueue.store import Store
from taskqueue.store.open import open_store
from taskqueue.store.sqlite.connection import Connection
from taskqueue.store.sqlite.url import location
from tests.store.children import Child
from tests.store.records import a_record, all_kept, ids

ADD_ONE = """
import sys
from contextlib import closing
from taskqueue.store.open import open_store
from tests.store.records import a_record

with closing(open_store(sys.argv[1])) as store:
    store.add([a_record()])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def journal(path: Path) -> Path:
    return path.with_name("jobs.db-wal")


@pytest.fixture
def index(path: Path) -> Path:
    return path.with_name("jobs.db-shm")


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{path}?timeout=0.2")) as opened:
        yield opened


def kept_after_all_died(path: Path, folder: str) -> set[object]:
    """Return what a copy of the files by their names holds: what is left when every process is killed now."""
    copy = path.with_name(folder)
    copy.mkdir()
    files = [file for file in path.parent.glob("jobs.db*") if file.is_file()]
    subprocess.run(["cp", *files, copy], check=True)  # to close the file here would drop the locks of this process
    with closing(sqlite3.connect(copy / "jobs.db")) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {id for [id] in raw.execute("SELECT id FROM jobs")}


def add(store: Store) -> str:
    record = a_record()
    store.add([record])
    return str(record.id)


def adds_elsewhere(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ADD_ONE, str(path)], text=True, capture_output=True)


def test_a_removed_journal_loses_nothing_that_was_acknowledged(
    path: Path, journal: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    acknowledged = {add(store) for _ in range(3)}
    journal.unlink()

    acknowledged.add(add(store))

    assert kept_after_all_died(path, "copy") == acknowledged
    assert f"the journal {journal} was removed" in caplog.text
    caplog.clear()
    acknowledged.add(add(store))
    assert set(map(str, ids(all_kept(store)))) == acknowledged
    assert caplog.text == ""


def test_a_read_saves_a_removed_journal(path: Path, journal: Path, store: Store) -> None:
    acknowledged = {add(store) for _ in range(3)}
    journal.unlink()

    assert set(map(str, ids(all_kept(store)))) == acknowledged

    assert kept_after_all_died(path, "copy") == acknowledged


def test_a_removed_journal_is_saved_by_one_process_and_all_go_on(path: Path, journal: Path, store: Store) -> None:
    """Two processes, each with the old journal open; a third one begins when it is gone."""
    to_child, from_child = os.pipe(), os.pipe()

    def work() -> None:
        os.close(to_child[1])
        os.close(from_child[0])
        with closing(open_store(str(path))) as mine:
            while os.read(to_child[0], 1) == b"+":
                os.write(from_child[1], add(mine).encode())

    def add_in_child() -> str:
        os.write(to_child[1], b"+")
        return os.read(from_child[0], 24).decode()

    child = Child(work)
    os.close(to_child[0])
    os.close(from_child[1])
    acknowledged = {add(store), add_in_child(), add(store)}
    journal.unlink()

    third = adds_elsewhere(path)
    assert third.returncode != 0
    assert "was removed while another process uses it" in third.stderr
    acknowledged |= {add(store), add_in_child(), add(store), add_in_child()}

    assert kept_after_all_died(path, "copy") == acknowledged
    os.write(to_child[1], b".")
    assert child.wait() == 0
    assert adds_elsewhere(path).returncode == 0
    assert len(all_kept(store)) == len(acknowledged) + 1
    os.close(to_child[1])
    os.close(from_child[0])


def test_two_stores_of_one_process_go_on_without_the_journal(path: Path, journal: Path, store: Store) -> None:
    with closing(open_store(str(path))) as other:
        acknowledged = {add(store), add(other)}
        journal.unlink()

        acknowledged |= {add(store), add(other), add(store)}

        assert kept_after_all_died(path, "copy") == acknowledged


def test_journal_and_index_removed_together_lose_nothing_and_are_told_of(
    path: Path, journal: Path, index: Path, store: Store
) -> None:
    acknowledged = {add(store) for _ in range(3)}
    journal.unlink()
    index.unlink()

    for _ in range(2):
        with pytest.raises(StoreReplaced, match=r"jobs\.db-wal was removed while it was open \(nothing is lost\)"):
            add(store)

    assert kept_after_all_died(path, "copy") == acknowledged
    store.close()
    acknowledged.add(add(store))
    assert kept_after_all_died(path, "again") == acknowledged


def test_what_a_removed_journal_held_is_told_to_be_lost_where_another_one_has_begun(
    path: Path, journal: Path, index: Path, store: Store
) -> None:
    add(store)
    journal.unlink()
    index.unlink()
    assert adds_elsewhere(path).returncode == 0
    journal.touch()  # the other one went away with its own
    index.touch()
    for call in (lambda: add(store), lambda: all_kept(store)):
        with pytest.raises(StoreReplaced, match="the last changes may be lost"):
            call()

    before = path.read_bytes()
    store.close()
    assert path.read_bytes() == before


def test_a_removed_index_is_told_of_and_loses_nothing(path: Path, index: Path, store: Store) -> None:
    acknowledged = {add(store) for _ in range(3)}
    index.unlink()

    with pytest.raises(StoreReplaced, match=r"jobs\.db-shm was removed or replaced"):
        add(store)

    store.close()
    assert kept_after_all_died(path, "copy") == acknowledged


@pytest.mark.parametrize("others", ["nobody", "another process"])
def test_a_store_that_is_opened_beside_a_removed_index_is_told_of_it(
    path: Path, index: Path, store: Store, others: str
) -> None:
    add(store)
    index.unlink()
    if others != "nobody":
        adds_elsewhere(path)

    with pytest.raises(StoreReplaced, match=r"jobs\.db-shm was removed or replaced"):
        open_store(str(path))


def test_what_was_added_before_its_journal_went_outlives_the_kill_of_its_writer(path: Path, journal: Path) -> None:
    """The writer dies at some moment after the removal; whatever it was told is kept, or it was told of the loss."""
    reading, writing = os.pipe()
    turns, next_turn = os.pipe()

    def write() -> None:
        os.close(reading)
        with closing(open_store(str(path))) as mine:
            while os.read(turns, 1):
                os.write(writing, add(mine).encode())

    def told() -> set[str]:
        """Return the next 20 ids; the writer is at most three ahead, so the last of them follow the removal."""
        ids = set()
        for _ in range(20):
            ids.add(os.read(reading, 24).decode())
            os.write(next_turn, b"!")
        return ids

    open_store(str(path)).close()
    child = Child(write)
    os.write(next_turn, b"!!!")
    acknowledged = told()
    for _ in range(5):
        journal.unlink()
        acknowledged |= told()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    for end in (writing, turns, next_turn):
        os.close(end)
    while left := os.read(reading, 24):
        acknowledged.add(left.decode())
    os.close(reading)

    assert acknowledged <= kept_after_all_died(path, "copy")


@pytest.mark.parametrize("change", [add, all_kept], ids=["add", "read"])
def test_the_journal_of_a_replaced_database_is_set_aside(
    path: Path, journal: Path, store: Store, change: Callable[[Store], object]
) -> None:
    old = add(store)
    other = path.with_name("other.db")
    with closing(open_store(str(other))) as backup:
        new = add(backup)
    other.rename(path)

    with pytest.raises(StoreReplaced, match=r"was replaced while it was open; the journal .* kept as .*jobs\.db-wal\."):
        change(store)

    assert not journal.exists()
    assert kept_after_all_died(path, "copy") == {new} != {old}


def test_a_file_that_comes_back_is_used_again(path: Path, store: Store) -> None:
    first = add(store)
    path.rename(path.with_name("away"))
    with pytest.raises(StoreUnavailable, match="was removed") as told:
        add(store)
    assert not isinstance(told.value, StoreReplaced)

    path.with_name("away").rename(path)

    assert {first} < {first, add(store)} <= set(map(str, ids(all_kept(store))))


class WrittenMeanwhile:
    """A connection before each statement of which another process writes."""

    def __init__(self, raw: sqlite3.Connection, write: Callable[[], object]) -> None:
        self._raw = raw
        self._write = write

    def execute(self, statement: str) -> sqlite3.Cursor:
        self._write()
        return self._raw.execute(statement)


def test_a_journal_that_another_process_begins_meanwhile_is_not_taken_for_a_removed_one(path: Path) -> None:
    open_store(str(path)).close()
    with closing(Connection(location(str(path)))) as connection, closing(open_store(str(path))) as other:
        assert connection._files.has_empty_journal
        meanwhile = WrittenMeanwhile(connection._open(), lambda: add(other))

        connection._look_at_new_journal(cast(sqlite3.Connection, meanwhile))

        assert not connection._files.has_empty_journal


def test_files_beside_the_database_disturb_nobody(path: Path, store: Store) -> None:
    for number in range(20):
        path.with_name(f"other-{number}").touch()
        add(store)

    assert len(all_kept(store)) == 20
