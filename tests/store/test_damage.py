"""Records that this version or host cannot read: each is read by itself, ended or paused, and harms no other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from bson import Decimal128, ObjectId

from taskqueue.model.controls import Control, Kind
from taskqueue.model.lifecycle.outcomes import Failed, Run, unreadable
from taskqueue.model.lifecycle.recovered_copy import BEFORE, ORIGIN
from taskqueue.model.lifecycle.settle import ended, lost
from taskqueue.model.limits import Limit, lane
from taskqueue.model.query import parse
from taskqueue.model.record import Attempt, Cause, OnFailure, Options, Record, Status
from taskqueue.model.retry import ExponentialRetry
from taskqueue.model.schedules import Cron
from taskqueue.model.schedules.origin import FromSchedule
from taskqueue.model.schedules.schedule import NamedSchedule, Stage, set_aside
from taskqueue.store import ClaimRequest, Lease, Note, Settlement, Store
from taskqueue.store.bell import ENDS
from tests.store.damaging import FAR, LONG_AGO, MISSING, REFUSED, damager
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    NOON,
    SECOND,
    WEB_1,
    WEB_1_AGAIN,
    WEB_2,
    a_record,
    all_kept,
    claim,
    finished,
    ids,
    kept,
    now_cursor,
    postponed,
    rings,
    running,
    settle,
    settlement,
)
from tests.store.test_dependencies import dependent

if TYPE_CHECKING:  # acceptance tests import this file on Pythons that have no driver of PostgreSQL
    from tests.store.conftest import Opener

EVERYDAY = ("garbage", LONG_AGO, MISSING)
OTHERS = ("[1]", b"\xff", FAR, 1.5)
GARBAGE = (*EVERYDAY, *OTHERS)
FIELDS = """
status cause queue forced rank ready_at claims failures crashes priority created_at started_at ended_at expires_at
waiting_for cancel unloadable_since unloadable_times progress progress_message progress_at job options given tags error
attempts state result lane parent depends_on origin cursor course data
""".split()  # noqa: SIM905
OWN_FIELDS = {
    "sqlite": ("seat", "incarnation", "unique_key", "period", "origins"),
    "postgresql": ("seat", "incarnation", "unique_key", "period", "origins"),
    "mongodb": ("holder", "unique", "due", "expires"),
}


KEPT_WHOLE = contextlib.suppress(*REFUSED)

BEGUN = Note(started_at=NOON, progress=1.0, progress_at=NOON)


def damage(url: str, table: str, id: Any, field: str, value: Any) -> bool:
    """Damage a field and return True, unless the store refuses the value."""
    with damager(url) as damage_it, KEPT_WHOLE:
        damage_it(table, id, field, value)
        return True
    return False


def work_off(store: Store) -> set[ObjectId]:
    """Claim and settle until nothing is left, as nodes do, and return what was DONE."""
    done: set[ObjectId] = set()
    for _ in range(150):
        found = store.claim(WEB_1, ClaimRequest(pooled=9, forced=9), NOON + HOUR, NOON + 2 * HOUR)
        store.renew(
            WEB_1,
            NOON + 2 * HOUR,
            dict.fromkeys(ids(found.records), BEGUN),
        )
        settlements = [
            Settlement(claims=one.claims, holder=WEB_1, after=ended(one, unreadable(one), Run(node="web-1"), NOON))
            if one.damage
            else settlement(one)
            for one in found.records
        ]
        done |= {one.after.id for one in settlements if one.after.status is Status.DONE} & store.settle(
            settlements, NOON + HOUR
        )
        if not found.records and (found.next_at is None or found.next_at > NOON + HOUR):
            return done
    raise AssertionError("a node would go on claiming for ever")


AT_ONCE = 6
"""How many fields are damaged in one store: most of the time of a test goes into making the store."""


@pytest.mark.parametrize("garbage", [EVERYDAY, pytest.param(OTHERS, marks=pytest.mark.long)])
@pytest.mark.parametrize("first", range(0, len(FIELDS) + 5, AT_ONCE))
def test_damaged_records_stand_in_nobodys_way(
    store: Store, store_url: str, first: int, garbage: tuple[object, ...]
) -> None:
    fields = [*FIELDS, *OWN_FIELDS[store_url.partition(":")[0]]][first : first + AT_ONCE]
    damages = [(field, value) for field in fields for value in garbage]
    damaged = [
        made
        for _ in damages
        for made in (
            a_record(tags=("a",), data='{"to":"x"}'),
            postponed(NOON + SECOND, expires_at=NOON + 3 * HOUR),
        )
    ]
    running = [a_record(queue="running") for _ in damages]
    good = [a_record(tags=("a",), data='{"to":"x"}') for _ in range(4)]
    store.add([good[0], *damaged[:2], good[1], *damaged[2:], good[2], *running])
    store.claim(WEB_1_AGAIN, ClaimRequest(pooled=99, queues={"running": None}), NOON, NOON + LEASE)
    with damager(store_url) as damage_it:
        for place, (field, value) in enumerate(damages):
            for one in (*damaged[2 * place : 2 * place + 2], running[place]):
                with KEPT_WHOLE:
                    damage_it("jobs", one.id, field, value)
    store.add([good[3]])
    wanted = {one.id for one in good}

    for order in ("id", "-id", "created_at", "-created_at", "ended_at", "rank", "-rank"):
        assert len(store.find(parse({}), order=order)) == 4 + 3 * len(damages)
    assert set(ids(store.find(parse({"tags": "a", "data.to": "x"})))) >= wanted
    store.count(parse({"data.to": "x", "tags": {"$ne": "b"}})), store.tally(), store.present(NOON)
    store.samples(NOON - HOUR, NOON + HOUR, 100)
    assert store.events(now_cursor(store))[0] == []
    later = NOON + 2 * LEASE
    taken = [one for one in store.expired(later, 100) + store.orphaned("web-1", "b9", 100) if one.holder is not None]
    store.settle(
        [Settlement(claims=one.claims, holder=one.holder, after=lost(one, later)) for one in taken if one.holder], later
    )

    assert work_off(store) >= wanted

    for one in (*damaged, *running):
        after = store.cancel(one.id, "enough", NOON + HOUR)
        assert after is not None
        assert after.status.is_final or after.status is Status.PROCESSING
    store.repair(NOON + 3 * HOUR)
    store.prune({status: NOON + 9 * HOUR for status in Status if status.is_final}, NOON + 9 * HOUR, 1000)
    assert not {one.id for one in all_kept(store)} & wanted
    store.flush()
    assert all_kept(store) == []


@pytest.mark.parametrize(
    "garbage",
    [
        "garbage",
        b"\xff",
        [{ORIGIN: "65f0" * 6}],
        {ORIGIN: "garbage"},
        {ORIGIN: 5, BEFORE: 5},
        {ORIGIN: "65f0" * 6, BEFORE: "garbage"},
        {ORIGIN: "65f0" * 6, BEFORE: {"a": [1]}},
        {ORIGIN: [1], BEFORE: ["garbage", 5]},
    ],
    ids=str,
)
def test_a_damaged_origin_of_a_copy_stops_neither_its_end_nor_retention(
    store: Store, store_url: str, garbage: Any
) -> None:
    over, begun = finished(store, a_record()), running(store, a_record())
    is_text = store_url.startswith("mongodb") or garbage == "garbage" or isinstance(garbage, bytes)
    for one in (over, begun):
        for field in ("given", "origins"):
            damage(store_url, "jobs", one.id, field, garbage if is_text else json.dumps(garbage))
    claimed = store.find(parse({"status": "PROCESSING"}))[0]

    assert store.settle([settlement(claimed)], NOON + SECOND) == {begun.id}

    assert store.prune({Status.DONE: NOON + 9 * HOUR}, NOON, 100) == 2


def test_a_claim_brings_a_damaged_record_with_what_cannot_be_read_of_it(store: Store, store_url: str) -> None:
    job = a_record(options=Options(retry=ExponentialRetry(times=3)))
    store.add([job])
    damage(store_url, "jobs", job.id, "options", '"garbage"')

    [taken] = claim(store).records

    assert "options: " in taken.damage
    assert (taken.id, taken.job, taken.options) == (job.id, job.job, Options())
    assert kept(store, job.id).damage == taken.damage


def test_a_damaged_record_is_canceled_like_others(store: Store, store_url: str) -> None:
    job = a_record()
    store.add([job])
    damage(store_url, "jobs", job.id, "cause", "of another version")

    after = store.cancel(job.id, "enough", NOON)

    assert after is not None
    assert (kept(store, job.id).status, kept(store, job.id).cause) == (Status.CANCELED, Cause.CANCELED)


def add_damaged(store: Store, store_url: str, **fields: Any) -> Record:
    """Add a job whose options cannot be read, and return it as it was."""
    job = a_record(**fields)
    store.add([job])
    assert damage(store_url, "jobs", job.id, "options", '"garbage"')
    return job


def end_by_node(store: Store, job: Record) -> None:
    """End the damaged job as the node does that claims it."""
    [taken] = claim(store).records
    assert taken.id == job.id
    assert settle(store, taken, unreadable(taken)) == {job.id}


def end_by_operator(store: Store, job: Record) -> None:
    assert store.cancel(job.id, "enough", NOON + SECOND) is not None


ENDS_OF_DAMAGED: dict[Callable[[Store, Record], None], tuple[Status, Cause]] = {
    end_by_node: (Status.FAILED, Cause.UNREADABLE),
    end_by_operator: (Status.CANCELED, Cause.CANCELED),
}
either_end = pytest.mark.parametrize("end", ENDS_OF_DAMAGED)


@either_end
def test_a_damaged_job_ends_notifies_waiters_and_is_purged(
    store: Store, opener: Opener, store_url: str, end: Callable[[Store, Record], None]
) -> None:
    job = add_damaged(store, store_url)
    bell = opener().bell(ENDS)

    end(store, job)

    assert rings(bell)
    bell.close()
    after = kept(store, job.id)
    assert (after.status, after.cause, after.holder) == (*ENDS_OF_DAMAGED[end], None)
    assert "options: " in after.damage
    assert store.prune({after.status: NOON + HOUR}, NOON + HOUR, 10) == 1
    assert all_kept(store) == []


@either_end
def test_the_end_of_a_damaged_job_releases_its_dependents_by_their_rules(
    store: Store, store_url: str, end: Callable[[Store, Record], None]
) -> None:
    job = add_damaged(store, store_url)
    rules = {rule: dependent(job.id, on_failure=rule) for rule in OnFailure}
    store.add(list(rules.values()))

    end(store, job)

    after = {rule: kept(store, added.id) for rule, added in rules.items()}
    canceled, ignored, waiting = after[OnFailure.CANCEL], after[OnFailure.IGNORE], after[OnFailure.WAIT]
    assert (canceled.status, canceled.cause) == (Status.CANCELED, Cause.DEPENDENCY)
    assert (ignored.status, ignored.waiting_for) == (Status.WAITING, ())
    assert (waiting.status, waiting.waiting_for) == (Status.POSTPONED, (job.id,))


@either_end
def test_the_end_of_a_damaged_job_frees_its_limits_and_its_unique_key(
    store: Store, store_url: str, end: Callable[[Store, Record], None]
) -> None:
    only_one = lane([Limit(1)], "app:Mail", None)
    job = add_damaged(store, store_url, lane=only_one, unique="mail")
    waiting = a_record(lane=only_one)

    end(store, job)
    assert store.add([waiting]) == [waiting]

    assert ids(claim(store, 2, now=NOON + 2 * SECOND).records) == [waiting.id]
    again = a_record(unique="mail")
    assert store.add([again]) == [again]


def test_the_limit_of_a_damaged_job_holds_while_a_node_has_it(store: Store, store_url: str) -> None:
    only_one = lane([Limit(1)], "app:Mail", None)
    job, waiting = add_damaged(store, store_url, lane=only_one), a_record(lane=only_one)
    store.add([waiting])
    [taken] = claim(store, 2).records

    settle(store, taken, unreadable(taken))

    assert taken.id == job.id
    assert ids(claim(store, 2, now=NOON + 2 * SECOND).records) == [waiting.id]


def test_a_damaged_job_keeps_what_can_be_read_when_it_is_released(store: Store, store_url: str) -> None:
    attempts = tuple(
        Attempt(number=number, claims=number, node="web-1", ended_at=NOON, outcome="Failed", error=BROKEN)
        for number in (1, 2)
    )
    first = running(store, a_record())
    job = dependent(first.id, failures=2, attempts=attempts, state='{"page":7}', progress=40.0)
    store.add([job])
    damage(store_url, "jobs", job.id, "options", '"garbage"')

    settle(store, first)

    released = kept(store, job.id)
    assert (released.status, released.waiting_for) == (Status.WAITING, ())
    assert "options: " in released.damage
    assert (released.failures, released.attempts) == (2, attempts)
    assert (released.state, released.progress) == ('{"page":7}', 40.0)


@pytest.mark.parametrize("kept_text", ['{"to":', '{"to":{"$date":{"$numberLong":"999999999999999999"}}}'])
def test_data_that_cannot_be_read_match_nothing_and_hide_nothing(store: Store, store_url: str, kept_text: str) -> None:
    damaged, good = a_record(data='{"to":"x"}'), a_record(data='{"to":"x"}')
    store.add([damaged, good])
    damage(store_url, "jobs", damaged.id, "data", kept_text)

    assert ids(store.find(parse({"data.to": "x"}))) == [good.id]
    assert store.count(parse({"data.to": {"$exists": True}})) == 1


NOWHERE = {"trigger": "cron", "expr": "* * * * *", "tz": "Mars/Phobos"}
"""A trigger in a zone that no host knows."""


def a_plan(name: str) -> NamedSchedule:
    return NamedSchedule(name=name, trigger=Cron("* * * * *"), template=a_record(), created_at=NOON, next_run_at=NOON)


def damage_plan(store_url: str, name: str, part: str, value: Any) -> None:
    """Damage a part of a schedule's definition."""
    damage(store_url, "plans", name, f"about.{part}", value)


