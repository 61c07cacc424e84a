"""What only the MongoDB store has: prefixes, clients of the caller, servers without replica set, large batches."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from bson import ObjectId
from pymongo.collection import Collection
from pymongo.database import Database

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.model.controls import Control, Kind
from taskqueue.model.lifecycle.outcomes import Done, Failed, Outcome
from taskqueue.model.limits import Limit, lane, limit_keys_of
from taskqueue.model.query import parse
from taskqueue.model.record import Options, Record, Status, changed
from taskqueue.model.retry import FixedRetry
from taskqueue.model.serializer import encode
from taskqueue.store import ClaimRequest, Store
from taskqueue.store.bell import CONTROLS, NEWS, PLANS, STOPS, WORK
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.mongodb.connection import Collections, Connection
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import parse as parsed
from tests.forking import fork
from tests.servers import with_database
from tests.store.records import (
    BROKEN,
    HOUR,
    NOON,
    PATIENCE,
    SECOND,
    WEB_1,
    WEB_2,
    a_record,
    claim,
    ids,
    kept,
    now_cursor,
    postponed,
    rings,
    running,
    settle,
    settlement,
    told,
)

Document: TypeAlias = dict[str, Any]


@pytest.fixture
def database(mongo_database: Database[Document]) -> Database[Document]:
    """Return an empty database."""
    database = mongo_database.client[f"{mongo_database.name}-own"]
    for name in database.list_collection_names():
        database[name].delete_many({})
    return database


@pytest.fixture
def url(mongo_set: str, database: Database[Document]) -> str:
    return f"{with_database(mongo_set, database.name)}&timeoutMS={PATIENCE * 1000:.0f}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_mongodb(url)) as store:
        yield store


def in_a_child(store: Store, record: Record) -> int:
    """Add the record in a forked child and return the child's exit code."""
    child = fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            store.add([record])
            store.close()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_systems_with_different_prefixes_share_a_database(url: str) -> None:  # row 115
    with closing(open_mongodb(url)) as one, closing(open_mongodb(f"{url}&taskqueue.prefix=mail_")) as other:
        one.add([a_record()])

        assert (one.count(parse({})), other.count(parse({}))) == (1, 0)
        assert other.url.endswith("taskqueue.prefix=mail_")


def test_a_database_of_the_caller_is_used_and_stays_open(database: Database[Document]) -> None:
    record = a_record(data=encode({"day": datetime(2026, 7, 1, tzinfo=timezone.utc), "id": UUID(int=7)}))
    with closing(open_mongodb(database)) as store:
        store.add([record])

        assert store.find(parse({})) == [record]
        assert database.name in store.url
        assert "mongodb://127.0.0.1:" in store.url

    assert database["taskqueue_jobs"].count_documents({}) == 1
    with pytest.raises(ConfigError, match="use up to 60 letters"):
        open_mongodb(database, prefix="$")


def test_people_and_queries_can_look_into_data(store: Store, database: Database[Document]) -> None:
    data = {"to": "ann", "n": 1, "price": Decimal("1.50"), "b": b"\0", "nested": {"list": [1, {"x": None}]}, "at": NOON}
    store.add([a_record(data=encode(data))])

    [found] = database["taskqueue_jobs"].find({"data.to": "ann", "data.nested.list": 1})
    assert list(found)[:3] == ["_id", "job", "data"]
    assert list(found["data"]) == list(data)
    assert found["data"]["at"] == NOON.replace(tzinfo=None)


def test_a_forked_child_opens_its_own_client(store: Store, database: Database[Document]) -> None:
    store.add([a_record()])
    added = a_record()

    assert in_a_child(store, added) == 0

    assert kept(store, added.id) == added


def test_a_forked_child_opens_its_own_client_for_a_database_of_the_caller(database: Database[Document]) -> None:
    with closing(open_mongodb(database)) as store:
        bell = store.bell(NEWS)
        added = a_record()

        assert in_a_child(store, added) == 0

        assert bell.fileno() >= 0
        assert kept(store, added.id) == added


def test_threads_share_a_store(store: Store) -> None:
    taken: list[ObjectId] = []
    store.add([a_record() for _ in range(60)])

    def work() -> None:
        while records := claim(store, 5).records:
            settled = store.settle([settlement(one) for one in records], NOON)
            taken.extend(settled)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert len(taken) == len(set(taken)) == 60


def test_a_server_without_replica_set_does_all_but_ring(mongo_standalone: str) -> None:
    name = f"alone-{ObjectId()}"
    with closing(open_mongodb(f"{with_database(mongo_standalone, name)}?timeoutMS={PATIENCE * 1000:.0f}")) as store:
        bell = store.bell(WORK)
        cursor = now_cursor(store)
        record = a_record()
        settle(store, running(store, record))

        assert kept(store, record.id).status is Status.DONE
        assert told(store, cursor) == ["waiting", "processing", "done"]
        assert bell.pause == 1.0
        bell.clear()
        assert "no failover" in store.guarantee


