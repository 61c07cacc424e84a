"""A writer that dies between two statements: whoever comes next completes what it began, or undoes it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pytest
from bson import ObjectId
from pymongo.collection import Collection
from pymongo.database import Database

from taskqueue.model.history import Step, entries
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Awaiting, Done, Failed, GivenUp, Interrupted, Outcome
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.limits import Limit, Rate, lane
from taskqueue.model.query import parse
from taskqueue.model.record import Dependency, Holder, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.model.schedules import Every
from taskqueue.model.schedules.origin import FromSchedule, Series
from taskqueue.model.schedules.schedule import NamedSchedule, next_version
from taskqueue.store import ClaimRequest, Lease, Note, Settlement, Store
from taskqueue.store.bell import ENDS, WORK
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.mongodb.connection import Collections, Connection
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import parse as parsed
from tests.nodes import eventually
from tests.servers import with_database
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    NOON,
    PATIENCE,
    SECOND,
    WEB_1,
    WEB_2,
    a_record,
    behind,
    claim,
    postponed,
    rings,
    running,
    settlement,
)

Document: TypeAlias = dict[str, Any]

STATEMENTS = {
    *("aggregate", "bulk_write", "delete_many", "delete_one", "find", "find_one", "find_one_and_update"),
    *("insert_many", "insert_one", "replace_one", "update_many", "update_one"),
}
LATER = NOON + 2 * HOUR


class Death(BaseException):
    """The process is gone; nothing catches it."""


@dataclass
class StatementCutter:
    """Counts the statements of a store, and ends it behind one of them."""

    last: int | None = None
    done: int = 0

    def cut(self) -> None:
        """Raise ``Death`` in every thread once the last statement was done."""
        if self.last is not None and self.done >= self.last:
            raise Death

    def count(self) -> None:
        self.done += 1
        self.cut()


class CutCollection:
    """A real collection whose statements are counted."""

    def __init__(self, real: Collection[Document], cutter: StatementCutter) -> None:
        self._real = real
        self._shears = cutter

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        if name == "database":
            return CutDatabase(attribute, self._shears)
        if name == "with_options":
            return lambda **options: CutCollection(attribute(**options), self._shears)
        if name not in STATEMENTS:
            return attribute

        def counted(*args: Any, **options: Any) -> Any:
            self._shears.cut()
            answer = attribute(*args, **options)
            self._shears.count()
            return answer

        return counted


class CutDatabase:
    """A real database whose commands are counted."""

    def __init__(self, real: Database[Document], cutter: StatementCutter) -> None:
        self._real = real
        self._shears = cutter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def command(self, *args: Any, **options: Any) -> Any:
        self._shears.cut()
        answer = self._real.command(*args, **options)
        self._shears.count()
        return answer


class CutConnection(Connection):
    """A connection whose collections are counted once it is told to."""

    cutter: StatementCutter | None = None

    @property
    def collections(self) -> Collections:
        real = super().collections
        if self.cutter is None:
            return real
        cut: dict[str, Any] = {name: CutCollection(each, self.cutter) for name, each in vars(real).items()}
        return Collections(**cut)


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operation: what is there before it, what it does, and what the next process does after it was cut off."""

    before: Callable[[Store], Any]
    act: Callable[[Store, Any], object]
    after: Callable[[Store, Any], object] = field(default=lambda store, found: None)


ONE, TWO, THREE, FOUR = (ObjectId(f"{number:024x}") for number in range(1, 5))
RETRIED = Options(retry=FixedRetry(times=3, interval=60))


def _run_with_two_behind(store: Store) -> Record:
    run = running(store, a_record(id=ONE, unique="k"))
    store.add([behind(ONE, id=TWO), behind(ONE, id=THREE)])
    return run


def _two_runs(store: Store) -> list[Record]:
    store.add([a_record(id=ONE), a_record(id=TWO, options=RETRIED), behind(ONE, TWO, id=THREE)])
    return [replace(one, started_at=NOON) for one in claim(store, 2).records]


def _settle_two(store: Store, runs: list[Record]) -> object:
    return store.settle([settlement(runs[0]), settlement(runs[1], Failed(failure=BROKEN))], NOON + SECOND)


def _batch(store: Store) -> list[Record]:
    """Claim a batch: a job for which one waits, one on which another depends, one to be retried, and others."""
    plain = [a_record(id=ObjectId(f"{number:024x}")) for number in range(11, 16)]
    store.add([*plain, a_record(id=ONE, options=RETRIED), behind(plain[0].id, id=TWO)])
    store.add([_dependent(plain[-1].id, id=THREE), behind(THREE, id=FOUR)])
    return [replace(one, started_at=NOON) for one in claim(store, 6).records]


