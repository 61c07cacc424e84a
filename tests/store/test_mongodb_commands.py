"""What a batch costs MongoDB, counted in commands: as many for a hundred jobs as for eight."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from taskqueue.daemon.node.maintenance import MAINTAIN_EVERY, PRUNE_BATCH, REPAIR_EVERY, TIDY_EVERY
from taskqueue.model.controls import Control, Kind
from taskqueue.model.history import Step
from taskqueue.model.limits import Limit, lane, limit_keys_of
from taskqueue.model.query import PENDING, parse
from taskqueue.model.record import Cause, Options, Record, Status
from taskqueue.store import Claim, Lease, Store
from taskqueue.store.bell import WORK, Bell
from taskqueue.store.fan_out import LISTEN_PAUSE
from taskqueue.store.mongodb import documents, open_mongodb
from taskqueue.store.mongodb.change_streams import FETCH, GLANCE, LONGEST_FETCH
from taskqueue.store.mongodb.claim_candidates import SCAN_WITHIN, SURE_FOR
from taskqueue.store.mongodb.retention import AT_ONCE
from taskqueue.store.server_clock import ESTIMATE_FOR
from tests.nodes import eventually
from tests.store.records import HOUR, LEASE, NOON, SECOND, WEB_1, a_record, claim, rings, settlement

NAME = f"commands-{os.getpid()}"
"""The database of this process: another worker must not drop it."""


class Commands(CommandListener):
    """Notes the name of every command that a client sends, and whether the calling thread waits for it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bool]] = []
        self.waits: list[int] = []
        """For how many milliseconds each fetch of a change stream waits on the server."""
        self.pipelines: list[list[dict[str, Any]]] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.sent.append((event.command_name, threading.current_thread() is threading.main_thread()))
        if event.command_name == "getMore" and "maxTimeMS" in event.command:
            self.waits.append(event.command["maxTimeMS"])
        if event.command_name == "aggregate":
            self.pipelines.append(list(event.command["pipeline"]))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass

    def waited_for(self, call: Callable[[], object]) -> list[str]:
        """Return the commands that a call waits for."""
        self.sent.clear()
        call()
        return [name for name, awaited in self.sent if awaited]

    def left_behind(self, store: Store) -> list[str]:
        """Return those that a thread has sent since for it: the store finishes them before it reads events."""
        store.events(None)
        return [name for name, awaited in self.sent if not awaited]


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
def store(mongo_set: str, commands: Commands) -> Iterator[Store]:
    """Open a store whose first job has gone through it."""
    with MongoClient[dict[str, Any]](mongo_set, event_listeners=[commands]) as client:
        with closing(open_mongodb(client[NAME])) as opened:
            opened.flush()
            opened.add([a_record()])
            opened.settle([settlement(run) for run in claim(opened).records], NOON)
            opened.events(None)
            yield opened
        client.drop_database(NAME)


@pytest.mark.parametrize("count", [1, 8, 100])
def test_a_turn_of_a_node_waits_for_two_writes_whatever_the_number_of_jobs(
    store: Store, commands: Commands, count: int
) -> None:
    store.add([a_record() for _ in range(count)])
    store.events(None)

    taken: list[Record] = []
    claimed = commands.waited_for(lambda: taken.extend(claim(store, count).records))
    assert claimed[-2:] == ["find", "update"]
    assert claimed[:-2] in ([], ["find"])  # what operators have decided is read a few times a second
    assert commands.left_behind(store) == ["findAndModify", "insert"]

    settlements = [settlement(run) for run in taken]
    assert len(settlements) == count
    assert commands.waited_for(lambda: store.settle(settlements, NOON)) == ["update", "find"]
    assert sorted(commands.left_behind(store)) == ["findAndModify", "insert", "update", "update"]


def test_a_job_alone_is_added_by_one_insert_and_told_by_another_that_nobody_waits_for(
    store: Store, commands: Commands
) -> None:
    assert commands.waited_for(lambda: store.add([a_record()])) == ["insert"]
    assert commands.left_behind(store) == ["findAndModify", "insert"]


def test_a_batch_is_looked_for_before_it_is_added_by_one_insert(store: Store, commands: Commands) -> None:
    records = [a_record() for _ in range(100)]

    assert commands.waited_for(lambda: store.add(records)) == ["find", "insert"]
    assert commands.left_behind(store) == ["findAndModify", "insert"]