@pytest.mark.parametrize(
    ("part", "value"),
    [("trigger", NOWHERE), ("trigger", {"trigger": "lunar"}), ("overlap", "sometimes"), ("grace", "x"), ("misses", 5)],
)
def test_a_schedule_that_cannot_be_read_is_listed_set_aside_and_removed(
    store: Store, store_url: str, part: str, value: Any
) -> None:
    for name in ("broken", "fine"):
        assert store.replace_schedule(None, a_plan(name), [], NOON)
    damage_plan(store_url, "broken", part, value)

    broken, fine = store.schedules()
    due, soonest = store.due(NOON, 10)

    assert (fine.damage, fine.stage, soonest) == ("", Stage.ACTIVE, NOON)
    assert (broken.stage, broken.reason) == (Stage.PAUSED, broken.damage)
    assert part in broken.damage
    assert [plan.name for plan in due] == ["broken", "fine"]
    assert store.replace_schedule(broken, set_aside(broken), [], NOON)
    assert [plan.name for plan in store.due(NOON, 10)[0]] == ["fine"]
    [again] = store.schedules(["broken"])
    assert store.replace_schedule(again, None, [], NOON)
    assert [plan.name for plan in store.schedules()] == ["fine"]


def test_a_schedule_that_was_set_aside_is_whole_where_it_can_be_read(store: Store, store_url: str) -> None:
    store.replace_schedule(None, a_plan("daily"), [], NOON)
    damage_plan(store_url, "daily", "trigger", NOWHERE)
    [broken] = store.schedules()
    store.replace_schedule(broken, set_aside(broken), [], NOON)

    damage_plan(store_url, "daily", "trigger", Cron("* * * * *", "Europe/Berlin").document())

    [plan] = store.schedules()
    assert (plan.damage, plan.stage, plan.reason) == ("", Stage.PAUSED, broken.damage)
    assert (plan.trigger, plan.template.job) == (Cron("* * * * *", "Europe/Berlin"), "app:Mail")