def test_what_is_guaranteed_is_said(store: Store) -> None:
    assert "survives a power cut" in store.guarantee


def test_closed_bells_are_forgotten(store: Store) -> None:
    for _ in range(3):
        for topic in (WORK, STOPS, NEWS):
            store.bell(topic).close()

    assert len([thread for thread in threading.enumerate() if thread.name == "taskqueue-bell"]) <= 9


def test_all_that_a_node_listens_to_comes_through_one_change_stream(store: Store) -> None:
    before = _streams()
    bells = [store.bell(topic) for topic in (WORK, STOPS, PLANS, CONTROLS)]
    assert _streams() - before == 1

    for bell in bells[:-1]:
        bell.close()
    assert _streams() - before == 1
    store.set_control(Control(kind=Kind.PAUSE, name="mail", since=NOON, by="", reason=""))
    assert rings(bells[-1])

    bells[-1].close()
    again = store.bell(WORK)
    store.add([a_record()])
    assert rings(again)


def _streams() -> int:
    return sum(thread.name == "taskqueue-bell" for thread in threading.enumerate())


def test_outcomes_too_large_for_one_statement_are_settled(store: Store) -> None:
    store.add([a_record(options=Options(retry=FixedRetry(times=1))) for _ in range(4)])
    runs = claim(store, 4).records
    large = '"' + "x" * 1_000_000 + '"'
    outcomes: list[Outcome] = [Done(result=large), Done(result=large), Done(result=large), Failed(failure=BROKEN)]

    assert store.settle([settlement(run, one) for run, one in zip(runs, outcomes, strict=True)], NOON) == set(ids(runs))

    assert [one.result for one in store.find(parse({}))] == [large, large, large, None]
    assert [one.status for one in store.find(parse({}))] == [Status.DONE] * 3 + [Status.POSTPONED]


def test_outcomes_of_several_holders_and_counts_of_claims_are_settled_together(store: Store) -> None:
    store.add([a_record(options=Options(retry=FixedRetry(times=1, interval=0))) for _ in range(3)])
    [again] = claim(store).records
    settle(store, again, Failed(failure=BROKEN))
    mine = claim(store, 2, holder=WEB_1, now=NOON + SECOND).records
    yours = claim(store, 2, holder=WEB_2, now=NOON + SECOND).records

    assert sorted(one.claims for one in (*mine, *yours)) == [1, 1, 2]
    assert store.settle([settlement(one) for one in (*mine, *yours)], NOON) == {one.id for one in (*mine, *yours)}
    assert store.settle([settlement(one) for one in mine], NOON) == set()


def test_counts_of_claims_may_differ_in_one_statement(store: Store) -> None:
    store.add([a_record(options=Options(retry=FixedRetry(times=1, interval=0))) for _ in range(2)])
    [again] = claim(store).records
    settle(store, again, Failed(failure=BROKEN))
    runs = claim(store, 2, now=NOON + SECOND).records

    assert sorted(one.claims for one in runs) == [1, 2]
    assert store.settle([settlement(one) for one in runs], NOON) == set(ids(runs))


def test_a_batch_of_like_and_unlike_jobs_is_kept_as_given(store: Store) -> None:
    like = a_record(queue="mail", given={"retry": 1})
    records = [
        like,
        changed(like, id=ObjectId(), data='{"to":1}', rank=like.rank + 1),
        changed(like, id=ObjectId(), given={"retry": True}),
        postponed(NOON + HOUR),
        changed(postponed(NOON + HOUR), ready_at=NOON + 2 * HOUR).at_rank(),
        changed(like, id=ObjectId(), expires_at=NOON + HOUR),
    ]

    store.add(records)

    assert [repr(kept(store, one.id)) for one in records] == [repr(one) for one in records]


def test_the_clock_is_the_servers_and_runs_on_without_asking(store: Store) -> None:
    first = store.now()
    second = store.now()

    assert timedelta(0) <= second - first < timedelta(seconds=PATIENCE)
    assert first.microsecond % 1000 == 0
    assert abs(first - datetime.now(timezone.utc)) < timedelta(seconds=PATIENCE)