def test_a_flush_removes_many_jobs_in_portions_that_have_a_time_each(store: Store, commands: Commands) -> None:
    store.add([a_record()])
    few = commands.waited_for(store.flush).count("delete")
    store.add([a_record() for _ in range(2 * AT_ONCE + 1)])
    removed: list[int] = []

    many = commands.waited_for(lambda: removed.append(store.flush())).count("delete")

    assert (many - few, removed) == (2, [2 * AT_ONCE + 1])
    assert store.find(parse({}), limit=1) == []


def test_a_claim_that_finds_nothing_only_reads(store: Store, commands: Commands) -> None:
    claim(store, 8)

    assert set(commands.waited_for(lambda: claim(store, 8))) == {"find", "distinct"}
    assert commands.left_behind(store) == []


def test_a_history_without_new_figures_is_not_written_to(store: Store, commands: Commands) -> None:
    store.tidy_history(NOON, 100)

    assert not {"insert", "update", "findAndModify"} & set(commands.waited_for(lambda: store.tidy_history(NOON, 100)))


def test_a_claim_that_finds_a_limit_full_reads_its_places_alone(store: Store, commands: Commands) -> None:
    with closing(store.bell(WORK)):
        store.add([a_record(lane=lane([Limit(1)], "app:Mail", None)) for _ in range(5)])
        assert len(claim(store, 8).records) == 1

        def only_places() -> bool:  # once the ring of the last addition is in
            return [name for name in commands.waited_for(lambda: claim(store, 8)) if name != "getMore"] == ["find"]

        eventually(only_places)


@pytest.mark.parametrize("declared", [[], [Limit(9)]])
def test_what_comes_behind_a_look_is_found_once_it_has_rung(store: Store, declared: list[Limit]) -> None:
    with closing(store.bell(WORK)) as bell:
        for _ in range(3):
            assert claim(store, 8, forced=8).records == []
            store.add([a_record(lane=lane(declared, "app:Mail", None))])
            assert rings(bell)
            [run] = eventually(lambda: claim(store, 8).records)
            store.settle([settlement(run)], NOON)


def rung(store: Store, bell: Bell, *records: Record, **demanded: Any) -> None:
    """Add the jobs behind a claim that finds nothing, and hear of each."""
    claim(store, 8, forced=8, **demanded)
    for record in records:
        store.add([record])
        assert rings(bell)


def but_controls(names: Sequence[str]) -> list[str]:
    """Return the commands without the read of what operators have decided, which comes a few times a second."""
    return (
        list(names[1:]) if len(names) > 1 and names[0] == "find" and names[1] in ("find", "findAndModify") else [*names]
    )


def test_a_job_that_comes_alone_is_claimed_by_one_command_and_nothing_is_looked_for(
    store: Store, commands: Commands
) -> None:
    with closing(store.bell(WORK)) as bell:
        rung(store, bell, a_record(), a_record())
        assert len(claim(store, 8, forced=8).records) == 2  # after which there is no other one
        for _ in range(3):
            taken: list[Claim] = []
            added = a_record()
            store.add([added])
            assert rings(bell)

            claimed = commands.waited_for(lambda into=taken: into.append(claim(store, 8, forced=8)))  # type: ignore[misc]

            assert claimed in (["findAndModify"], ["find", "findAndModify"])
            [run] = taken[0].records
            assert run == replace(
                added, status=Status.PROCESSING, cause=Cause.CLAIMED, holder=WEB_1, claims=1, ready_at=NOON + LEASE
            )
            assert taken[0].next_at == NOON + SURE_FOR
            assert store.settle([settlement(run)], NOON) == {added.id}
        assert "distinct" in commands.waited_for(lambda: claim(store, 8, forced=8, now=NOON + SURE_FOR))


def test_jobs_that_come_together_are_claimed_together_and_nothing_else_is_looked_for(
    store: Store, commands: Commands
) -> None:
    with closing(store.bell(WORK)) as bell:
        added = [a_record() for _ in range(3)]
        rung(store, bell, *added)
        taken: list[Claim] = []

        claimed = commands.waited_for(lambda: taken.append(claim(store, 8, forced=8)))

        assert but_controls(claimed) == ["find", "update"]
        assert [run.id for run in taken[0].records] == [one.id for one in added]
        assert taken[0].next_at == NOON + SURE_FOR


