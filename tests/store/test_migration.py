"""An older store is refused with the way out, and ``migrate`` takes it to the present schema without touching jobs."""

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
from taskqueue.store import OLDEST, SCHEMA_VERSION, ClaimRequest, Lease, Store
from taskqueue.store.migration import STEPS, Migration, carry_out, open_migration, pending_steps
from taskqueue.store.open import open_store
from tests.store.records import a_record

HOLDER = Holder(seat="web-1", incarnation="a1")


@pytest.fixture
def migration(store_url: str, opener: Callable[[], Store]) -> Iterator[Migration]:
    """Return the migration of a store that was made, and then made older by hand: schema 0."""
    with closing(open_store(store_url)) as made:
        made.add([a_record(), a_record()])
    age(store_url)
    with closing(open_migration(store_url)) as opened:
        yield opened


def age(url: str) -> None:
    """Take a column or an index from the store, and its number."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as raw:
            raw.execute("DROP INDEX jobs_running")
            raw.execute("ALTER TABLE jobs DROP COLUMN progress_at")
            raw.execute("ALTER TABLE jobs DROP COLUMN progress_message")
            raw.execute("ALTER TABLE jobs DROP COLUMN progress")
            raw.execute("DROP TABLE tally")
            raw.execute("PRAGMA user_version = 0")
            raw.commit()
        return
    with MongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        database.taskqueue_jobs.drop_index("held")
        database.taskqueue_facts.update_one({"_id": "schema"}, {"$set": {"version": 0}})


def test_an_older_store_is_refused_and_the_way_out_is_named(store_url: str, migration: Migration) -> None:
    with pytest.raises(
        SchemaMismatch, match=rf"schema version 0, .* knows version {SCHEMA_VERSION}: run `taskqueue migrate`"
    ):
        open_store(store_url)


def test_a_plan_says_what_is_to_be_done_and_does_nothing(migration: Migration) -> None:
    planned = pending_steps(migration)

    assert (planned.found, planned.steps, planned.in_the_way) == (0, STEPS, [])
    assert migration.version() == 0


def test_a_migrated_store_works_and_has_its_jobs(store_url: str, migration: Migration) -> None:
    carry_out(migration, pending_steps(migration))

    assert migration.version() == SCHEMA_VERSION
    assert pending_steps(migration).steps == {}
    with closing(open_store(store_url)) as store:
        store.add([a_record()])
        now = store.now()
        claim = store.claim(HOLDER, ClaimRequest(pooled=9), now, now + timedelta(seconds=30))
        assert len(claim.records) == 3
        assert len(store.renew(HOLDER, now + timedelta(seconds=60), {}).claims) == 3


def test_readers_go_on_behind_the_cursors_of_an_older_store(store_url: str, opener: Callable[[], Store]) -> None:
    with closing(opener()) as made:
        made.add([first := a_record()])
        made.add([second := a_record()])
        [known, *later], _ = made.events(OLDEST)
    age(store_url)
    with closing(open_migration(store_url)) as migration:
        carry_out(migration, pending_steps(migration))

    with closing(open_store(store_url)) as store:
        store.add(batch := [a_record(), a_record()])
        events, _ = store.events(known.cursor)

    assert known.job_id == first.id
    assert events[:1] == later
    assert [event.job_id for event in events] == [second.id, *(new.id for new in batch)]


def test_a_step_that_somebody_else_has_done_is_not_done_again(store_url: str, migration: Migration) -> None:
    planned = pending_steps(migration)
    with closing(open_migration(store_url)) as another:
        carry_out(another, pending_steps(another))

    carry_out(migration, planned)

    assert migration.version() == SCHEMA_VERSION


@pytest.mark.parametrize("about", [{"schema": 0}, {}])
def test_nodes_of_an_older_version_are_in_the_way(store_url: str, about: dict[str, int], opener: Any) -> None:
    store = opener()
    now = store.now()
    for name, until in (("seat:web-1", 60), ("seat:over", -60), ("lead", 60)):
        lease = Lease(name=name, holder=HOLDER, since=now, until=now + timedelta(seconds=until), about=about)
        store.acquire(lease, now - timedelta(hours=1))
    store.close()
    age(store_url)
    with closing(open_migration(store_url)) as migration:
        planned = pending_steps(migration)
        with pytest.raises(StoreUnavailable, match=r"nodes of an older taskqueue run on it \(web-1\): upgrade them"):
            carry_out(migration, planned)
        assert planned.in_the_way == ["web-1"]
        assert migration.version() == 0


def test_nodes_of_this_version_work_on_while_the_store_is_migrated(store_url: str, opener: Any) -> None:
    store = opener()
    now = store.now()
    about = {"schema": SCHEMA_VERSION}
    store.acquire(Lease(name="seat:a", holder=HOLDER, since=now, until=now + timedelta(seconds=60), about=about), now)
    store.close()
    age(store_url)
    with closing(open_migration(store_url)) as migration:
        carry_out(migration, pending_steps(migration))
        assert migration.version() == SCHEMA_VERSION


def test_a_store_of_a_newer_version_is_left_alone(store_url: str, opener: Any) -> None:
    opener().close()
    if store_url.startswith("sqlite"):
        with closing(sqlite3.connect(store_url.removeprefix("sqlite://"))) as raw:
            raw.execute("PRAGMA user_version = 9")
    else:
        with MongoClient[dict[str, Any]](store_url) as client:
            facts = client.get_default_database().taskqueue_facts
            facts.update_one({"_id": "schema"}, {"$set": {"version": 9}})
    newer = pytest.raises(SchemaMismatch, match=r"schema version 9, .*: upgrade taskqueue here")
    with closing(open_migration(store_url)) as migration, newer:
        pending_steps(migration)


def test_a_store_that_was_never_opened_gets_the_present_schema(store_url: str) -> None:
    if store_url.startswith("sqlite"):
        Path(store_url.removeprefix("sqlite://")).touch()
    with closing(open_migration(store_url)) as migration:
        carry_out(migration, pending_steps(migration))
    with closing(open_store(store_url)) as store:
        assert store.add([a_record()])


def test_a_file_that_is_not_there_or_not_ours_is_not_migrated(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no such file: name the store with --url"):
        open_migration(str(tmp_path / "none.db"))
    with closing(sqlite3.connect(tmp_path / "other.db")) as raw:
        raw.execute("CREATE TABLE jobs (title)")
    refused = pytest.raises(StoreUnavailable, match="is a database of another program")
    with closing(open_migration(str(tmp_path / "other.db"))) as migration, refused:
        pending_steps(migration)


def test_what_sqlite_says_is_passed_on_and_nothing_is_done_by_halves(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db?timeout=0.1"
    open_store(url).close()
    age(f"sqlite://{tmp_path}/jobs.db")
    with closing(open_migration(url)) as migration, closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        planned = pending_steps(migration)
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"cannot be migrated \(database is locked\)"):
            carry_out(migration, planned)
        raw.execute("CREATE VIEW tally AS SELECT 1")
        raw.commit()
        with pytest.raises(StoreUnavailable, match=r"cannot be migrated \(.*\)"):
            carry_out(migration, planned)
        assert "progress" not in [column[1] for column in raw.execute("PRAGMA table_info(jobs)")]
        assert migration.version() == 0
