"""A write that other processes forestall each time ends, on each collection that is written by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from taskqueue.errors import StoreContended
from taskqueue.store import Event
from taskqueue.store.mongodb import index_repair
from taskqueue.store.mongodb.documents import document
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import parse
from taskqueue.store.tries import MOST_TRIES
from tests.store.preceded import Document, PrecededConnection
from tests.store.records import MINUTE, NOON, a_record


class Rival:
    """Another client, which changes a collection right before each write of a name."""

    def __init__(self, collection: str, write: str, act: Callable[..., object]) -> None:
        self.collection = collection
        self.write = write
        self.act = act
        self.acts = 0

    def precede(self, write: str, *args: Any) -> None:
        if write != self.write:
            return
        self.acts += 1
        assert self.acts <= 2 * MOST_TRIES, "the call does not end"
        self.act(*args)


@pytest.fixture
def connection(mongo_url: str) -> PrecededConnection:
    return PrecededConnection(parse(mongo_url))


@pytest.fixture
def store(connection: PrecededConnection) -> Iterator[MongoStore]:
    with closing(MongoStore(connection)) as store:
        yield store


@pytest.fixture
def raw(mongo_url: str) -> Iterator[Database[Document]]:
    """Yield the database as the rival has it."""
    with MongoClient[Document](mongo_url) as client:
        yield client.get_default_database()


def test_events_whose_numbers_are_always_taken_are_refused(
    store: MongoStore, connection: PrecededConnection, raw: Database[Document]
) -> None:
    events = raw["taskqueue_events"]

    def fill(pages: list[Document], *_: Any) -> None:
        events.insert_many([{"_id": page["_id"], "at": NOON, "events": []} for page in pages])

    connection.other = rival = Rival("events", "insert_many", fill)
    with pytest.raises(StoreContended, match="the event log was changed"):
        store.record_events([Event(id="1", name="paused", at=NOON, node="web-1")])
    assert rival.acts == MOST_TRIES


def test_a_duplicate_that_others_change_each_time_stops_the_repair_of_the_index(
    store: MongoStore, connection: PrecededConnection, raw: Database[Document]
) -> None:
    jobs = raw["taskqueue_jobs"]
    jobs.drop_index("unique")
    oldest, other = a_record(unique="k"), a_record(unique="k", created_at=NOON + MINUTE)
    jobs.insert_many([document(oldest), document(other)])

    def move(*_: Any) -> None:
        jobs.update_one({"_id": other.id}, {"$set": {"given": {"tags": [str(ObjectId())]}}})

    connection.other = rival = Rival("jobs", "update_one", move)
    with pytest.raises(StoreContended, match=f"job {other.id} with unique='k' was changed"):
        index_repair.ensure(connection.collections, store.url, NOON)  # with more time than a running process has
    assert rival.acts == MOST_TRIES
    connection.other = None
    store.index()
    assert jobs.index_information()["unique"]["unique"]