@pytest.mark.parametrize(
    "other",
    [
        a_record(lane=lane([Limit(9)], "app:Mail", None)),
        a_record(options=Options(force_spawn=True)),
        a_record(status=Status.POSTPONED, ready_at=NOON + HOUR),
    ],
    ids=["limited", "own worker", "due later"],
)
def test_a_job_beside_another_kind_is_taken_before_the_node_looks_what_else_is_due(
    store: Store, commands: Commands, other: Record
) -> None:
    with closing(store.bell(WORK)) as bell:
        plain = a_record()
        rung(store, bell, plain, replace(other, id=ObjectId()))
        taken: list[Claim] = []

        claimed = commands.waited_for(lambda: taken.append(claim(store, 8, forced=8)))

        assert but_controls(claimed)[:2] == ["find", "update"]
        assert [run.id for run in taken[0].records] == [plain.id]
        assert taken[0].next_at == NOON + SCAN_WITHIN
        assert "distinct" in commands.waited_for(lambda: claim(store, 8, forced=8))


def test_a_job_that_comes_alone_into_a_paused_queue_is_not_claimed(store: Store) -> None:
    with closing(store.bell(WORK)) as bell:
        store.set_control(Control(kind=Kind.PAUSE, name="mail", since=NOON, by="ann"))
        rung(store, bell, a_record(queue="mail"))

        assert claim(store, 8, forced=8).records == []


def test_a_job_that_comes_alone_and_cannot_be_read_is_ended_by_the_next_scan(store: Store, mongo_set: str) -> None:
    with closing(store.bell(WORK)) as bell, MongoClient[dict[str, Any]](mongo_set) as client:
        rung(store, bell)
        record = a_record(priority=-1)
        document = documents.document(record) | {"claims": "x"}
        client[NAME]["taskqueue_jobs"].insert_one(document)
        assert rings(bell)

        assert claim(store, 8, forced=8).records == []
        assert claim(store, 8, forced=8, now=NOON + SURE_FOR).records == []

        ended = client[NAME]["taskqueue_jobs"].find_one({"_id": record.id}, {"status": 1})
        assert ended == {"_id": record.id, "status": Status.FAILED}


def test_no_fetch_waits_on_the_server_while_a_node_gets_all_it_wants(store: Store, commands: Commands) -> None:
    with closing(store.bell(WORK)):
        store.add([a_record() for _ in range(500)])

        def glances() -> bool:
            assert len(claim(store, 1).records) == 1
            return commands.waits[-1:] == [round(GLANCE * 1000)]

        eventually(glances)
        claim(store, 500)
        commands.waits.clear()
        eventually(lambda: round(FETCH * 1000) in commands.waits)


def test_a_bell_that_is_closed_ends_the_fetch_that_waits_for_it(store: Store, commands: Commands) -> None:
    bell = store.bell(WORK)
    eventually(lambda: commands.waits)

    assert commands.waited_for(bell.close) == ["killCursors", "update"]  # the server heeds that at the next write

    eventually(lambda: bell.is_over)  # type: ignore[attr-defined]


def test_an_idle_node_sends_few_commands_in_a_minute(store: Store, commands: Commands) -> None:
    lease, name = 30, "seat:web-1"
    seat = Lease(name=name, holder=WEB_1, since=NOON, until=NOON + LEASE)
    each: list[tuple[Callable[[], object], float]] = [
        (lambda: store.renew(WEB_1, NOON + LEASE, {}), lease / 3),
        (lambda: store.acquire(seat, NOON), lease / 3),
        (lambda: store.acquire(replace(seat, name="lead"), NOON), lease / 3),
        (store.leases, lease / 3),
        (lambda: store.repair(NOON), REPAIR_EVERY),
        (lambda: store.tidy_history(NOON, PRUNE_BATCH), TIDY_EVERY),
        (lambda: store.prune({}, NOON - HOUR, PRUNE_BATCH), MAINTAIN_EVERY),
        (store.schedules, MAINTAIN_EVERY),
        (lambda: store.due(NOON, 100), MAINTAIN_EVERY),
        (lambda: claim(store, 8, forced=8), LISTEN_PAUSE),
        (store.controls, LISTEN_PAUSE),
    ]
    for call, _ in each:
        call()
    sent = sum(60 / seconds * len(commands.waited_for(call)) for call, seconds in each)

    assert sent + 60 / LONGEST_FETCH + 60 / ESTIMATE_FOR <= 135  # it was 300