def _settle_batch(store: Store, runs: list[Record]) -> object:
    failed: dict[JobId, Outcome] = {ONE: Failed(failure=BROKEN), runs[4].id: GivenUp(failure=BROKEN)}
    return store.settle([settlement(run, failed.get(run.id)) for run in runs], NOON + SECOND)


def _canceled_run(store: Store) -> Record:
    run = running(store, a_record(id=ONE))
    store.add([behind(ONE, id=TWO)])
    store.cancel(ONE, "not needed", NOON)
    return run


def _waiting_with_one_behind(store: Store) -> Record:
    [record, _] = store.add([a_record(id=ONE, unique="k"), behind(ONE, id=TWO)])
    return record


def _replace(cancel_running: str | None) -> Callable[[Store, Record], object]:
    return lambda store, old: store.replace(a_record(id=FOUR, unique="k"), old, cancel_running, NOON)


def _ended_parent(store: Store) -> None:
    run = running(store, a_record(id=ONE))
    store.settle([settlement(run)], NOON)


def _add_behind(store: Store, _: object) -> object:
    return store.add([behind(ONE, id=TWO), a_record(id=THREE)])


def _due_and_late(store: Store) -> None:
    store.add([postponed(NOON, id=ONE), a_record(id=TWO, expires_at=NOON), behind(TWO, id=THREE)])


def _claim_all(store: Store, _: object) -> object:
    return claim(store, 10)


def _about_due(store: Store) -> None:
    store.add([postponed(NOON + store.early_by, id=ONE), postponed(NOON + store.early_by, id=TWO)])


def _claim_ahead(store: Store, _: object) -> object:
    wanted = ClaimRequest(pooled=10, due_by=NOON + store.early_by)
    return store.claim(WEB_1, wanted, NOON, NOON + LEASE)


def _claim_alone(store: Store, new: Record) -> None:
    with closing(store.bell(WORK)) as bell:
        claim(store, 10)
        store.add([new])
        assert rings(bell)
        claim(store, 10)


def _add_and_give_back(store: Store, new: Record) -> None:
    store.add([new])
    _give_back(store, new)


def finds_listeners(store: MongoStore) -> bool:
    """Ring, which has the store look who listens."""
    store._host_bells.ring()
    return store._host_bells.has_listeners


def _settle_heard(store: Store, run: Record) -> None:
    """Settle while somebody on this host listens."""
    assert isinstance(store, MongoStore)
    with closing(store.bell(ENDS)):
        eventually(lambda: finds_listeners(store))
        store.settle([settlement(run)], NOON + SECOND)


def _give_back(store: Store, _: object) -> None:
    """Settle as lost what the dead claimer holds, as any node does once the leases have ended, and claim again."""
    over = store.expired(NOON + 2 * LEASE, 100)
    store.settle(
        [
            Settlement(claims=one.claims, holder=one.holder, after=lost(one, NOON))
            for one in over
            if one.holder is not None
        ],
        NOON,
    )
    claim(store, 10, now=NOON + SECOND)


def _recurring_run(store: Store) -> Record:
    return running(store, a_record(id=ONE, unique="k", origin=Series(id=ONE, trigger=Every(60))))


def _awaited_run(store: Store) -> Record:
    plan = NamedSchedule(name="p", trigger=Every(60), template=a_record(id=FOUR), awaits=ONE, created_at=NOON)
    store.replace_schedule(None, plan, [], NOON)
    return running(store, a_record(id=ONE, origin=FromSchedule(schedule="p", slot=NOON, trigger=Every(60))))


def _planned(store: Store) -> NamedSchedule:
    plan = NamedSchedule(
        name="p", trigger=Every(60, NOON), template=a_record(id=FOUR), next_run_at=NOON, created_at=NOON
    )
    store.replace_schedule(None, plan, [], NOON)
    running(store, a_record(id=ONE))
    return plan


def _fire(store: Store, plan: NamedSchedule) -> object:
    after = next_version(plan, fired=2, next_run_at=NOON + HOUR)
    return store.replace_schedule(plan, after, [a_record(id=TWO), behind(ONE, id=THREE)], NOON)


