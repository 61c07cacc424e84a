"""A store of another schema is refused with the way out; ``migrate`` takes it to the next one and keeps its jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from taskqueue.errors import SchemaMismatch, StoreUnavailable
from taskqueue.model.record import Holder
from taskqueue.store import SCHEMA_VERSION, ClaimRequest, Lease, Store
from taskqueue.store.migration import STEPS, Migration, carry_out, open_migration, pending_steps
from taskqueue.store.mongodb import migration as mongodb_migration
from taskqueue.store.open import open_store
from taskqueue.store.postgresql import migration as postgresql_migration
from taskqueue.store.sqlite import migration as sqlite_migration
from tests.store.damaging import run_sql
from tests.store.next_version import NEXT, WHAT, install_next_version
from tests.store.records import a_record

HOLDER = Holder(seat="web-1", incarnation="a1")


@pytest.fixture
def migration(store_url: str, opener: Callable[[], Store], monkeypatch: pytest.MonkeyPatch) -> Iterator[Migration]:
    """Return the next version's migration of a store with two jobs that this version made."""
    with closing(opener()) as made:
        made.add([a_record(), a_record()])
    install_next_version(monkeypatch)
    with closing(open_migration(store_url)) as opened:
        yield opened


def colors(url: str) -> list[str]:
    """Return what the step has written into each job."""
    if not url.startswith("mongodb"):
        return [color for (color,) in run_sql(url, "SELECT color FROM {}jobs")]
    with MongoClient[dict[str, Any]](url) as client:
        return [document["color"] for document in client.get_default_database().taskqueue_jobs.find()]


def set_number(url: str, number: int) -> None:
    """Give the store this schema number."""
    if not url.startswith("mongodb"):
        is_file = url.startswith("sqlite")
        run_sql(url, f"PRAGMA user_version = {number}" if is_file else f"UPDATE {{}}store SET schema = {number}")
        return
    with MongoClient[dict[str, Any]](url) as client:
        facts = client.get_default_database().taskqueue_facts
        facts.update_one({"_id": "schema"}, {"$set": {"version": number}})


def test_each_schema_after_the_first_has_a_step() -> None:
    assert list(STEPS) == list(range(2, SCHEMA_VERSION + 1))
    assert {*sqlite_migration.STEPS, *postgresql_migration.STEPS, *mongodb_migration.STEPS} == set(STEPS)


def test_a_new_store_has_the_schema_of_this_version(store_url: str, opener: Callable[[], Store]) -> None:
    opener().close()

    with closing(open_migration(store_url)) as migration:
        planned = pending_steps(migration)

    assert (planned.found, planned.known, planned.steps) == (SCHEMA_VERSION, SCHEMA_VERSION, {})


def test_an_older_store_is_refused_and_the_way_out_is_named(store_url: str, migration: Migration) -> None:
    words = rf"schema version {SCHEMA_VERSION}, .* knows version {NEXT}: run `taskqueue migrate`"
    with pytest.raises(SchemaMismatch, match=words):
        open_store(store_url)


def test_a_plan_says_what_is_to_be_done_and_does_nothing(migration: Migration) -> None:
    planned = pending_steps(migration)

    assert (planned.found, planned.known) == (SCHEMA_VERSION, NEXT)
    assert (planned.steps, planned.in_the_way) == ({NEXT: WHAT}, [])
    assert migration.version() == SCHEMA_VERSION


def test_a_migrated_store_works_and_has_its_jobs(store_url: str, migration: Migration) -> None:
    carry_out(migration, pending_steps(migration))

    assert migration.version() == NEXT
    assert pending_steps(migration).steps == {}
    assert colors(store_url) == ["red", "red"]
    with closing(open_store(store_url)) as store:
        store.add([a_record()])
        now = store.now()
        claim = store.claim(HOLDER, ClaimRequest(pooled=9), now, now + timedelta(seconds=30))
        assert len(claim.records) == 3
        assert len(store.renew(HOLDER, now + timedelta(seconds=60), {}).claims) == 3


