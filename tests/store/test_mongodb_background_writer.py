"""What is told behind the calls: all of it, in order, also when a process forks, ends, or tells more than it can."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database

from taskqueue.model.record import Status
from taskqueue.store import OLDEST, Store
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.mongodb.background_writer import BUFFER_LIMIT, EventWriter
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.events import EventLog, status_event
from taskqueue.store.mongodb.url import parse
from tests.nodes import eventually
from tests.servers import PATIENCE, with_database
from tests.store.children import in_child
from tests.store.records import NOON, a_record, claim, now_cursor
from tests.store.records import told as names_told

ADD = """
import atexit, sys
from bson import ObjectId
from taskqueue.store.open import open_store
from tests.store.records import a_record

store = open_store(sys.argv[1])
store.add([a_record()])
if sys.argv[2] == "again":
    atexit.register(lambda: store.add([a_record()]))
"""


@pytest.fixture
def url(mongo_set: str, mongo_database: Database[dict[str, Any]]) -> str:
    database = mongo_database.client[f"{mongo_database.name}-told"]
    for name in database.list_collection_names():
        database[name].delete_many({})
    return f"{with_database(mongo_set, database.name)}&timeoutMS={PATIENCE * 1000:.0f}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_mongodb(url)) as store:
        yield store


@pytest.mark.parametrize(("how", "count"), [("once", 1), ("again", 2)])
def test_a_program_that_ends_without_closing_its_store_has_told_all(
    url: str, store: Store, how: str, count: int
) -> None:
    cursor = now_cursor(store)

    subprocess.run([sys.executable, "-c", ADD, url, how], check=True, timeout=60)

    assert names_told(store, cursor) == ["waiting"] * count


def test_a_child_tells_what_it_does_and_leaves_to_its_parent_what_is_its_own(store: Store) -> None:
    cursor = now_cursor(store)
    store.add([a_record()])

    def claim_in_child() -> None:
        assert len(claim(store).records) == 1
        assert "processing" in names_told(store, cursor)
        store.close()

    in_child(claim_in_child)

    assert sorted(names_told(store, cursor)) == ["processing", "waiting"]


def test_a_store_that_was_never_used_in_a_child_has_nothing_to_finish_there(store: Store) -> None:
    store.add([a_record()])

    in_child(store.close)

    assert names_told(store, OLDEST) == ["waiting"]


def test_who_tells_more_than_may_wait_is_held_up_until_it_is_told(url: str, store: Store) -> None:
    connection = Connection(parse(url))
    telling = EventWriter(connection, EventLog(connection))
    ids = [ObjectId() for _ in range(BUFFER_LIMIT + 1)]

    telling.submit([status_event(id, 0, "waiting", NOON, Status.WAITING) for id in ids])

    events, cursor = store.events(OLDEST, limit=BUFFER_LIMIT)
    last, _ = store.events(cursor)
    assert [event.job_id for event in (*events, *last)] == ids
    telling.close()
    connection.close()


@pytest.fixture
def patient(url: str) -> Iterator[EventWriter]:
    """Return a telling that has told something and lets everything gather that nobody waits for."""
    connection = Connection(parse(url))
    with (
        closing(connection),
        closing(EventWriter(connection, EventLog(connection), start_delay=3600.0, pause=3600.0)) as telling,
    ):
        telling.submit([status_event(ObjectId(), 0, "waiting", NOON, Status.WAITING)])
        telling.flush()
        yield telling


@pytest.mark.parametrize("status", [Status.WAITING, Status.PROCESSING])
def test_what_nobody_waits_for_is_one_page(store: Store, patient: EventWriter, status: Status) -> None:
    before = now_cursor(store)
    for _ in range(3):
        patient.submit([status_event(ObjectId(), 0, status.name.lower(), NOON, status)])
    patient.flush()

    assert names_told(store, before) == [status.name.lower()] * 3
    assert int(now_cursor(store)) == int(before) + 1


def test_an_end_is_told_at_once_with_all_that_was_before(store: Store, patient: EventWriter) -> None:
    before = now_cursor(store)
    id = ObjectId()
    for status in (Status.WAITING, Status.PROCESSING, Status.DONE):
        patient.submit([status_event(id, 1, status.name.lower(), NOON, status)])

    assert eventually(lambda: names_told(store, before)) == ["waiting", "processing", "done"]


def test_a_page_of_events_is_read_in_pieces(store: Store) -> None:
    records = [a_record() for _ in range(7)]
    store.add(records)

    seen, cursor = [], OLDEST
    while events := store.events(cursor, limit=3)[0]:
        seen += [event.job_id for event in events]
        cursor = events[-1].cursor

    assert seen == [record.id for record in records]


class Interrupted(BaseException):
    """What a signal handler raises, anywhere."""


class InterruptedTelling(EventWriter):
    """A telling whose first start is interrupted."""

    interrupted = False

    def _start(self) -> None:
        if not self.interrupted:
            self.interrupted = True
            raise Interrupted
        super()._start()


@pytest.mark.parametrize("next_call", ["submit", "flush", "close"])
def test_whoever_comes_after_an_interruption_tells_what_was_left(url: str, store: Store, next_call: str) -> None:
    connection = Connection(parse(url))
    telling = InterruptedTelling(connection, EventLog(connection))
    ids = [ObjectId(), ObjectId()]
    with pytest.raises(Interrupted):
        telling.submit([status_event(ids[0], 0, "waiting", NOON, Status.WAITING)])

    if next_call == "submit":
        telling.submit([status_event(ids[1], 0, "waiting", NOON, Status.WAITING)])
    if next_call != "close":
        telling.flush()
    telling.close()

    assert [event.job_id for event in store.events(OLDEST)[0]] == ids[: 1 + (next_call == "submit")]
    connection.close()


def test_threads_of_a_child_begin_together(store: Store) -> None:
    store.add([a_record()])

    def add_in_threads() -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: store.add([a_record()]), range(40)))
        store.close()

    in_child(add_in_threads)

    assert names_told(store, OLDEST) == ["waiting"] * 41