def test_the_server_finds_in_its_log_alone_what_rings(store: Store, commands: Commands, mongo_set: str) -> None:
    with MongoClient[dict[str, Any]](mongo_set) as client:
        began = client.admin.command("ping")["operationTime"]
        with closing(store.bell(WORK)):
            [_, *stages] = commands.pipelines[-1]
            store.add([a_record() for _ in range(20)])
            store.settle([settlement(run) for run in claim(store, 20).records], NOON)
            store.events(None)
        stream = {"$changeStream": {"startAtOperationTime": began}}
        asked = {"aggregate": 1, "pipeline": [stream, *stages], "cursor": {}}
        told = client[NAME].command({"explain": asked, "verbosity": "executionStats"})

    looked = told["stages"][0]["$cursor"]["executionStats"]
    assert looked["totalDocsExamined"] > 60  # an insert, a claim and an outcome for each
    assert looked["nReturned"] == 20  # of which an event is built


def test_the_text_of_an_id_is_found_by_its_index(store: Store, mongo_set: str) -> None:
    store.add([*(a_record() for _ in range(200)), a_record(given={"id": "invoice-7"})])

    with MongoClient[dict[str, Any]](mongo_set) as client:
        client[NAME].command("profile", 2)
        assert len(store.find(parse({"id_text": "invoice-7"}), limit=6)) == 1
        client[NAME].command("profile", 0)
        [seen] = client[NAME]["system.profile"].find({"planSummary": {"$regex": "given.id"}})

    assert seen["docsExamined"] == 1


def test_figures_of_a_time_look_at_no_more_records_than_they_may(store: Store, mongo_set: str) -> None:
    store.add([a_record() for _ in range(200)])
    store.settle([settlement(run) for run in claim(store, 200).records], NOON)

    with MongoClient[dict[str, Any]](mongo_set) as client:
        client[NAME].command("profile", 2)
        assert len(store.samples(NOON - HOUR, NOON + HOUR, 10)) == 10
        client[NAME].command("profile", 0)
        [seen] = client[NAME]["system.profile"].find({"op": "query", "command.hint": "outcomes"})

    assert seen["docsExamined"] == 10
    assert seen["keysExamined"] < 20


def test_a_count_with_a_bound_looks_at_no_more_records_than_that(store: Store, mongo_set: str) -> None:
    store.add([a_record() for _ in range(200)])

    with MongoClient[dict[str, Any]](mongo_set) as client:
        assert walked(client[NAME], lambda: store.count(PENDING, 20)) <= 21

    assert store.count(PENDING, 20) == 20


def test_a_backlog_of_a_paused_queue_is_not_walked(store: Store, mongo_set: str) -> None:
    store.set_control(Control(kind=Kind.PAUSE, name="mail", since=NOON, by="ann"))
    store.add([a_record(queue="mail", ready_at=NOON - HOUR) for _ in range(1000)])
    store.add([a_record(queue=queue) for queue in ("reports", "images") for _ in range(10)])
    with MongoClient[dict[str, Any]](mongo_set) as client:
        client[NAME].command("profile", 2)
        taken = claim(store, 8).records
        client[NAME].command("profile", 0)
        told = client[NAME]["system.profile"].find({"ns": f"{NAME}.taskqueue_jobs"})
        walked = sum(one.get("keysExamined", 0) for one in told)

    assert {one.queue for one in taken} <= {"reports", "images"}
    assert len(taken) == 8
    assert walked < 100


def walked(database: Database[dict[str, Any]], call: Callable[[], object], collection: str = "jobs") -> int:
    """Return how many keys of a collection the server examines for a call."""
    database["system.profile"].drop()
    database.command("profile", 2)
    call()
    database.command("profile", 0)
    told = database["system.profile"].find({"ns": f"{NAME}.taskqueue_{collection}"})
    return sum(one.get("keysExamined", 0) for one in told)


def test_a_claim_among_many_lanes_reads_the_room_of_some(store: Store, mongo_set: str) -> None:
    lanes = [lane([Limit(1, by="customer")], "app:Mail", {"customer": number}) for number in range(2_000)]
    store.add([a_record(lane=one) for one in lanes])
    with MongoClient[dict[str, Any]](mongo_set) as client:
        keys = [limit_key.key for one in lanes for limit_key in limit_keys_of(one)]
        client[NAME]["taskqueue_slots"].insert_many([{"_id": key, "held": []} for key in keys])

        assert walked(client[NAME], lambda: claim(store, 8), "slots") < 1_500