def _failing_with_a_chain(store: Store) -> Record:
    run = running(store, a_record(id=ONE))
    store.add([_dependent(ONE, id=TWO), _dependent(TWO, id=THREE), behind(THREE, id=FOUR)])
    return run


def _dependent(awaited: JobId, **fields: Any) -> Record:
    return behind(awaited, depends_on=(Dependency(id=awaited),), **fields)


def _fail(store: Store, run: Record) -> object:
    return store.settle([settlement(run, GivenUp(failure=BROKEN))], NOON + SECOND)


def _tree(store: Store) -> None:
    running(store, a_record(id=TWO, parent=ONE))
    store.add([a_record(id=ONE), a_record(id=THREE, parent=ONE), a_record(id=FOUR, parent=THREE)])


def _cancel_root(store: Store, _: object) -> object:
    return store.cancel(ONE, "not needed", NOON)


def _parent_with_an_ended_child(store: Store) -> Record:
    child = running(store, a_record(id=TWO, parent=ONE))
    parent = running(store, a_record(id=ONE))
    store.settle([settlement(child)], NOON)
    return parent


def _wait_for_children(store: Store, parent: Record) -> object:
    return store.settle([settlement(parent, Awaiting(ids=(TWO,)))], NOON + SECOND)


def _canceled_parent(store: Store) -> None:
    store.add([a_record(id=ONE)])
    store.cancel(ONE, "not needed", NOON)


def _add_children(store: Store, _: object) -> object:
    return store.add([a_record(id=TWO, parent=ONE), a_record(id=THREE, parent=TWO)])


ONE_AT_ONCE = lane([Limit(1)], "app:Mail", None)
TWO_A_MINUTE = lane([Rate(2, per=60), Limit(2)], "app:Mail", None)


def _limited_run(store: Store) -> Record:
    run = running(store, a_record(id=ONE, lane=ONE_AT_ONCE))
    store.renew(WEB_1, NOON + 10 * HOUR, {})
    store.add([a_record(id=TWO, lane=ONE_AT_ONCE)])
    return run


def _settle_and_claim_next(store: Store, run: Record) -> None:
    store.settle([settlement(run)], NOON + SECOND)
    claim(store, 9, now=NOON + HOUR)


def _settle_and_claim_later(store: Store, run: Record) -> None:
    """Settle as the next process would, and claim when the places of the dead claimer have expired."""
    store.settle([settlement(run)], NOON + SECOND)
    store.repair(LATER)
    claim(store, 9, now=NOON + HOUR + LEASE)


def _limited(store: Store) -> None:
    store.add([a_record(id=id, lane=TWO_A_MINUTE) for id in (ONE, TWO, THREE)])


def _claim_limited_later(store: Store, _: object) -> None:
    """Take back what the dead claimer holds; its places have expired with its leases, and a rate's a minute later."""
    later = NOON + HOUR
    lost_runs = [one for one in store.expired(later, 100) if one.holder is not None]
    back = [Settlement(claims=one.claims, holder=one.holder, after=lost(one, NOON)) for one in lost_runs if one.holder]
    store.settle(back, NOON)
    claim(store, 10, now=later)