@pytest.mark.parametrize("field", ["version", "next_run_at", "awaits", "about", "template"])
def test_a_damaged_schedule_stands_in_nobodys_way(store: Store, store_url: str, field: str) -> None:
    for place, _ in enumerate(GARBAGE):
        store.replace_schedule(None, a_plan(f"broken-{place}"), [], NOON)
    store.replace_schedule(None, a_plan("fine"), [], NOON)
    for place, value in enumerate(GARBAGE):
        damage(store_url, "plans", f"broken-{place}", field, value)

    assert len(store.schedules()) == len(GARBAGE) + 1
    for plan in store.due(NOON, 10)[0]:
        assert not plan.damage or store.replace_schedule(plan, set_aside(plan), [], NOON)
    assert "fine" in [plan.name for plan in store.due(NOON, 10)[0] if not plan.damage]
    for plan in store.schedules():
        assert store.replace_schedule(plan, None, [], NOON)


def test_a_job_ends_though_the_schedule_that_counts_its_end_is_damaged(store: Store, store_url: str) -> None:
    origin = FromSchedule(schedule="broken", slot=NOON, is_counted=True)
    for value in GARBAGE:
        store.replace_schedule(None, a_plan("broken"), [], NOON)
        damage(store_url, "plans", "broken", "about", value)
        counted = a_record(origin=origin)
        store.add([counted])
        [taken] = claim(store).records

        assert store.settle([settlement(taken, Failed(failure=BROKEN))], NOON) == {counted.id}
        assert kept(store, counted.id).status is Status.FAILED
        [plan] = store.schedules()
        assert store.replace_schedule(plan, None, [], NOON)