def test_the_clock_is_in_utc_wherever_the_host_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert abs(store.now() - datetime.now(timezone.utc)) < timedelta(seconds=PATIENCE)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_counter_that_a_failover_turned_back_loses_no_event(store: Store, database: Database[Document]) -> None:
    cursor = now_cursor(store)
    for _ in range(5):
        store.add([a_record()])
        now_cursor(store)
    database["taskqueue_facts"].update_one({"_id": "events"}, {"$inc": {"reached": -4}})

    store.add([a_record()])

    assert told(store, cursor) == ["waiting"] * 6
    end = store.events(cursor)[1]
    database["taskqueue_facts"].update_one({"_id": "events"}, {"$inc": {"reached": -1}})
    assert store.events(end) == ([], end)


class Late:
    """A collection whose inserts first let somebody else act."""

    def __init__(self, real: Collection[Document], act: Any) -> None:
        self._real = real
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def insert_many(self, documents: Sequence[Document], **options: Any) -> Any:
        act, self._act = self._act, lambda: None
        act()
        return self._real.insert_many(documents, **options)


def test_an_event_whose_number_was_given_up_is_told_under_another(url: str, store: Store) -> None:
    cursor = now_cursor(store)
    heard: list[str] = []

    def others_give_up() -> None:
        nonlocal cursor
        store.add([a_record()])  # its number is behind the one that is missing
        while not heard:
            events, cursor = store.events(cursor)
            heard.extend(event.name for event in events)

    class LateConnection(Connection):
        late: Any = None

        @property
        def collections(self) -> Collections:
            real = super().collections
            self.late = self.late or Late(real.events, others_give_up)
            return Collections(**{**vars(real), "events": self.late})

    with closing(MongoStore(LateConnection(parsed(url)))) as slow:
        slow.add([a_record(), a_record()])

    assert heard == ["waiting"]
    assert told(store, cursor) == ["waiting", "waiting"]


def test_an_end_behind_a_number_that_is_never_used_is_read_at_once(store: Store, database: Database[Document]) -> None:
    cursor = now_cursor(store)
    store.add([a_record()])
    now_cursor(store)
    database["taskqueue_facts"].update_one({"_id": "events"}, {"$inc": {"reached": 3}})  # writers that died
    store.add([a_record()])
    store.add([a_record()])

    assert told(store, cursor) == ["waiting"] * 3  # no bell rings for the last ones again

    events, end = store.events(cursor)
    assert store.events(events[0].cursor)[0] == events[1:]
    assert store.events(end) == ([], end)


def test_what_expires_while_the_node_relies_on_its_last_look_is_ended_at_the_next_claim(store: Store) -> None:
    bell = store.bell(WORK)
    expiring = [a_record(expires_at=NOON + SECOND / 2, priority=-5) for _ in range(2)]
    fresh = a_record()
    store.add([*expiring, fresh])
    assert rings(bell)
    store.claim(WEB_1, ClaimRequest(pooled=0, forced=1, queues={}), NOON, NOON + HOUR)
    late = NOON + SECOND * 0.75

    claims = [claim(store, 2, now=late) for _ in range(3)]  # the first may pass by what has expired, and take the third

    assert [record.id for found in claims for record in found.records] == [fresh.id]
    assert {kept(store, record.id).status for record in expiring} == {Status.CANCELED}


@pytest.mark.parametrize("number", ["2", None, True])
def test_a_damaged_schema_number_is_told_in_words(url: str, database: Database[Document], number: object) -> None:
    open_mongodb(url).close()
    database["taskqueue_facts"].update_one({"_id": "schema"}, {"$set": {"version": number}})

    with pytest.raises(StoreUnavailable, match=r"schema number .* cannot be read"):
        open_mongodb(url)


@pytest.mark.parametrize("held", ["x", None, ["x"], [{"until": 1}]])
def test_damaged_uses_of_a_limit_stop_no_claim(store: Store, database: Database[Document], held: object) -> None:
    limited = a_record(lane=lane([Limit(1)], "app:Mail", None))
    [key] = limit_keys_of(limited.lane)
    database["taskqueue_slots"].insert_one({"_id": key.key, "held": held})
    store.add([limited])

    assert [one.id for one in claim(store).records] == [limited.id]


@pytest.mark.parametrize(("field", "value"), [("events", 1.5), ("events", None), ("at", "x")])
def test_a_damaged_page_of_events_stops_neither_readers_nor_retention(
    store: Store, database: Database[Document], field: str, value: object
) -> None:
    store.add([a_record()])
    start = now_cursor(store)
    pages = database["taskqueue_events"]
    page = pages.find_one({}, sort=[("_id", -1)])
    assert page is not None
    pages.update_one({"_id": page["_id"]}, {"$set": {field: value}})
    store.add([a_record()])

    assert "waiting" in told(store, start)
    assert "waiting" in told(store, "0")
    store.prune({}, NOON + timedelta(days=9), 100)