CASES = {
    "add one with a key": Case(
        before=lambda store: a_record(id=ONE, unique="k"),
        act=lambda store, new: store.add([new]),
        after=lambda store, new: store.add([new]),
    ),
    "fail one on which a chain depends": Case(before=_failing_with_a_chain, act=_fail, after=_fail),
    "cancel a tree": Case(before=_tree, act=_cancel_root, after=_cancel_root),
    "wait for children": Case(before=_parent_with_an_ended_child, act=_wait_for_children, after=_wait_for_children),
    "add children of a canceled parent": Case(before=_canceled_parent, act=_add_children, after=_add_children),
    "settle one with a limit": Case(
        before=_limited_run,
        act=_settle_and_claim_next,
        after=_settle_and_claim_later,
    ),
    "claim some with limits": Case(before=_limited, act=_claim_all, after=_claim_limited_later),
    "settle an occurrence of a series": Case(
        before=_recurring_run,
        act=lambda store, run: store.settle([settlement(run)], NOON + SECOND),
        after=lambda store, run: store.settle([settlement(run)], NOON + SECOND),
    ),
    "settle a job that a schedule awaits": Case(
        before=_awaited_run,
        act=lambda store, run: store.settle([settlement(run)], NOON + SECOND),
        after=lambda store, run: store.settle([settlement(run)], NOON + SECOND),
    ),
    "start the jobs of a schedule": Case(before=_planned, act=_fire, after=_fire),
    "settle one that two wait for": Case(
        before=_run_with_two_behind,
        act=lambda store, run: store.settle([settlement(run)], NOON + SECOND),
        after=lambda store, run: store.settle([settlement(run)], NOON + SECOND),
    ),
    "settle two, one of them to be retried": Case(before=_two_runs, act=_settle_two, after=_settle_two),
    "settle a batch": Case(before=_batch, act=_settle_batch, after=_settle_batch),
    "settle one that was asked to be canceled": Case(
        before=_canceled_run,
        act=lambda store, run: store.settle([settlement(run, Interrupted())], NOON),
        after=lambda store, run: store.settle([settlement(run, Interrupted())], NOON),
    ),
    "cancel a waiting one": Case(
        before=_waiting_with_one_behind,
        act=lambda store, _: store.cancel(ONE, "not needed", NOON),
        after=lambda store, _: store.cancel(ONE, "not needed", NOON),
    ),
    "replace a waiting one": Case(before=_waiting_with_one_behind, act=_replace(None), after=_replace(None)),
    "replace a running one": Case(
        before=_run_with_two_behind, act=_replace("newer data"), after=_replace("newer data")
    ),
    "add one behind a job that has ended": Case(before=_ended_parent, act=_add_behind, after=_add_behind),
    "claim what is due, and end what is late": Case(before=_due_and_late, act=_claim_all, after=_give_back),
    "claim one that comes alone": Case(
        before=lambda store: a_record(id=ONE), act=_claim_alone, after=_add_and_give_back
    ),
    "settle one that somebody on this host waits for": Case(
        before=_run_with_two_behind,
        act=_settle_heard,
        after=lambda store, run: store.settle([settlement(run)], NOON + SECOND),
    ),
    "claim what is about to be due": Case(before=_about_due, act=_claim_ahead, after=_give_back),
}


@pytest.fixture(params=[3, pytest.param(1, marks=pytest.mark.long)])
def step(request: pytest.FixtureRequest) -> int:
    """Return the distance of the statements after which a writer dies: every day each third one."""
    return int(request.param)


@pytest.fixture
def database(mongo_database: Database[Document]) -> Database[Document]:
    """Return a database of our own."""
    return mongo_database.client[f"{mongo_database.name}-cut"]


@pytest.fixture
def url(mongo_set: str, database: Database[Document]) -> str:
    return f"{with_database(mongo_set, database.name)}&timeoutMS={PATIENCE * 1000:.0f}"


@pytest.fixture
def next_store(url: str) -> Iterator[Store]:
    """Return the store of the process that comes next."""
    with closing(open_mongodb(url)) as store:
        yield store


def emptied(database: Database[Document]) -> None:
    for name in database.list_collection_names():
        database[name].delete_many({})


def state(store: Store) -> dict[object, object]:
    """Return what matters of all records and schedules."""
    plans = {one.name: (one.version, one.next_run_at, one.awaits) for one in store.schedules()}
    found = store.find(parse({}))
    return dict(plans) | {
        one.id: (
            one.status,
            one.cause,
            one.unique,
            one.waiting_for,
            one.failures,
            one.holder is None,
            one.cancel is None,
        )
        for one in found
    }


def counted(store: Store) -> Counter[object]:
    """Return how many ends the history has counted, by minute and status."""
    minutes = entries(store.history(Step.MINUTE, NOON - HOUR, NOON + HOUR), Step.MINUTE)
    ends = ("done", "failed", "timeout", "canceled")
    return Counter({(one.at, end): getattr(one, end) for one in minutes for end in ends if getattr(one, end)})


def outcomes(store: Store) -> set[tuple[JobId, str]]:
    """Return the events that others rely on: how jobs ended, or that they are tried again."""
    return Outcomes(store).read()