@pytest.mark.parametrize("field", ["until", "since", "about"])
def test_a_damaged_lease_is_taken_and_hides_no_other(store: Store, store_url: str, field: str) -> None:
    for place, value in enumerate(GARBAGE):
        name = f"seat:web-{place}"
        store.acquire(Lease(name=name, holder=WEB_2, since=NOON, until=NOON + LEASE), NOON)
        damage(store_url, "leases", name, field, value)
    store.acquire(Lease(name="lead", holder=WEB_2, since=NOON, until=NOON + LEASE), NOON)

    assert "lead" in [lease.name for lease in store.leases()]
    for place, _ in enumerate(GARBAGE):
        later = NOON + 2 * LEASE
        wish = Lease(name=f"seat:web-{place}", holder=WEB_1, since=later, until=later + LEASE, about={"pid": 1})
        assert store.acquire(wish, later).holder in (WEB_1, WEB_2)
    assert store.acquire(Lease(name="lead", holder=WEB_1, since=later, until=later + LEASE), later).holder == WEB_1


@pytest.mark.parametrize("field", ["since", "reason"])
def test_a_damaged_decision_hides_no_other_and_is_lifted(store: Store, store_url: str, field: str) -> None:
    for name in ("a", "b"):
        store.set_control(Control(kind=Kind.PAUSE, name=name, since=NOON, by="ann"))
    damage(store_url, "controls", "a", field, b"\xff")

    assert "b" in [control.name for control in store.controls().kept]
    assert claim(store).records == []
    assert store.clear_control(Kind.PAUSE, "a")


def test_a_rank_of_another_kind_of_number_stands_in_nobodys_way(store: Store, store_url: str) -> None:
    strange: Any = Decimal128("1E6000") if store_url.startswith("mongodb") else float("inf")
    good, damaged, limited = a_record(), a_record(), a_record(lane=lane([Limit(1)], "app:Mail", None))
    store.add([good, damaged, limited])
    whole = set() if damage(store_url, "jobs", damaged.id, "rank", strange) else {damaged.id}

    assert work_off(store) == {good.id, limited.id} | whole
    after = kept(store, damaged.id)
    assert whole or after.status is Status.FAILED or after.status.is_pending


@pytest.mark.parametrize("text", ["pool:x:1", "[]", "{}", "[[1]]", " "])
def test_a_job_whose_limits_cannot_be_read_stands_in_nobodys_way(store: Store, text: str) -> None:
    store.add([a_record(lane=text)])
    work_off(store)
    good, limited = a_record(), a_record(lane=lane([Limit(1)], "app:Mail", None))
    store.add([good, limited])

    assert work_off(store) >= {good.id, limited.id}
