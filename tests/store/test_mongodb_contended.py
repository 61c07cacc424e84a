"""A write that other processes forestall each time ends, on each collection that is written by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeAlias

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from taskqueue.errors import StoreContended
from taskqueue.model.history import Step
from taskqueue.store import Event
from taskqueue.store.mongodb.connection import Collections, Connection
from taskqueue.store.mongodb.documents import document
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import parse
from taskqueue.store.tries import MOST_TRIES
from tests.servers import PATIENCE, with_database
from tests.store.records import HOUR, MINUTE, NOON, SECOND, a_record, finished

Document: TypeAlias = dict[str, Any]
Jobs: TypeAlias = Collection[Document]


class Rival:
    """Another client, which changes a collection right before each write of a name."""

    def __init__(self, collection: str, write: str, act: Callable[..., object]) -> None:
        self.collection = collection
        self.write = write
        self.act = act
        self.acts = 0

    def forestall(self, *args: Any) -> None:
        self.acts += 1
        assert self.acts <= 2 * MOST_TRIES, "the call does not end"
        self.act(*args)


class ContendedCollection:
    """A real collection that a rival uses, too."""

    def __init__(self, real: Jobs, rival: Rival) -> None:
        self._real = real
        self._rival = rival

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        if name != self._rival.write:
            return attribute

        def forestalled(*args: Any, **options: Any) -> Any:
            self._rival.forestall(*args)
            return attribute(*args, **options)

        return forestalled


class ContendedConnection(Connection):
    """A connection with a rival, once there is one."""

    rival: Rival | None = None

    @property
    def collections(self) -> Collections:
        real = super().collections
        if self.rival is None:
            return real
        contended: Any = ContendedCollection(getattr(real, self.rival.collection), self.rival)
        return Collections(**{**vars(real), self.rival.collection: contended})


@pytest.fixture
def url(mongo_set: str, mongo_database: Database[Document]) -> str:
    for name in mongo_database.list_collection_names():
        mongo_database[name].delete_many({})
    return f"{with_database(mongo_set, mongo_database.name)}&timeoutMS={PATIENCE * 1000:.0f}"


@pytest.fixture
def connection(url: str) -> ContendedConnection:
    return ContendedConnection(parse(url))


@pytest.fixture
def store(connection: ContendedConnection) -> Iterator[MongoStore]:
    with closing(MongoStore(connection)) as store:
        yield store


@pytest.fixture
def raw(url: str) -> Iterator[Database[Document]]:
    """Yield the database as the rival has it."""
    with MongoClient[Document](url) as client:
        yield client.get_default_database()


def test_events_whose_numbers_are_always_taken_are_refused(
    store: MongoStore, connection: ContendedConnection, raw: Database[Document]
) -> None:
    events = raw["taskqueue_events"]

    def fill(pages: list[Document], *_: Any) -> None:
        events.insert_many([{"_id": page["_id"], "at": NOON, "events": []} for page in pages])

    connection.rival = Rival("events", "insert_many", fill)
    with pytest.raises(StoreContended, match="the event log was changed"):
        store.record_events([Event(id="1", name="paused", at=NOON, node="web-1")])
    assert connection.rival.acts == MOST_TRIES


def test_a_history_that_others_change_each_time_is_added_up_later(
    store: MongoStore, connection: ContendedConnection, raw: Database[Document]
) -> None:
    for number in range(2):
        finished(store, a_record(created_at=NOON + number * SECOND))
        store.tidy_history(NOON + HOUR, 100)
    finished(store, a_record())
    store.repair(NOON + HOUR)
    figures = store.history(Step.MINUTE, NOON, NOON + HOUR)
    history = raw["taskqueue_history"]

    def move(*_: Any) -> None:
        history.update_many({}, {"$set": {"version": ObjectId()}})

    connection.rival = Rival("history", "replace_one", move)
    assert not store.tidy_history(NOON + HOUR, 100)
    assert connection.rival.acts == MOST_TRIES
    connection.rival = None
    assert not store.tidy_history(NOON + HOUR, 100)
    assert raw["taskqueue_history_turns"].count_documents({"figures": {"$exists": True}}) == 0
    assert store.history(Step.MINUTE, NOON, NOON + HOUR) == figures


def test_a_duplicate_that_others_change_each_time_stops_the_repair_of_the_index(
    store: MongoStore, connection: ContendedConnection, raw: Database[Document]
) -> None:
    jobs = raw["taskqueue_jobs"]
    jobs.drop_index("unique")
    oldest, other = a_record(unique="k"), a_record(unique="k", created_at=NOON + MINUTE)
    jobs.insert_many([document(oldest), document(other)])

    def move(*_: Any) -> None:
        jobs.update_one({"_id": other.id}, {"$set": {"given": {"tags": [str(ObjectId())]}}})

    connection.rival = Rival("jobs", "update_one", move)
    with pytest.raises(StoreContended, match=f"job {other.id} with unique='k' was changed"):
        store.index()
    assert connection.rival.acts == MOST_TRIES
    connection.rival = None
    store.index()
    assert jobs.index_information()["unique"]["unique"]