class Outcomes:
    """A listener that has heard everything from the beginning."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursor = "0"
        self._heard: set[tuple[JobId, str]] = set()

    def read(self) -> set[tuple[JobId, str]]:
        """Return all outcomes heard so far."""
        events, self._cursor = self._store.events(self._cursor)
        self._heard |= {(one.job_id, one.name) for one in events if one.job_id and (one.ended or one.name == "retried")}
        return self._heard


def missing(store: Store, wanted: set[tuple[JobId, str]]) -> set[tuple[JobId, str]]:
    """Return what is not told: a number that the dead took and never used holds listeners up for a moment."""
    listener = Outcomes(store)
    patience = time.monotonic() + PATIENCE
    while (lacking := wanted - listener.read()) and time.monotonic() < patience:
        time.sleep(0.02)
    return lacking


def leftovers(database: Database[Document]) -> int:
    return database["taskqueue_jobs"].count_documents({"after.at": {"$exists": True}})


@pytest.mark.parametrize("name", CASES)
def test_what_was_cut_off_is_completed_or_undone_by_the_next(
    name: str, url: str, database: Database[Document], next_store: Store, step: int
) -> None:
    case = CASES[name]
    wanted_state, wanted_outcomes = undisturbed(case, database, next_store)
    all_ends = counted(next_store)
    statements = 1
    while True:
        emptied(database)
        found = case.before(next_store)
        if not cut_off(case, url, StatementCutter(last=statements), found):
            break

        next_store.repair(LATER)
        case.after(next_store, found)
        next_store.repair(LATER)

        assert state(next_store) == wanted_state, f"after statement {statements}"
        assert counted(next_store) <= all_ends, f"after statement {statements}"  # never twice
        assert missing(next_store, wanted_outcomes) == set(), f"after statement {statements}"
        assert leftovers(database) == 0, f"after statement {statements}"
        assert next_store.repair(LATER) == 0
        statements += step
    assert statements > 3


def test_jobs_that_a_schedule_has_started_are_added_even_if_it_is_removed_then(
    url: str, database: Database[Document], next_store: Store
) -> None:
    statements = 0
    while True:
        emptied(database)
        planned = _planned(next_store)
        if not cut_off(Case(before=_planned, act=_fire), url, StatementCutter(last=statements + 1), planned):
            break
        statements += 1

        [plan] = next_store.schedules()
        assert next_store.replace_schedule(plan, None, [], LATER)

        added = {job.id for job in next_store.find(parse({}))} >= {TWO, THREE}
        assert added is (plan.version > planned.version), f"after statement {statements}"
    assert statements >= 3


@pytest.mark.parametrize("starts", [None, [], "garbage", [None], [{}]])
def test_a_schedule_whose_started_jobs_cannot_be_read_can_be_removed(
    database: Database[Document], next_store: Store, starts: object
) -> None:
    emptied(database)
    plan, plans = _planned(next_store), database["taskqueue_plans"]
    plans.update_one({"_id": plan.name}, {"$set": {"starts_at": plan.created_at, "starts": starts}})
    assert next_store.repair(LATER) == 1
    assert next_store.repair(LATER) == 0

    plans.update_one({"_id": plan.name}, {"$set": {"starts_at": plan.created_at}, "$unset": {"starts": ""}})
    assert next_store.replace_schedule(plan, None, [], LATER)

    assert next_store.schedules() == []


def finish(store: Store) -> None:
    """Have the store do what it has left to its thread, which comes before it reads what was told."""
    store.events(None)


def undisturbed(
    case: Case, database: Database[Document], store: Store
) -> tuple[dict[object, object], set[tuple[JobId, str]]]:
    """Return what the operation leads to if nobody dies."""
    emptied(database)
    found = case.before(store)
    case.act(store, found)
    finish(store)
    assert leftovers(database) == 0
    return state(store), outcomes(store)


def cut_off(case: Case, url: str, cutter: StatementCutter, found: Any) -> bool:
    """Act in a process that dies behind one of its statements, and tell whether it came so far."""
    connection = CutConnection(parsed(url))
    try:
        with closing(MongoStore(connection)) as store:
            connection.cutter = cutter
            case.act(store, found)
            finish(store)
    except Death:
        return True
    return False


def test_a_successor_whose_key_was_taken_meanwhile_is_dropped(
    url: str, database: Database[Document], next_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    emptied(database)
    old = _waiting_with_one_behind(next_store)
    case = CASES["replace a waiting one"]
    statements = 1
    while (
        cut_off(case, url, StatementCutter(last=statements), old)
        and next_store.count(parse({"id": ONE, "status": "CANCELED"})) == 0
    ):
        statements += 1
    quicker = a_record(id=THREE, unique="k")
    assert next_store.add([quicker]) == [quicker]

    with caplog.at_level(logging.INFO):
        next_store.repair(LATER)

    assert f"job {FOUR} was dropped: another job has its unique key 'k'" in caplog.text
    assert next_store.find(parse({"unique": "k", "status": "WAITING"})) == [quicker]
    assert next_store.count(parse({"id": FOUR})) == 0
    assert leftovers(database) == 0


@pytest.mark.parametrize("removal", ["prune", "flush"])
def test_jobs_are_counted_right_soon_after_a_removal_that_was_cut_off(
    removal: str, url: str, database: Database[Document], step: int
) -> None:
    def remove(store: Store, _: object) -> None:
        if removal == "flush":
            store.flush()
        else:
            store.prune({Status.DONE: NOON + HOUR}, NOON - HOUR, 100)

    case, statements, is_cut = Case(before=lambda store: None, act=remove), 1, True
    while is_cut:
        emptied(database)
        with closing(MongoStore(Connection(parsed(url)))) as store:
            for id, at in ((ONE, NOON), (TWO, LATER)):
                run = running(store, a_record(id=id))
                store.renew(WEB_1, LATER, {id: Note(lines="sent")})
                store.settle([settlement(run, now=at)], at)
            assert sum(store.tally().values()) == 2  # it keeps the number of those that ended long before the last one
            is_cut = cut_off(case, url, StatementCutter(last=statements), None)

            store._retention.prune({}, NOON - HOUR, 100, store.now() + HOUR)

            kept = database["taskqueue_jobs"].distinct("_id")
            assert sum(store.tally().values()) == len(kept), f"after statement {statements}"
            if removal == "prune":
                assert len(store.log_lines(ONE)) == kept.count(ONE), f"after statement {statements}"
        statements += step
    assert statements > 5
    assert database["taskqueue_facts"].count_documents({"_id": {"$regex": "^removing"}}) == 0


def test_a_lease_and_a_note_are_one_statement_each_or_may_be_repeated(
    url: str, database: Database[Document], next_store: Store
) -> None:
    emptied(database)
    run = running(next_store, a_record(id=ONE))
    lease = Lease(name="lead", holder=WEB_1, since=NOON, until=NOON + LEASE)
    note = {ONE: Note(progress=50.0, progress_at=NOON, state='"half"')}
    for act in (
        lambda store, _: store.acquire(lease, NOON),
        lambda store, _: store.note(WEB_1, note),
        lambda store, _: store.renew(WEB_1, NOON + HOUR, note),
    ):
        case = Case(before=lambda store: None, act=act)
        statements = 0
        while cut_off(case, url, StatementCutter(last=statements + 1), None):
            statements += 1
        assert statements >= 1

    assert next_store.acquire(replace(lease, holder=WEB_2), NOON).holder == WEB_1
    [kept] = next_store.find(parse({"id": ONE}))
    assert (kept.status, kept.claims, kept.progress, kept.state) == (Status.PROCESSING, run.claims, 50.0, '"half"')
    assert next_store.settle([settlement(run, Done(result="1"))], NOON) == {ONE}


def test_a_claim_whose_claimer_died_before_it_knew_is_found_by_its_holder(
    url: str, database: Database[Document], next_store: Store
) -> None:
    emptied(database)
    next_store.add([a_record(id=ONE)])
    me = Holder(seat="web-9", incarnation="c1")
    case = Case(
        before=lambda store: None, act=lambda store, _: store.claim(me, ClaimRequest(pooled=1), NOON, NOON + LEASE)
    )
    taken = 0
    while not next_store.renew(me, NOON + LEASE, {}).claims:
        taken += 1
        assert cut_off(case, url, StatementCutter(last=taken), None)

    assert set(next_store.renew(me, NOON + LEASE, {}).claims) == {ONE}


@pytest.mark.parametrize("renews", [True, False])
def test_a_claim_that_failed_behind_the_use_of_a_limit_is_made_by_the_next_call(
    url: str, database: Database[Document], next_store: Store, renews: bool
) -> None:
    """The process lives on: it renews its leases and with them every use, also that of the claim it does not have."""
    statements = 0
    while True:
        emptied(database)
        next_store.add([a_record(id=ONE, lane=lane([Limit(1)], "app:Mail", None))])
        connection, cutter = CutConnection(parsed(url)), StatementCutter(last=statements + 1)
        with closing(MongoStore(connection)) as store:
            connection.cutter = cutter
            with suppress(Death):
                claim(store)
            cutter.last = None
            if next_store.count(parse({"id": ONE, "status": "WAITING"})) == 0:
                break
            statements += 1

            if renews:
                store.renew(WEB_1, NOON + HOUR, {})
            by = next_store if renews else store
            assert [record.id for record in claim(by).records] == [ONE], f"after statement {statements}"
    assert statements >= 3
