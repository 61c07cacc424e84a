"""Indexes that somebody drops under way: running processes make them again, and no unique key has two pending jobs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.collection import Collection

from taskqueue.errors import StoreUnavailable
from taskqueue.insight.why import why
from taskqueue.model.record import Cause, Dependency, Record, Status
from taskqueue.model.unique_period import PERIOD, end_of, period
from taskqueue.store import Store
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.mongodb.documents import document
from tests.servers import PATIENCE, with_database
from tests.store.records import (
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    a_record,
    all_kept,
    behind,
    claim,
    finished,
    ids,
    kept,
    postponed,
    running,
    settle,
)

Document: TypeAlias = dict[str, Any]
Jobs: TypeAlias = Collection[Document]


@pytest.fixture
def url(mongo_set: str) -> Iterator[str]:
    name = f"indexes-{ObjectId()}"
    yield f"{with_database(mongo_set, name)}&timeoutMS={PATIENCE * 1000:.0f}"
    with MongoClient[Document](mongo_set) as client:
        client.drop_database(name)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_mongodb(url)) as store:
        yield store


@pytest.fixture
def jobs(url: str, store: Store) -> Iterator[Jobs]:
    """Return the collection as somebody with a shell has it."""
    with MongoClient[Document](url) as client:
        yield client.get_default_database()["taskqueue_jobs"]


def pending(jobs: Jobs, key: str) -> list[ObjectId]:
    """Return who has the key, by id."""
    return [one["_id"] for one in jobs.find({"unique": key, "status": {"$lte": 2}}).sort("_id")]


def without_unique(jobs: Jobs, records: list[Record]) -> None:
    """Store these as they come to be stored where the index is gone that keeps them apart."""
    jobs.drop_index("unique")
    jobs.insert_many([document(record) for record in records])


@pytest.mark.parametrize("what", ["indexes", "collection"])
def test_what_was_dropped_is_made_again_by_those_who_miss_it(store: Store, jobs: Jobs, what: str) -> None:
    before = jobs.index_information()
    drop = jobs.drop_indexes if what == "indexes" else jobs.drop

    drop()
    run = running(store, a_record())
    drop()
    store.add([a_record(), postponed(NOON + HOUR)])
    assert len(claim(store, 5).records) == 1
    assert jobs.index_information() == before
    drop()
    store.renew(WEB_1, NOON + HOUR, {})
    drop()
    assert settle(store, run) == ({run.id} if what == "indexes" else set())
    for look in (
        store.tally,
        lambda: store.expired(NOON, 10),
        lambda: store.samples(NOON, NOON + HOUR, 10),
        lambda: store.prune({Status.DONE: NOON + HOUR}, NOON, 10),
    ):
        drop()
        store.add([a_record()])
        look()
        assert jobs.index_information() == before


def test_the_indexes_of_schedules_are_made_again(store: Store, jobs: Jobs) -> None:
    plans = jobs.database["taskqueue_plans"]
    before = plans.index_information()
    plans.drop_indexes()

    assert store.due(NOON, 10) == ([], None)

    assert plans.index_information() == before


def test_housekeeping_makes_what_nobody_has_missed_yet(store: Store, jobs: Jobs) -> None:
    before = jobs.index_information()
    jobs.drop_index("unique")

    store.repair(NOON)

    assert jobs.index_information() == before


def test_jobs_that_waited_are_released_although_the_index_was_gone(store: Store, jobs: Jobs) -> None:
    run = running(store, a_record())
    waiting = behind(run.id)
    store.add([waiting])
    jobs.drop_indexes()

    settle(store, run, now=NOON + SECOND)
    store.repair(NOON + MINUTE)

    assert kept(store, waiting.id).status is Status.WAITING


@pytest.mark.parametrize("relation", ["none", "a dependency"])
def test_a_key_has_one_holder_although_its_index_is_gone(store: Store, jobs: Jobs, relation: str) -> None:
    ended = finished(store, a_record())
    edges = (Dependency(id=ended.id),) if relation != "none" else ()
    first = a_record(unique="k")
    store.add([first])
    jobs.drop_index("unique")

    new = a_record(created_at=NOON + SECOND, unique="k")
    if edges:
        new = behind(ended.id, created_at=NOON + SECOND, unique="k", depends_on=edges, cause=Cause.BEHIND)
    [held] = store.add([new])

    assert held.id == first.id
    assert pending(jobs, "k") == [first.id]
    assert jobs.index_information()["unique"]["unique"]


def test_the_oldest_of_those_with_one_key_is_kept_and_the_others_say_why_they_ended(
    store: Store, jobs: Jobs, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    oldest, *others = (a_record(unique="k", created_at=NOON + number * SECOND) for number in range(3))
    alone = a_record(unique="other")
    without_unique(jobs, [others[1], oldest, others[0], alone])

    with caplog.at_level(logging.WARNING), closing(open_mongodb(url)) as later:
        assert pending(jobs, "k") == [oldest.id]
        for other in others:
            record = kept(later, other.id)
            assert (record.status, record.cause) == (Status.CANCELED, Cause.DUPLICATE)
            assert record.error is not None
            assert f"job {oldest.id}, which is older, has the same unique key 'k'" in record.error.message
            assert f"job {other.id} is canceled" in caplog.text
            assert f"it was canceled: job {oldest.id}, which is older" in why(later, other.id)
        later.repair(later.now() + HOUR)
        assert sorted(event.name for event in later.events("oldest")[0] if event.job_id == others[0].id) == ["canceled"]
        assert ids(claim(later, 5).records) == [oldest.id, alone.id]


def test_the_period_of_a_key_stays_with_the_job_whose_period_ends_last(store: Store, jobs: Jobs, url: str) -> None:
    first, last, other = (
        a_record(unique=key, created_at=at, ready_at=at, given={PERIOD: period(key, 3600, at)})
        for key, at in (("k", NOON), ("k", NOON + MINUTE), ("other", NOON))
    )
    finished(store, first)
    jobs.drop_index("periods")
    store.add([last, other])

    store.repair(NOON)

    assert {end_of(kept(store, record.id)) for record in (last, other)} == {NOON + HOUR, NOON + HOUR + MINUTE}
    assert end_of(kept(store, first.id)) is None
    with closing(open_mongodb(url)) as later:
        assert jobs.index_information()["periods"]["unique"]
        assert later.add([replace(last, id=ObjectId(), created_at=NOON + 2 * MINUTE)]) == [last]


def test_one_that_runs_gives_up_its_key_and_is_asked_to_end(store: Store, jobs: Jobs) -> None:
    oldest, other = a_record(unique="k"), a_record(unique="k", created_at=NOON + SECOND, priority=-1)
    without_unique(jobs, [oldest, other])
    [taken] = claim(store).records
    assert taken.id == other.id

    store.repair(NOON)

    assert pending(jobs, "k") == [oldest.id]
    assert f"job {oldest.id}" in (store.renew(WEB_1, NOON + MINUTE, {}).claims[other.id].cancel_reason or "")


def test_the_reason_is_the_one_that_the_server_gives(store: Store, jobs: Jobs) -> None:
    jobs.database.command("collMod", jobs.name, validator={"queue": {"$ne": "x"}})

    with pytest.raises(StoreUnavailable, match=r"the server refuses \(Document failed validation\)"):
        store.add([a_record(queue="x")])
    assert all_kept(store) == []


def test_a_job_that_is_in_is_not_told_to_have_failed(store: Store, jobs: Jobs) -> None:
    not_cleared = {"$or": [{"unique": {"$exists": False}}, {"waiting_for": {"$exists": True}}]}
    jobs.database.command("collMod", jobs.name, validator=not_cleared)
    record = a_record(unique="k")

    assert ids(store.add([record])) == [record.id]

    jobs.database.command("collMod", jobs.name, validator={})
    store.repair(NOON + HOUR)
    assert ids(claim(store).records) == [record.id]
