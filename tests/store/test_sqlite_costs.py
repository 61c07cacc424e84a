"""What calls cost SQLite, counted in steps of its virtual machine: nothing grows with what is finished or not due."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskqueue.model import unique_period
from taskqueue.model.controls import Control, Kind
from taskqueue.model.lifecycle.outcomes import Done, GivenUp
from taskqueue.model.limits import Limit, lane
from taskqueue.model.query import EVERYTHING, PENDING, And, Compare, Operator, Query, parse
from taskqueue.model.record import Cause, Options, Record, Status
from taskqueue.store import Store
from taskqueue.store.open import open_store
from taskqueue.store.queue_shares import STRICT, QueueShares
from taskqueue.store.relational.queries import FEW
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    WEB_1,
    a_record,
    behind,
    claim,
    ids,
    postponed,
    running,
    settlement,
)

MANY = 3_000
TALLIED = 30_000
"""Steps of a tally at most where one queue has many waiting jobs."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db?synchronous=normal")) as opened:
        yield opened


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a store with many jobs: finished, due later, behind others, or held by ``WEB_1``."""
    path = tmp_path_factory.mktemp("many") / "jobs.db"
    with closing(open_store(f"sqlite://{path}?synchronous=normal")) as store:
        fill(store)
    return path


@pytest.fixture
def filled(many: Path, tmp_path: Path) -> Iterator[Store]:
    """Return a store of its own with the jobs of ``many``."""
    path = shutil.copy(many, tmp_path / "filled.db")
    with closing(open_store(f"sqlite://{path}?synchronous=normal")) as opened:
        yield opened


def steps(store: Store, call: Callable[[], object]) -> int:
    """Return how many steps the virtual machine takes for a call."""
    raw = store._engine._raw  # type: ignore[attr-defined]
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 1

    raw.set_progress_handler(step, 1)
    call()
    raw.set_progress_handler(None, 0)
    return taken


def finish(store: Store) -> None:
    """Add many jobs and settle them."""
    store.add([a_record() for _ in range(MANY)])
    while runs := claim(store, 500).records:
        store.settle([settlement(run) for run in runs], NOON)


def fill(store: Store) -> None:
    """Add many jobs that are finished, due later, behind others, or waiting behind the ones that a test claims."""
    finish(store)
    run = running(store, a_record(), holder=WEB_1)
    store.add([postponed(NOON + HOUR, expires_at=NOON + 2 * HOUR) for _ in range(MANY)])
    store.add([behind(run.id, expires_at=NOON + 2 * HOUR) for _ in range(100)])
    store.add([a_record(ready_at=NOON + HOUR) for _ in range(MANY)])


@pytest.mark.parametrize("queues", [{}, {"default": None, "mail": None}], ids=["every queue", "chosen queues"])
def test_a_claim_costs_the_same_among_many_jobs(store: Store, filled: Store, queues: dict[str, int | None]) -> None:
    def cost(among: Store) -> int:
        among.add([a_record(ready_at=NOON - HOUR) for _ in range(16)])
        claim(among, 8, queues=queues)  # statements are prepared once
        return steps(among, lambda: claim(among, 8, queues=queues))

    alone, among_many = cost(store), cost(filled)

    assert among_many < 1.2 * alone + 50


def test_an_add_and_a_settle_cost_the_same_among_many_jobs(store: Store, filled: Store) -> None:
    def life(among: Store) -> None:
        among.add([a_record(ready_at=NOON - HOUR)])
        [run] = claim(among).records
        among.settle([settlement(run)], NOON)

    def cost(among: Store) -> int:
        life(among)
        return steps(among, lambda: life(among))

    alone, among_many = cost(store), cost(filled)

    assert among_many < 1.2 * alone + 50


def test_a_settle_of_many_costs_the_same_among_many_jobs(store: Store, filled: Store) -> None:
    def cost(among: Store) -> int:
        among.add([a_record(ready_at=NOON - HOUR) for _ in range(2 * 84)])
        among.settle([settlement(run) for run in claim(among, 84).records], NOON)  # statements are prepared once
        settlements = [settlement(run) for run in claim(among, 84).records]
        return steps(among, lambda: among.settle(settlements, NOON))

    alone, among_many = cost(store), cost(filled)

    assert alone < 150 * 84
    assert among_many < 1.2 * alone + 50


def test_looking_for_the_same_job_costs_the_same_among_many_that_were_added_once(store: Store) -> None:
    def once(data: int) -> Record:
        return a_record(data=str(data), unique=unique_period.of_data("app:Mail", str(data)))

    def add_once(data: int) -> None:
        new = once(data)
        assert store.alike(new, False) == []
        store.add([new])

    store.add([a_record(data=str(-1 - number)) for number in range(5)])
    for data in range(3):
        add_once(data)  # statements are prepared once
    alone = steps(store, lambda: add_once(3))
    store.add([once(data) for data in range(4, MANY - 1)])
    add_once(MANY - 1)

    assert steps(store, lambda: add_once(MANY)) < 1.2 * alone + 50
    store.add([a_record(data="[]", job="app:Other") for _ in range(MANY)])
    assert steps(store, lambda: add_once(MANY + 1)) < 10 * MANY + 2 * alone  # what came in is looked at
    assert steps(store, lambda: add_once(MANY + 2)) < 1.2 * alone + 50  # and not again


def test_a_look_at_the_news_does_not_walk_what_happened_before(filled: Store) -> None:
    _, cursor = filled.events(None)
    filled.add([a_record()])

    assert steps(filled, lambda: filled.events(None)) < 100
    assert steps(filled, lambda: filled.events(cursor)) < 100


def test_counting_does_not_walk_what_is_finished_or_not_due(filled: Store) -> None:
    waiting = filled.tally()[("default", Status.WAITING)]

    assert steps(filled, filled.tally) < 10 * waiting + 500


def test_figures_of_a_time_do_not_walk_what_ended_before_or_is_too_much(filled: Store) -> None:
    late = NOON + MINUTE  # what is finished ended before
    filled.samples(late, NOON + HOUR, 10)  # statements are prepared once

    assert steps(filled, lambda: filled.samples(NOON, late, 10)) < 3_000
    assert steps(filled, lambda: filled.samples(late, NOON + HOUR, 10)) < 1_000
    assert steps(filled, lambda: filled.find(parse({"status": {"$gt": 2}, "ended_at": {"$gt": late}}))) < 1_000
    before = parse({"status": {"$gt": 2}, "ended_at": {"$gt": NOON - HOUR, "$lt": NOON - MINUTE}})
    assert steps(filled, lambda: filled.find(before, order="-ended_at", limit=1)) < 1_000


def test_the_pending_are_found_without_walking_the_finished(store: Store) -> None:
    finish(store)
    store.add([a_record(), postponed(NOON + HOUR)])

    assert len(store.find(PENDING)) == 2
    assert steps(store, lambda: store.find(PENDING)) < 500
    assert steps(store, lambda: store.count(PENDING)) < 500


def test_the_newest_are_listed_without_walking_the_others(filled: Store) -> None:

    def newest(query: Query) -> int:
        return len(filled.find(query, order="-created_at", limit=20))

    assert newest(EVERYTHING) == newest(PENDING) == 20
    assert steps(filled, lambda: newest(EVERYTHING)) < 2_000
    assert steps(filled, lambda: newest(PENDING)) < 4 * FEW  # which it counts before it walks in order


@pytest.mark.parametrize("order", ["id", "-id", "created_at", "-created_at"])
def test_pages_of_some_statuses_have_no_gaps_where_many_are_walked(store: Store, order: str) -> None:
    def add(number: int) -> None:
        store.add([a_record(created_at=NOON + one // 5 * MINUTE) for one in range(number)])

    add(1_200)
    while runs := claim(store, 500).records:
        store.settle([settlement(run) for run in runs], NOON)
    add(FEW + 100)
    name = order.removeprefix("-")
    found: list[Record] = []
    while page := store.find(
        PENDING, order=order, limit=3_000, after=(getattr(found[-1], name), found[-1].id) if found else None
    ):
        found += page

    assert len(found) == FEW + 100
    assert found == sorted(found, key=lambda one: (getattr(one, name), one.id), reverse=order.startswith("-"))


def test_the_jobs_of_a_queue_are_found_without_walking_those_of_others(filled: Store) -> None:
    filled.add([a_record(queue="mail") for _ in range(30)])
    filled.add([a_record() for _ in range(MANY)])

    def listed(**fields: object) -> int:
        return len(filled.find(parse(fields), order="-created_at", limit=20))

    assert listed(queue="mail") == listed(queue="mail", status=0) == 20
    assert listed(queue="nowhere") == 0
    assert steps(filled, lambda: listed(queue="mail")) < 5_000 + TALLIED
    assert steps(filled, lambda: listed(queue="mail", status=0)) < 5_000
    assert steps(filled, lambda: listed(queue="nowhere")) < TALLIED


def test_what_was_added_since_is_counted_without_walking_what_came_before(store: Store) -> None:
    store.add([a_record() for _ in range(FEW + 1)])
    later = NOON + HOUR
    store.add([a_record(created_at=later) for _ in range(3)])
    since = {"created_at": {"$gt": later - MINUTE}}
    waiting = parse({"$and": [{"status": {"$in": [0]}}, since]})

    assert store.count(parse(since)) == store.count(waiting) == 3
    assert steps(store, lambda: store.count(parse(since))) < 500
    assert steps(store, lambda: store.count(waiting)) < 4 * FEW  # which it counts before it decides


def test_the_text_of_an_id_is_found_without_walking_the_others(filled: Store) -> None:
    filled.add([a_record(job=job, given={"id": "invoice-7"}) for job in ("app:Mail", "app:Other")])
    query = parse({"id_text": "invoice-7"})

    assert len(filled.find(query, limit=6)) == 2
    assert steps(filled, lambda: filled.find(query, limit=6)) < 500


def test_overdue_ones_are_found_without_walking_those_that_are_due_later(filled: Store) -> None:
    late = parse({"status": int(Status.POSTPONED), "ready_at": {"$lt": NOON}, "cause": {"$ne": "behind"}})
    blocked = parse({"status": int(Status.POSTPONED), "cause": Cause.BEHIND.value, "waiting_for": {"$exists": True}})
    awaited = running(filled, a_record(ready_at=NOON - HOUR))
    filled.add([behind(awaited.id, cause=Cause.BEHIND) for _ in range(20)])

    assert filled.find(late, order="-created_at", limit=20) == []
    assert steps(filled, lambda: filled.find(late, order="-created_at", limit=20)) < 500
    assert len(filled.find(blocked, limit=500)) == 20
    assert steps(filled, lambda: filled.find(blocked, limit=500)) < 10_000


def test_the_next_of_a_queue_are_found_by_their_index(store: Store) -> None:
    limit = lane((Limit(2),), "app:Mail", None)
    kinds: Sequence[dict[str, Any]] = ({}, {"options": Options(force_spawn=True)}, {"lane": limit})
    next_ones = [
        a_record(queue="mail", ready_at=NOON + number * MINUTE, **kinds[number % 3]) for number in range(9, -1, -1)
    ]
    store.add([a_record(ready_at=NOON - HOUR) for _ in range(FEW + 1)])
    store.add(next_ones)
    mail, before = (
        parse({"queue": "mail", "status": int(Status.WAITING)}),
        Compare("rank", Operator.LT, next_ones[3].rank),
    )
    walked = FEW  # which it counts before it decides
    read: list[Record] = []

    assert steps(store, lambda: read.extend(store.find(mail, order="rank", limit=4))) < 4 * walked + 2_000
    assert ids(read) == ids(next_ones[:-5:-1])
    behind_them = store.find(mail, order="rank", limit=4, after=(read[-1].rank, read[-1].id))
    assert ids(behind_them) == ids(next_ones[-5:-9:-1])
    assert store.count(And((mail, before))) == 6
    assert steps(store, lambda: store.count(And((mail, before)))) < 500


def test_the_last_that_failed_are_found_without_walking_the_others(filled: Store) -> None:
    for number in range(1, 3 + FEW // 500):
        filled.add([a_record(ready_at=NOON - HOUR) for _ in range(500)])
        at = NOON + number * MINUTE
        filled.settle([settlement(run, now=at) for run in claim(filled, 500).records], at)
    done = parse({"status": int(Status.DONE), "queue": "default"})

    assert len(filled.find(done, order="-ended_at", limit=5)) == 5
    walked = FEW  # which it counts before it decides
    assert steps(filled, lambda: filled.find(done, order="-ended_at", limit=5)) < 4 * walked + 200 * 500


def test_the_last_that_ended_of_a_class_do_not_walk_a_status_that_ended_before(store: Store) -> None:
    for job, number, outcome, at in (
        ("app:Other", 500, GivenUp(failure=BROKEN), NOON + MINUTE),
        ("app:Mail", 10, Done(), NOON + HOUR),
    ):
        store.add([a_record(job=job) for _ in range(number)])
        store.settle([settlement(run, outcome, now=at) for run in claim(store, 500).records], at)
    query = parse({"status": {"$gt": int(Status.PROCESSING)}, "job": "app:Mail"})

    assert len(store.find(query, order="-ended_at", limit=5)) == 5
    assert steps(store, lambda: store.find(query, order="-ended_at", limit=5)) < 1500


@pytest.mark.parametrize("order", ["id", "-created_at"])
def test_the_children_of_a_job_are_found_without_walking_the_others(filled: Store, order: str) -> None:
    parent = a_record()
    filled.add([parent, *(a_record(parent=parent.id) for _ in range(3))])
    of_parent = And((Compare("parent", Operator.EQ, str(parent.id)), EVERYTHING))

    filled.find(of_parent, order=order)  # statements are prepared once
    assert steps(filled, lambda: filled.find(of_parent, order=order)) < 1000
    assert len(filled.find(of_parent, order=order, limit=2)) == 2


def test_counting_by_status_and_queue_does_not_walk_the_finished(filled: Store) -> None:
    done = parse({"status": {"$gt": int(Status.PROCESSING)}, "$or": [{"queue": "default"}, {"queue": "mail"}]})

    assert filled.count(done) == MANY
    assert filled.count(EVERYTHING) == sum(filled.tally().values())
    waiting = filled.tally()[("default", Status.WAITING)]
    assert steps(filled, lambda: filled.count(done)) < 10 * waiting + 500


def test_renewals_and_lost_leases_do_not_walk_anything_else(filled: Store) -> None:

    assert steps(filled, lambda: filled.renew(WEB_1, NOON + HOUR, {})) < 500
    assert steps(filled, lambda: filled.expired(NOON + HOUR, 100)) < 500
    assert steps(filled, lambda: filled.orphaned("web-1", "other", 100)) < 500


def test_a_backlog_of_a_paused_queue_costs_a_claim_nothing(store: Store) -> None:
    store.set_control(Control(kind=Kind.PAUSE, name="mail", since=NOON, by="ann"))
    store.add([a_record(queue=queue) for queue in ("reports", "images") for _ in range(24)])
    claim(store, 8)
    alone = steps(store, lambda: claim(store, 8))
    store.add([a_record(queue="mail", ready_at=NOON - HOUR) for _ in range(MANY)])

    assert steps(store, lambda: claim(store, 8)) < 1.2 * alone + 50


@pytest.mark.parametrize("shares", [STRICT, QueueShares()], ids=["strict", "fair"])
def test_a_claim_and_a_look_cost_the_same_among_many_queues(store: Store, shares: QueueShares) -> None:
    def cost(queues: int) -> int:
        store.add([a_record(queue=f"customer-{number % queues}") for number in range(2 * queues)])
        claim(store, 8, shares=shares)  # the first one reads where the jobs of each queue begin
        looked = steps(store, lambda: claim(store, 0, shares=shares))
        return looked + steps(store, lambda: claim(store, 8, shares=shares))

    among_few = cost(20)

    assert among_few < 4_000
    assert cost(10_000) < 1.2 * among_few + 50


def test_a_claim_costs_the_same_in_either_order_while_one_queue_waits(store: Store) -> None:
    store.add([a_record() for _ in range(100)])
    claim(store, 8)

    strict = steps(store, lambda: claim(store, 8))
    assert steps(store, lambda: claim(store, 8, shares=QueueShares())) == strict


def test_a_claim_reads_of_new_jobs_alone_among_many_queues(store: Store) -> None:
    store.add([a_record(queue=f"customer-{number}") for number in range(500)])
    claim(store, 1)

    def add_and_claim() -> None:
        new = a_record(queue="customer-new", ready_at=NOON - HOUR)
        store.add([new])
        assert ids(claim(store, 1).records) == [new.id]

    add_and_claim()
    assert steps(store, add_and_claim) < 1_500
