"""Derived fields that disagree with their sources are found and written again; what changes at that moment is left."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pymongo.database import Database

from taskqueue.model.limits import Limit, lane
from taskqueue.model.options.update import revised
from taskqueue.model.record import Options, Record, Status
from taskqueue.store import Disagreement, Store
from taskqueue.store.mongodb import derived_fields as mongodb_fields
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.url import parse
from taskqueue.store.open import open_store
from taskqueue.store.postgresql import derived_fields as postgresql_fields
from taskqueue.store.postgresql.connection import Connection as PostgreSQLConnection
from taskqueue.store.postgresql.url import parse as parsed
from taskqueue.store.sqlite import derived_fields as sqlite_fields
from taskqueue.store.sqlite.database import SqliteDatabase
from tests.servers import with_database
from tests.store.damaging import MISSING, REFUSED, damager, run_sql
from tests.store.records import HOUR, NOON, a_record, behind, claim, finished, forced, kept, postponed

LANE = lane([Limit(3)], "app:Mail", None)
"""The lane of a job with a limit."""

COLUMNS: list[tuple[Callable[[], Record], str, Any]] = [
    (a_record, "rank", 5),
    (lambda: postponed(NOON + HOUR), "rank", 5),
    (a_record, "forced", 1),
    (forced, "forced", 0),
    (lambda: a_record(options=Options(concurrency=5)), "forced", 0),
    (lambda: a_record(lane=LANE), "forced", 1),
]
FIELDS: dict[str, list[tuple[Callable[[], Record], str, Any]]] = {
    "sqlite": COLUMNS,
    "postgresql": COLUMNS,
    "mongodb": [
        (lambda: postponed(NOON + HOUR), "due", NOON),
        (lambda: postponed(NOON + HOUR), "due", MISSING),
        (a_record, "due", NOON),
        (lambda: postponed(NOON + HOUR, waiting_for=(behind().id,)), "due", NOON),
        (lambda: a_record(expires_at=NOON + HOUR), "expires", NOON),
        (lambda: a_record(expires_at=NOON + HOUR), "expires", MISSING),
        (a_record, "expires", NOON),
        (a_record, "rank", 5),
        (a_record, "forced", True),
        (forced, "forced", False),
        (lambda: a_record(options=Options(concurrency=5)), "forced", False),
        (lambda: a_record(lane=LANE), "forced", True),
        (lambda: a_record(lane=LANE), "lane", f"other {LANE}"),
    ],
}
CASES = [
    pytest.param(name, *case, id=f"{name}-{case[1]}-{number}")
    for name, cases in FIELDS.items()
    for number, case in enumerate(cases)
]


def a_job_of_each_kind(store: Store) -> None:
    """Add jobs in each state, as the store writes them."""
    finished(store, a_record(expires_at=NOON + HOUR))
    store.add([a_record()])
    claim(store)
    [awaited, *_] = store.add([a_record(priority=-3), postponed(NOON + HOUR), forced(), a_record(lane=LANE, queue="q")])
    store.add([behind(awaited.id), postponed(NOON + HOUR, waiting_for=(awaited.id,)), a_record(expires_at=NOON + HOUR)])
    store.add([a_record(unique="k"), a_record(options=Options(concurrency=5), lane=LANE)])


def test_what_a_store_writes_agrees(store: Store) -> None:
    a_job_of_each_kind(store)

    assert store.disagreeing(10) == ([], True)


@pytest.mark.parametrize(("store_url", "make", "field", "value"), CASES, indirect=["store_url"])
def test_a_field_that_disagrees_is_found_and_written_again(
    store: Store, store_url: str, make: Callable[[], Record], field: str, value: Any
) -> None:
    a_job_of_each_kind(store)
    [before] = store.add([make()])
    with damager(store_url) as damage:
        damage("jobs", before.id, field, value)

    assert store.disagreeing(10) == ([Disagreement(f"job {before.id}", (field,), before.id)], True)
    assert store.write_again(store.disagreeing(10).found) == 1
    assert store.disagreeing(10) == ([], True)
    assert kept(store, before.id) == before


@pytest.mark.parametrize("store_url", ["mongodb"], indirect=True)
@pytest.mark.parametrize("field", ["due", "expires"])
def test_a_time_that_stays_when_a_job_has_ended_is_removed(store: Store, store_url: str, field: str) -> None:
    ended = finished(store, a_record())
    with damager(store_url) as damage:
        damage("jobs", ended.id, field, NOON + HOUR)

    assert store.write_again(store.disagreeing(10).found) == 1
    assert claim(store, now=NOON + 2 * HOUR).next_at is None
    assert kept(store, ended.id) == ended


def test_no_more_are_returned_than_asked_for(store: Store, store_url: str) -> None:
    added = store.add([a_record() for _ in range(5)])
    with damager(store_url) as damage:
        for one in added:
            damage("jobs", one.id, "rank", 5)

    found = store.disagreeing(2).found
    assert len(found) == 2
    assert store.write_again(found) == 2
    assert len(store.disagreeing(10).found) == 3


def test_a_job_that_is_claimed_or_moved_meanwhile_is_left(store: Store, store_url: str) -> None:
    moved, taken = store.add([postponed(NOON + HOUR), a_record()])
    with damager(store_url) as damage:
        for one in (moved, taken):
            damage("jobs", one.id, "rank", 5)
    found = store.disagreeing(10).found
    present = kept(store, moved.id)
    assert store.update(present, revised(present, {"at": NOON + 2 * HOUR}, None, NOON), NOON)
    claim(store)

    assert len(found) == 2
    assert store.write_again(found) == 0
    assert kept(store, moved.id).ready_at == NOON + 2 * HOUR
    assert kept(store, taken.id).status is Status.PROCESSING


def test_a_damaged_job_is_left_to_what_reads_it(store: Store, store_url: str) -> None:
    [one] = store.add([a_record(priority=3)])
    with damager(store_url) as damage, contextlib.suppress(*REFUSED):
        damage("jobs", one.id, "priority", "high")

    assert store.disagreeing(10) == ([], True)


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("status", [int(Status.DONE), int(Status.POSTPONED), -1])
def test_a_wrong_number_of_jobs_is_counted_again(store: Store, store_url: str, status: int) -> None:
    a_job_of_each_kind(store)
    store.prune({}, NOON, 10)
    before = store.tally()
    run_sql(
        store_url,
        f"INSERT INTO {{}}tally (queue, status, records) VALUES ('default', {status}, 4711) "
        "ON CONFLICT (queue, status) DO UPDATE SET records = excluded.records",
    )

    assert store.disagreeing(10).found == [Disagreement("queue default", ("counts",))]
    assert store.write_again(store.disagreeing(10).found) == 1
    assert store.disagreeing(10) == ([], True)
    assert store.tally() == before


def test_a_search_that_takes_too_long_says_that_it_is_not_complete(
    mongo_database: Database[dict[str, Any]], mongo_set: str, tmp_path: Path
) -> None:
    with closing(open_store(str(tmp_path / "jobs.db"))) as store:
        store.add([a_record() for _ in range(1000)])
    with closing(sqlite3.connect(tmp_path / "jobs.db", factory=SqliteDatabase)) as raw:
        assert sqlite_fields.disagreeing(raw, 10, seconds=0.0) == ([], False)

    with closing(Connection(parse(with_database(mongo_set, mongo_database.name)))) as connection:
        assert mongodb_fields.disagreeing(connection, 10, seconds=1e-6) == ([], False)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_search_that_a_server_cancels_is_not_complete(store: Store, store_url: str) -> None:
    address = parsed(store_url)
    with psycopg.connect(address.client_url) as other, closing(PostgreSQLConnection(address)) as connection:
        other.execute(f"LOCK TABLE {address.schema}.jobs")
        assert connection.look(lambda database: postgresql_fields.disagreeing(database, 10, 0.2)) == ([], False)

    assert store.disagreeing(10) == ([], True)
