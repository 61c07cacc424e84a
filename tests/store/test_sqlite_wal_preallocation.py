"""Room in the journal of SQLite: synced commits find it written already, and nothing of it is taken for a commit."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue.model.query import EVERYTHING
from taskqueue.store import Store
from taskqueue.store.open import open_store
from taskqueue.store.sqlite.connection import LONGEST_JOURNAL
from taskqueue.store.sqlite.files import PIECE, STEP, Journal
from tests.store.records import a_record


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def journal(database: Path) -> Path:
    return database.with_name("jobs.db-wal")


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{database}?synchronous=full")) as opened:
        yield opened


def add_until_there_is_room(store: Store, journal: Path) -> int:
    """Add jobs one by one until the journal has room, and return their number."""
    added = 0
    while journal.stat().st_size < STEP:
        store.add([a_record()])
        added += 1
    return added


def test_synced_commits_do_not_change_the_length_of_the_journal(store: Store, journal: Path) -> None:
    add_until_there_is_room(store, journal)
    before = journal.stat().st_size

    for _ in range(30):
        store.add([a_record()])

    assert journal.stat().st_size == before


def test_a_few_jobs_leave_a_short_journal(store: Store, journal: Path) -> None:
    for _ in range(2):
        store.add([a_record()])

    assert journal.stat().st_size < PIECE


def test_nothing_is_lost_behind_or_before_the_room(store: Store, database: Path, tmp_path: Path) -> None:
    added = add_until_there_is_room(store, database.with_name("jobs.db-wal"))
    store.add([a_record()])
    after_a_crash = tmp_path / "crashed"
    after_a_crash.mkdir()
    for name in ("jobs.db", "jobs.db-wal"):
        shutil.copy(database.with_name(name), after_a_crash / name)

    with closing(open_store(f"sqlite://{after_a_crash}/jobs.db")) as reopened:
        assert reopened.count(EVERYTHING) == added + 1
        reopened.add([a_record()])
        assert reopened.count(EVERYTHING) == added + 2


def test_commits_of_two_processes_share_the_room(store: Store, database: Path, journal: Path) -> None:
    with closing(open_store(f"sqlite://{database}?synchronous=full")) as other:
        for _ in range(60):
            store.add([a_record()])
            other.add([a_record()])

        assert store.count(EVERYTHING) == 120
    assert journal.stat().st_size <= 3 * STEP


def test_room_is_made_up_to_the_length_that_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "wal"
    file.write_bytes(bytes(PIECE + 1))
    with closing(Journal(str(file), 2 * STEP)) as journal:
        journal.make_room()
        assert file.stat().st_size == PIECE + STEP
        journal.make_room()
        assert file.stat().st_size == PIECE + STEP

        file.write_bytes(bytes(2 * STEP + 1))
        journal.make_room()
        journal.make_room()

    assert file.stat().st_size == 2 * STEP + 1


def test_a_look_at_the_room_does_not_ask_for_the_time_of_the_last_change(tmp_path: Path) -> None:
    called: list[str] = []
    file = tmp_path / "wal"
    file.write_bytes(bytes(PIECE + 1))
    with closing(Journal(str(file), 2 * STEP)) as journal:
        sys.setprofile(lambda frame, event, called_function: called.append(getattr(called_function, "__name__", "")))
        journal.make_room()
        sys.setprofile(None)

    assert "lseek" in called
    assert {"stat", "fstat", "lstat"}.isdisjoint(called)


def test_normal_commits_make_no_room(database: Path, journal: Path) -> None:
    with closing(open_store(f"sqlite://{database}?synchronous=normal")) as store:
        for _ in range(30):
            store.add([a_record()])

        assert journal.stat().st_size % PIECE


def test_a_journal_that_grew_beside_a_long_reader_is_cut_when_that_has_gone(
    store: Store, database: Path, journal: Path
) -> None:
    store.add([a_record()])
    with closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        while journal.stat().st_size < LONGEST_JOURNAL + 8 * STEP:
            store.add([a_record(data=f'"{"x" * 1_000_000}"')])

    store.add([a_record()])  # copies all into the database
    store.add([a_record()])  # begins the journal anew

    assert journal.stat().st_size <= LONGEST_JOURNAL