def test_a_pause_among_many_queues_has_no_claim_walk_what_waits_in_the_others(store: Store, mongo_set: str) -> None:
    store.set_control(Control(kind=Kind.PAUSE, name="customer-0", since=NOON, by="ann"))
    store.add([a_record(queue=f"customer-{number % 250}") for number in range(5_000)])
    with MongoClient[dict[str, Any]](mongo_set) as client, closing(store.bell(WORK)):

        def claim_some() -> None:
            assert len(claim(store, 8).records) == 8

        assert walked(client[NAME], claim_some) < 1_500  # the first job of each queue is looked up, and not again
        assert walked(client[NAME], claim_some) < 500


def insert_many(database: Database[dict[str, Any]], records: Sequence[Record]) -> None:
    database["taskqueue_jobs"].insert_many([documents.document(record) for record in records], ordered=False)


def test_pending_jobs_are_listed_without_a_walk_of_all_that_have_ended(store: Store, mongo_set: str) -> None:
    mail, waiting = {"queue": "mail", "status": 0}, {"status": 0}
    late = {"status": {"$lt": 2}, "queue": "mail", "ready_at": {"$lt": NOON}}
    added_late = {"status": 0, "created_at": {"$gt": NOON}}
    with MongoClient[dict[str, Any]](mongo_set) as client:

        def insert(number: int, **fields: Any) -> None:
            insert_many(client[NAME], [a_record(**fields) for _ in range(number)])

        def found(fields: dict[str, Any], order: str) -> int:
            return walked(client[NAME], lambda: store.find(parse(fields), order=order, limit=20))

        insert(10_000, created_at=NOON - HOUR, status=Status.DONE, ended_at=NOON)
        insert(30, queue="mail")
        insert(30, queue="mail", status=Status.POSTPONED, ready_at=NOON - HOUR)
        insert(3_000, status=Status.POSTPONED, ready_at=NOON + HOUR)
        insert(3_000)
        insert(10_000, created_at=NOON + HOUR, status=Status.DONE, ended_at=NOON)

        for order in ("created_at", "-created_at", "id", "-id"):
            assert found(mail, order) < 200
            assert found(late, order) < 200
            assert found(waiting, order) < 20_000  # some of all are walked in order before the 3,000 are sorted
        assert found(added_late, "created_at") < 14_000


@pytest.mark.parametrize("order", ["id", "-id", "created_at", "-created_at"])
def test_pages_of_some_statuses_have_no_gaps_where_many_are_walked(store: Store, mongo_set: str, order: str) -> None:
    with MongoClient[dict[str, Any]](mongo_set) as client:
        for status in (Status.DONE, Status.WAITING, Status.DONE, Status.POSTPONED):
            ended_at = NOON if status is Status.DONE else None
            times = [NOON + number // 7 * SECOND for number in range(1_300)]
            insert_many(client[NAME], [a_record(status=status, created_at=at, ended_at=ended_at) for at in times])
    pending, name = parse({"status": {"$lt": int(Status.DONE)}}), order.removeprefix("-")
    found: list[Record] = []

    while page := store.find(
        pending, order=order, limit=900, after=(getattr(found[-1], name), found[-1].id) if found else None
    ):
        found += page

    assert len(found) == 2_600
    assert found == sorted(found, key=lambda one: (getattr(one, name), one.id), reverse=order.startswith("-"))


def test_many_queues_are_counted_by_few_commands(store: Store, commands: Commands) -> None:
    store.add([a_record(queue=f"customer-{number}") for number in range(200)])

    assert len(store.tally()) == 1 + len(store.waiting_since()) == 201
    assert len(commands.waited_for(lambda: (store.tally(), store.waiting_since()))) < 20


def test_only_a_time_with_jobs_that_are_not_counted_yet_is_counted(store: Store, commands: Commands) -> None:
    store.add([a_record(created_at=at) for at in (NOON - 2 * HOUR, NOON)])
    while store.tidy_history(NOON - HOUR, 10):
        pass
    store.events(None)

    def read(begin: datetime) -> list[str]:
        return commands.waited_for(lambda: store.history(Step.MINUTE, begin, begin + HOUR - SECOND))

    assert read(NOON - 4 * HOUR) == ["find", "find"]
    assert read(NOON) == ["find", "find", "aggregate", "find"]
    [matched, *_] = commands.pipelines[-1]
    millisecond = timedelta(milliseconds=1)
    assert matched["$match"] == {"created_at": {"$gt": NOON - millisecond, "$lte": NOON + HOUR - millisecond}}
