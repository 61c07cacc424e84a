"""Named schedules: one version follows another, and the jobs of a change are in with it (X-13)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from taskqueue.model.lifecycle.outcomes import Done, Failed
from taskqueue.model.record import Options, Record, Status
from taskqueue.model.retry import ExponentialRetry
from taskqueue.model.schedules import Again, Cron, Custom, Every
from taskqueue.model.schedules.fire import QUESTION
from taskqueue.model.schedules.origin import FromSchedule
from taskqueue.model.schedules.schedule import Miss, NamedSchedule, Overlap, Stage, next_version
from taskqueue.store import Store
from taskqueue.store.bell import PLANS, WORK
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    a_record,
    all_kept,
    behind,
    finished,
    ids,
    kept,
    now_cursor,
    rings,
    running,
    settle,
    told,
)


def a_plan(name: str = "nightly", **fields: Any) -> NamedSchedule:
    return NamedSchedule(
        **{"name": name, "trigger": Every(60, NOON), "template": a_record(), "created_at": NOON, **fields}
    )


def put(store: Store, plan: NamedSchedule, *jobs: Record) -> NamedSchedule:
    """Keep a plan that is not there yet."""
    assert store.replace_schedule(None, plan, jobs, NOON)
    return plan


def test_a_plan_is_kept_as_it_is(store: Store) -> None:
    template = a_record(
        data='{"a":1}',
        options=Options(retry=ExponentialRetry(3), timeout=5),
        tags=("a", "b"),
        priority=-3,
    )
    full = a_plan(
        template=template,
        trigger=Cron("5 4 * * sun", "Europe/Berlin"),
        expires_for=1.5,
        overlap=Overlap.QUEUE_ONE,
        misfire="all(7)",
        grace=5.0,
        until=NOON + HOUR,
        max_runs=9,
        stop_after_failures=2,
        application="shop",
        stage=Stage.PAUSED,
        reason="holidays",
        next_run_at=NOON + MINUTE,
        awaits=template.id,
        fired=3,
        missed=4,
        misses=(Miss(first=NOON, last=NOON + HOUR, count=4, reason="nobody was there"),),
        recent=(template.id,),
        version=7,
    )
    put(store, full)
    put(store, plain := a_plan("hourly", trigger=Custom("app:Holidays", {"country": "DE"})))

    assert store.schedules() == [plain, full]
    assert store.schedules(["nightly", "unknown"]) == [full]
    assert store.schedules([]) == []


def test_a_name_is_given_once(store: Store) -> None:
    first = put(store, a_plan())

    assert not store.replace_schedule(None, a_plan(fired=9), [a_record()], NOON)
    assert store.schedules() == [first]
    assert all_kept(store) == []


def test_a_change_applies_to_the_version_it_was_made_from(store: Store) -> None:
    first = put(store, a_plan())
    second = next_version(first, fired=1)
    third = next_version(first, fired=2)

    assert store.replace_schedule(first, second, [job := a_record()], NOON)
    assert not store.replace_schedule(first, third, [a_record()], NOON)
    assert store.schedules() == [second]
    assert ids(all_kept(store)) == [job.id]


def test_a_plan_is_removed_by_whoever_knows_it(store: Store) -> None:
    first = put(store, a_plan())
    second = next_version(first)
    store.replace_schedule(first, second, [], NOON)

    assert not store.replace_schedule(first, None, [], NOON)
    assert store.replace_schedule(second, None, [], NOON)
    assert not store.replace_schedule(second, None, [], NOON)
    assert store.schedules() == []


def test_the_jobs_of_a_change_are_told_and_rung(store: Store, opener: Opener) -> None:
    other = opener()
    work, plans = other.bell(WORK), other.bell(PLANS)
    cursor = now_cursor(store)
    put(store, a_plan(), a_record(), a_record())

    assert rings(work)
    assert rings(plans)
    assert told(store, cursor) == ["waiting", "waiting"]
    work.close()
    plans.close()


def test_a_job_that_is_known_is_left_out(store: Store) -> None:
    known = finished(store, a_record(data="1"))
    put(store, a_plan(), replace(known, status=Status.WAITING, data="2"), new := a_record())

    assert {one.id: one.status for one in all_kept(store)} == {known.id: Status.DONE, new.id: Status.WAITING}


def test_a_job_behind_one_that_has_ended_is_not_held_up(store: Store) -> None:
    over = finished(store, a_record())
    put(store, a_plan(), new := behind(over.id))

    assert kept(store, new.id).status is Status.WAITING


def test_the_end_of_an_awaited_job_gives_the_next_time(store: Store, opener: Opener) -> None:
    job = a_record(origin=FromSchedule(schedule="nightly", slot=NOON, trigger=Every(60)))
    running_job = running(store, job)
    first = put(store, a_plan(awaits=job.id))
    bell = opener().bell(PLANS)
    settle(store, running_job, Failed(failure=BROKEN))

    assert rings(bell)
    assert store.schedules() == [next_version(first, next_run_at=NOON + SECOND + MINUTE, awaits=None)]
    assert not store.replace_schedule(first, next_version(first, fired=1), [], NOON)
    bell.close()


def test_the_end_of_another_job_changes_no_plan(store: Store) -> None:
    awaited, other = a_record(), a_record(origin=FromSchedule(schedule="nightly", slot=NOON, trigger=Again()))
    first = put(store, a_plan(awaits=awaited.id))
    finished(store, other, Done())

    assert store.schedules() == [first]


def test_how_its_jobs_ended_stays_with_a_plan_that_counts_it(store: Store) -> None:
    origin = FromSchedule(schedule="nightly", slot=NOON, is_counted=True)
    failed, done, canceled, other = (a_record(origin=origin) for _ in range(4))
    first = put(store, a_plan(stop_after_failures=3, recent=(failed.id, done.id, canceled.id)))

    finished(store, failed, Failed(failure=BROKEN))
    finished(store, done, Done())
    finished(store, other, Done())
    store.add([canceled])
    store.cancel(canceled.id, "enough", NOON)
    store.prune(dict.fromkeys(Status, NOON + HOUR), NOON, 10)

    [after] = store.schedules()
    assert after.ended == {failed.id: True, done.id: False}
    assert not store.replace_schedule(first, next_version(first, fired=1), [], NOON)
    assert store.replace_schedule(after, next_version(after, recent=(done.id,)), [], NOON)
    assert store.schedules()[0].ended == {done.id: False}


def test_what_is_due_comes_in_order_with_the_soonest_time(store: Store) -> None:
    assert store.due(NOON, 10) == ([], None)
    late, later = put(store, a_plan("b", next_run_at=NOON)), put(store, a_plan("a", next_run_at=NOON + SECOND))
    put(store, a_plan("c", next_run_at=NOON + HOUR))
    put(store, a_plan("d", next_run_at=None))

    assert store.due(NOON - SECOND, 10) == ([], NOON)
    assert store.due(NOON + MINUTE, 10) == ([late, later], NOON)
    assert store.due(NOON + MINUTE, 1) == ([late], NOON)


def test_plans_survive_a_flush(store: Store) -> None:
    first = put(store, a_plan(), a_record())

    assert store.flush() == 1
    assert (store.schedules(), all_kept(store)) == ([first], [])


def test_after_a_flush_a_schedule_that_awaited_a_job_has_a_next_time(store: Store, opener: Opener) -> None:
    job = a_record()
    put(store, a_plan(trigger=Every(60), awaits=job.id), job)
    put(store, a_plan("paused", trigger=Every(60), stage=Stage.PAUSED))
    bell = opener().bell(PLANS)

    store.flush()

    assert rings(bell)
    [nightly, paused] = store.schedules()
    assert nightly.awaits is None
    assert nightly.next_run_at is not None
    assert timedelta(0) <= nightly.next_run_at - store.now() <= MINUTE + SECOND
    assert (paused.awaits, paused.next_run_at) == (None, None)
    bell.close()


def test_after_a_flush_a_class_of_ones_own_is_asked_again(store: Store) -> None:
    question = a_record()
    put(store, a_plan(trigger=Custom("app:Holidays"), awaits=question.id), question)

    assert store.flush() == 1

    [plan], [again] = store.schedules(), all_kept(store)
    assert (plan.stage, plan.awaits, again.job, again.status) == (Stage.ACTIVE, again.id, QUESTION, Status.WAITING)
    assert again.id != question.id
