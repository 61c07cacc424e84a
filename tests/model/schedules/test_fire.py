"""What a schedule does when its time has come (X-13 to X-17, REC-30, vector 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.errors import InvalidOption
from taskqueue.model.ids import JobId, scheduled_id
from taskqueue.model.record import Attempt, Cause, Record, Status
from taskqueue.model.schedules import Again, Cron, Custom, Every, Trigger
from taskqueue.model.schedules.fire import (
    QUESTION,
    UNFIRED,
    ask,
    brought_forward,
    failed_in_a_row,
    fire,
    first_time,
    informed,
    reconciled,
)
from taskqueue.model.schedules.origin import FromSchedule
from taskqueue.model.schedules.schedule import NamedSchedule, Overlap, Stage, misfires, same_definition

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
TEMPLATE = Record(id=ObjectId(), job="app:Clean", data="1", created_at=NOON - HOUR, ready_at=NOON - HOUR, priority=2)


def a_plan(**fields: Any) -> NamedSchedule:
    """Return a plan for each minute, due at noon."""
    given = {"name": "clean", "trigger": Every(60, NOON), "template": TEMPLATE, "next_run_at": NOON, "created_at": NOON}
    return NamedSchedule(**{**given, **fields})


def a_job(status: Status, **fields: Any) -> Record:
    attempts = (
        (Attempt(number=1, claims=1, node="a", ended_at=NOON, outcome="Failed"),) if fields.pop("begun", 0) else ()
    )
    return replace(TEMPLATE, id=ObjectId(), status=status, attempts=attempts, **fields)


def a_plan_after(*ends: bool | None, **fields: Any) -> NamedSchedule:
    """Return a plan whose last jobs have failed (True) or not (False), or did not run to an end (None)."""
    recent = tuple(ObjectId() for _ in ends)
    ended = {id: failed for id, failed in zip(recent, ends, strict=True) if failed is not None}
    return a_plan(stop_after_failures=2, recent=recent, ended=ended, **fields)


def known(*jobs: Record) -> Mapping[JobId, Record]:
    return {job.id: job for job in jobs}


def fired(plan: NamedSchedule, now: datetime, *jobs: Record) -> tuple[NamedSchedule, Sequence[Record]]:
    """Fire the plan, whose last jobs are given, and return what became of it and what it started."""
    firing = fire(replace(plan, recent=tuple(job.id for job in jobs)), known(*jobs), now)
    assert firing is not None
    return firing.after, firing.jobs


def slots(jobs: Sequence[Record]) -> list[datetime]:
    return [job.origin.slot for job in jobs if isinstance(job.origin, FromSchedule)]


def test_a_slot_that_has_come_starts_one_job_like_the_template() -> None:
    after, [job] = fired(a_plan(), NOON + SECOND)

    assert job.id == scheduled_id("clean", NOON)
    assert (job.job, job.data, job.priority, job.ready_at) == ("app:Clean", "1", 2, NOON)
    assert (job.status, job.cause, job.created_at) == (Status.WAITING, Cause.ADDED, NOON + SECOND)
    assert job.origin == FromSchedule(schedule="clean", slot=NOON)
    assert (after.next_run_at, after.fired, after.recent, after.version) == (NOON + MINUTE, 1, (job.id,), 2)


@pytest.mark.parametrize(
    "fields", [{"next_run_at": NOON + MINUTE}, {"next_run_at": None}, {"stage": Stage.PAUSED}, {"stage": Stage.ENDED}]
)
def test_nothing_is_fired_before_its_time(fields: dict[str, Any]) -> None:
    assert fire(a_plan(**fields), {}, NOON) is None


def test_a_job_expires_so_long_after_its_slot() -> None:
    _, [job] = fired(a_plan(expires_for=30), NOON + SECOND)

    assert job.expires_at == NOON + 30 * SECOND


@pytest.mark.parametrize(
    ("misfire", "made_up"),
    [("once", [9]), ("skip", []), ("all(3)", [7, 8, 9]), ("all(1000)", list(range(10)))],
)
def test_slots_that_were_missed_are_made_up_for_as_asked(misfire: str, made_up: list[int]) -> None:
    late = NOON + 9 * MINUTE + 30 * SECOND  # slots 0 to 9 have come, each longer ago than its grace
    after, jobs = fired(a_plan(misfire=misfire, grace=10, overlap=Overlap.ALLOW), late)

    assert slots(jobs) == [NOON + k * MINUTE for k in made_up]
    assert (after.missed, after.next_run_at) == (10 - len(made_up), NOON + 10 * MINUTE)
    assert {(one.first, one.reason) for one in after.misses} <= {(NOON, UNFIRED)}


def test_a_slot_that_is_on_time_makes_up_for_those_before_it() -> None:
    after, jobs = fired(a_plan(grace=40), NOON + 3 * MINUTE + 30 * SECOND)

    assert slots(jobs) == [NOON + 3 * MINUTE]
    assert after.missed == 3


def test_all_slots_that_are_on_time_are_fired() -> None:
    _, jobs = fired(a_plan(grace=90, overlap=Overlap.ALLOW, misfire="skip"), NOON + MINUTE)

    assert slots(jobs) == [NOON, NOON + MINUTE]


def test_of_very_many_missed_slots_the_newest_is_fired_and_the_others_are_counted_up_to_a_bound() -> None:
    every_second = a_plan(trigger=Every(1, NOON), grace=0)
    after, jobs = fired(every_second, NOON + 30 * timedelta(days=1) + SECOND / 2)

    assert slots(jobs) == [NOON + 30 * timedelta(days=1)]
    assert after.missed == 1000 + 999
    assert [one.reason for one in after.misses] == [UNFIRED, UNFIRED]


@pytest.mark.parametrize("status", [Status.WAITING, Status.POSTPONED, Status.PROCESSING])
def test_a_slot_is_skipped_while_a_job_waits_or_runs(status: Status) -> None:
    job = a_job(status)
    after, jobs = fired(a_plan(), NOON, job)

    assert jobs == ()  # X-14, REC-30
    assert (after.missed, after.fired, after.next_run_at) == (1, 0, NOON + MINUTE)
    assert str(job.id) in after.misses[0].reason


def test_a_slot_is_not_skipped_for_a_job_that_has_ended_or_is_gone() -> None:
    plan = replace(a_plan(), recent=(ObjectId(),))

    assert fire(plan, {}, NOON) is not None
    assert len(fired(a_plan(), NOON, a_job(Status.FAILED))[1]) == 1


def test_one_job_can_wait_behind_the_one_that_runs() -> None:
    running = a_job(Status.PROCESSING)
    after, [job] = fired(a_plan(overlap=Overlap.QUEUE_ONE), NOON, running)

    assert (job.status, job.waiting_for) == (Status.POSTPONED, (running.id,))
    assert after.missed == 0


@pytest.mark.parametrize("waiting", [a_job(Status.WAITING), a_job(Status.POSTPONED, waiting_for=(ObjectId(),))])
def test_a_second_one_does_not_wait(waiting: Record) -> None:
    after, jobs = fired(a_plan(overlap=Overlap.QUEUE_ONE), NOON, a_job(Status.PROCESSING), waiting)

    assert (jobs, after.missed) == ((), 1)


def test_a_job_between_two_attempts_counts_as_running() -> None:
    retried = a_job(Status.POSTPONED, begun=True)
    _, [job] = fired(a_plan(overlap=Overlap.QUEUE_ONE), NOON, retried)

    assert job.waiting_for == (retried.id,)


def test_jobs_may_overlap_if_that_is_asked_for() -> None:
    _, jobs = fired(a_plan(overlap=Overlap.ALLOW), NOON, a_job(Status.PROCESSING))

    assert [job.waiting_for for job in jobs] == [()]


def test_the_previous_job_can_give_way() -> None:
    running = a_job(Status.PROCESSING)
    plan = a_plan(overlap=Overlap.CANCEL_PREVIOUS, recent=(running.id,))
    firing = fire(plan, known(running), NOON)

    assert firing is not None
    assert firing.give_way == (running.id,)
    assert [job.waiting_for for job in firing.jobs] == [(running.id,)]


def test_of_several_times_at_once_only_the_last_one_has_a_job_where_the_previous_gives_way() -> None:
    running = a_job(Status.PROCESSING)
    plan = a_plan(overlap=Overlap.CANCEL_PREVIOUS, recent=(running.id,), grace=600)
    firing = fire(plan, known(running), NOON + 2 * MINUTE)

    assert firing is not None
    assert (firing.give_way, slots(firing.jobs)) == ((running.id,), [NOON + 2 * MINUTE])
    assert [job.waiting_for for job in firing.jobs] == [(running.id,)]
    assert (firing.after.fired, firing.after.missed) == (1, 2)
    assert [(miss.first, miss.reason) for miss in firing.after.misses] == [
        (time, f"the next time of the schedule had already come: job {scheduled_id('clean', time + MINUTE)}")
        for time in (NOON, NOON + MINUTE)
    ]


def test_max_runs_ends_a_schedule() -> None:
    after, jobs = fired(a_plan(max_runs=3, fired=1, overlap=Overlap.ALLOW, grace=600), NOON + 5 * MINUTE)

    assert len(jobs) == 2
    assert (after.stage, after.reason, after.next_run_at) == (Stage.ENDED, "max_runs=3 is reached", None)


def test_until_ends_a_schedule_also_one_that_nobody_fired_for_long() -> None:
    after, jobs = fired(a_plan(until=NOON + MINUTE), NOON + HOUR)

    assert slots(jobs) == [NOON + MINUTE]
    assert after.stage is Stage.ENDED
    assert "until" in after.reason


def test_a_trigger_without_a_further_time_ends_a_schedule() -> None:
    last = datetime(8999, 1, 1, tzinfo=timezone.utc)
    after, [_] = fired(a_plan(trigger=Cron("0 0 1 1 *"), next_run_at=last), last)

    assert (after.stage, after.next_run_at) == (Stage.ENDED, None)


def test_failures_in_a_row_end_a_schedule_whether_their_jobs_are_still_there_or_not() -> None:
    for plan in (a_plan_after(False, True, True), a_plan_after(True, None, True)):
        firing = fire(plan, {}, NOON)
        assert firing is not None
        assert firing.after.stage is Stage.ENDED
        assert firing.after.reason == "stop_after_failures=2 is reached"
    for plan in (a_plan_after(True, False, True), a_plan_after(True, True, False), a_plan_after(True, None)):
        firing = fire(plan, {}, NOON)
        assert firing is not None
        assert firing.after.stage is Stage.ACTIVE
    assert failed_in_a_row(a_plan_after(True, None)) == 1


def test_a_job_says_whether_its_end_is_counted() -> None:
    assert fired(a_plan(), NOON)[1][0].origin == FromSchedule(schedule="clean", slot=NOON)
    assert fired(a_plan(stop_after_failures=2), NOON)[1][0].origin == FromSchedule(
        schedule="clean", slot=NOON, is_counted=True
    )


def test_an_interval_from_starts_counts_from_slots_and_does_not_drift() -> None:
    plan = a_plan(trigger=Every(60, "start"), grace=0)
    after, jobs = fired(plan, NOON + 150 * SECOND)

    assert first_time(plan, NOON) == NOON + MINUTE
    assert slots(jobs) == [NOON + 2 * MINUTE]
    assert after.next_run_at == NOON + 3 * MINUTE


@pytest.mark.parametrize("trigger", [Every(60), Again()])
def test_an_interval_from_ends_awaits_the_job(trigger: Every | Again) -> None:
    after, [job] = fired(a_plan(trigger=trigger), NOON)

    assert (after.next_run_at, after.awaits) == (None, job.id)
    assert job.origin == FromSchedule(schedule="clean", slot=NOON, trigger=trigger)


def test_a_skipped_slot_of_such_a_schedule_awaits_the_job_that_was_in_the_way() -> None:
    running = a_job(Status.PROCESSING)
    after, _ = fired(a_plan(trigger=Every(60)), NOON, running)

    assert after.awaits == running.id


def test_a_missed_slot_of_such_a_schedule_is_followed_by_another() -> None:
    after, jobs = fired(a_plan(trigger=Every(60), misfire="skip", grace=5), NOON + HOUR)

    assert (jobs, after.next_run_at, after.missed) == ((), NOON + HOUR + MINUTE, 1)


def test_a_job_that_vanished_unnoticed_does_not_end_its_schedule() -> None:
    awaited = a_job(Status.DONE)
    plan = a_plan(trigger=Every(60), next_run_at=None, awaits=awaited.id)

    for record in (awaited, None):
        found = reconciled(plan, record, NOON)
        assert found is not None
        after, _ = found
        assert (after.next_run_at, after.awaits) == (NOON + MINUTE, None)
    assert reconciled(plan, a_job(Status.PROCESSING), NOON) is None
    assert reconciled(a_plan(), None, NOON) is None


@pytest.mark.parametrize("anchor", ["start", "end"])
def test_a_schedule_waits_no_longer_than_its_interval_after_the_clock_was_set_back(anchor: str) -> None:
    plan = a_plan(trigger=Every(60, anchor), next_run_at=NOON + MINUTE)

    assert brought_forward(plan, NOON) is None
    sooner = brought_forward(plan, NOON - HOUR)
    assert sooner is not None
    assert (sooner.next_run_at, sooner.version) == (NOON - HOUR + MINUTE, plan.version + 1)
    assert brought_forward(replace(plan, stage=Stage.PAUSED), NOON - HOUR) is None
    assert brought_forward(replace(plan, next_run_at=None, awaits=ObjectId()), NOON - HOUR) is None


@pytest.mark.parametrize("trigger", [Every(60, NOON), Cron("* * * * *"), Custom("app:Holidays"), Again()])
def test_times_that_the_clock_has_shown_already_do_not_come_again(trigger: Trigger) -> None:
    assert brought_forward(a_plan(trigger=trigger), NOON - HOUR) is None


def test_a_class_of_the_users_own_is_asked_by_a_job() -> None:
    plan = a_plan(trigger=Custom("app:Holidays"))
    after, [job, question] = fired(plan, NOON)

    assert first_time(plan, NOON) is None
    assert (question.job, after.awaits, after.next_run_at) == (QUESTION, question.id, None)
    assert (job.id, after.fired, after.recent) == (scheduled_id("clean", NOON), 1, (job.id,))
    assert ask(plan, NOON, NOON).id == ask(plan, NOON, NOON + HOUR).id != question.id


def test_an_answer_gives_the_next_time_or_ends_the_schedule() -> None:
    plan = a_plan(trigger=Custom("app:Holidays"), next_run_at=None, awaits=ObjectId(), until=NOON + HOUR)

    assert informed(plan, NOON).next_run_at == NOON
    assert informed(plan, None).stage is Stage.ENDED
    assert informed(plan, NOON + 2 * HOUR).stage is Stage.ENDED


def test_a_question_that_failed_pauses_the_schedule() -> None:
    failed = a_job(Status.FAILED)
    found = reconciled(a_plan(trigger=Custom("app:Holidays"), awaits=failed.id), failed, NOON)

    assert found is not None
    after, asking = found
    assert (after.stage, asking) == (Stage.PAUSED, [])
    assert (after.stage, after.awaits) == (Stage.PAUSED, None)
    assert f"job {failed.id} ended as FAILED" in after.reason


def test_a_question_that_is_gone_is_asked_again() -> None:
    plan = a_plan(trigger=Custom("app:Holidays"))
    gone = ask(plan, NOON, NOON)

    found = reconciled(replace(plan, next_run_at=None, awaits=gone.id), None, NOON)

    assert found is not None
    after, [question] = found
    assert (after.stage, after.awaits, question.job) == (Stage.ACTIVE, question.id, QUESTION)
    assert question.id != gone.id


@pytest.mark.parametrize(
    ("given", "kept"),
    [("once", "once"), ("skip", "skip"), ("all", "all(1000)"), ("all(5)", "all(5)"), (" all( max=5 )", "all(5)")],
)
def test_a_rule_for_misfires_is_read(given: str, kept: str) -> None:
    assert misfires(given) == kept


@pytest.mark.parametrize("given", ["never", "all(0)", "all(1001)", 5, None])
def test_another_rule_is_refused(given: Any) -> None:
    with pytest.raises(InvalidOption):
        misfires(given)


def test_definitions_are_compared_without_what_became_of_them() -> None:
    one = a_plan()

    assert same_definition(one, replace(one, fired=7, version=9, next_run_at=None, template=replace(TEMPLATE, rank=5)))
    assert not same_definition(one, replace(one, grace=1.0))
    assert not same_definition(one, replace(one, template=replace(TEMPLATE, data="2")))