def test_a_step_that_somebody_else_has_done_is_not_done_again(store_url: str, migration: Migration) -> None:
    planned = pending_steps(migration)
    with closing(open_migration(store_url)) as another:
        carry_out(another, pending_steps(another))

    carry_out(migration, planned)

    assert (migration.version(), colors(store_url)) == (NEXT, ["red", "red"])


def test_a_step_may_change_nothing_on_a_store(migration: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sqlite_migration.STEPS, NEXT)
    monkeypatch.delitem(postgresql_migration.STEPS, NEXT)
    monkeypatch.delitem(mongodb_migration.STEPS, NEXT)

    carry_out(migration, pending_steps(migration))

    assert migration.version() == NEXT


def test_nodes_that_still_run_are_in_the_way(
    store_url: str, opener: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opener()) as store:
        now = store.now()
        for name, until in (("seat:web-1", 60), ("seat:over", -60), ("lead", 60)):
            lease = Lease(name=name, holder=HOLDER, since=now, until=now + timedelta(seconds=until))
            store.acquire(lease, now - timedelta(hours=1))
    with closing(open_migration(store_url)) as migration:
        assert pending_steps(migration).in_the_way == []  # there is nothing to do

    install_next_version(monkeypatch)

    with closing(open_migration(store_url)) as migration:
        planned = pending_steps(migration)
        with pytest.raises(StoreUnavailable, match=r"nodes of an older taskqueue run on it \(web-1\): stop them first"):
            carry_out(migration, planned)
        assert planned.in_the_way == ["web-1"]
        assert migration.version() == SCHEMA_VERSION


def test_a_store_of_a_newer_version_is_left_alone(store_url: str, opener: Callable[[], Store]) -> None:
    opener().close()
    set_number(store_url, 9)
    words = r"schema version 9, .*: upgrade taskqueue here"

    with pytest.raises(SchemaMismatch, match=words):
        open_store(store_url)
    with closing(open_migration(store_url)) as migration, pytest.raises(SchemaMismatch, match=words):
        pending_steps(migration)


def test_a_store_that_was_never_opened_gets_the_present_schema(store_url: str) -> None:
    if store_url.startswith("sqlite"):
        Path(store_url.removeprefix("sqlite://")).touch()
    with closing(open_migration(store_url)) as migration:
        assert pending_steps(migration).steps == {}
    with closing(open_store(store_url)) as store:
        assert store.add([a_record()])


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_that_is_not_there_or_not_ours_is_not_migrated(tmp_path: Path, number: int) -> None:
    with pytest.raises(StoreUnavailable, match="there is no such file: name the store with --url"):
        open_migration(str(tmp_path / "none.db"))
    with closing(sqlite3.connect(tmp_path / "other.db")) as raw:
        raw.execute("CREATE TABLE jobs (title)")
        raw.execute(f"PRAGMA user_version = {number}")  # many programs use it
    with pytest.raises(StoreUnavailable, match="belongs to another program"):
        open_store(f"sqlite://{tmp_path}/other.db")
    refused = pytest.raises(StoreUnavailable, match="belongs to another program")
    with closing(open_migration(str(tmp_path / "other.db"))) as migration, refused:
        pending_steps(migration)


def test_what_sqlite_says_is_passed_on_and_nothing_is_done_by_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite://{tmp_path}/jobs.db?timeout=0.1"
    open_store(url).close()
    install_next_version(monkeypatch)
    with closing(open_migration(url)) as migration, closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        planned = pending_steps(migration)
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"cannot be migrated \(database is locked\)"):
            carry_out(migration, planned)
        raw.execute("CREATE VIEW colors AS SELECT 1")
        raw.commit()
        with pytest.raises(StoreUnavailable, match=r"cannot be migrated \(.*\)"):
            carry_out(migration, planned)
        assert "color" not in [column[1] for column in raw.execute("PRAGMA table_info(jobs)")]
        assert migration.version() == SCHEMA_VERSION
