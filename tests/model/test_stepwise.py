"""The phases of a job that runs in steps, what counts against it, and that it cleans up before any bad end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue.model.lifecycle import pending, settle
from taskqueue.model.lifecycle.continuation import (
    CLEAN_UP_LIMIT,
    CLEAN_UPS,
    PHASES,
    Continuation,
    Phase,
    continuation_of,
    document,
)
from taskqueue.model.lifecycle.outcomes import (
    Canceled,
    Crashed,
    Done,
    Failed,
    GivenUp,
    HandedBack,
    Interrupted,
    Outcome,
    Snoozed,
    Stalled,
    Stepped,
    TimedOut,
    Unloadable,
)
from taskqueue.model.lifecycle.settle import CLEAN_UP_PAUSES
from taskqueue.model.record import CancelRequest, Cause, Failure, OnCrash, Options, Record, Status, rank_of
from taskqueue.model.retry import NO_RETRY, FixedRetry, RetryPolicy
from tests.model.lifecycle.test_pending import BROKEN, HOUR, LEASE, NOW, OUTCOMES, RUN, WEB, a_record

JB_3 = {
    "starting": {"running", "ending", "failing", "failed", "completed"},
    "running": {"ending", "failing", "failed", "completed"},
    "ending": {"failing", "failed", "completed"},
    "failing": {"failed"},
}
"""The ancestor's table; every phase may also stay what it is."""

END_WELL = Failure(type="app.Late", message="too late")


def in_phase(phase: Phase, retry: RetryPolicy = NO_RETRY, **given: object) -> Record:
    """Return a running record in a phase, with 7 steps behind it."""
    course = Continuation(phase=phase, steps=7)
    if phase is Phase.FAILING:
        course = replace(course, ends_as=int(Status.TIMEOUT), ends_because=Cause.TIMED_OUT.value)
        given = {"error": END_WELL, **given}
    options = given.pop("options", Options(retry=retry))
    return a_record(Status.PROCESSING, course=course, options=options, **given)


def ended(record: Record, outcome: Outcome) -> Record:
    return settle.ended(record, outcome, RUN, NOW)


def word(record: Record) -> str:
    """Return the ancestor's word for where the record is."""
    if record.status is Status.DONE:
        return "completed"
    return "failed" if record.status.is_final else Phase(record.phase or Phase.STARTING).value


def outcomes(phase: Phase) -> Iterator[Outcome]:
    """Return every outcome that a step of this phase may have."""
    for name, some in OUTCOMES.items():
        if name == "Done" and phase in (Phase.STARTING, Phase.RUNNING):
            continue
        yield from some if name != "Stepped" else (Stepped(phase=next) for next in PHASES[phase] - {Phase.FAILING})


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_leads_to_those_of_the_ancestors_table_and_to_no_other(phase: Phase) -> None:  # JB-3, X-2
    for retry in (NO_RETRY, FixedRetry(times=5)):
        for outcome in outcomes(phase):
            after = ended(in_phase(phase, retry, crashes=3), outcome)

            assert word(after) in JB_3[phase.value] | {phase.value}, outcome
            assert not (phase is Phase.FAILING and after.status is Status.DONE)


def test_a_job_whose_worker_tells_of_a_phase_that_does_not_follow_has_failed() -> None:  # JB-3
    after = ended(in_phase(Phase.FAILING), Stepped(phase=Phase.STARTING))

    assert (after.status, after.cause, after.failures) == (Status.FAILED, Cause.FAILED, 1)
    assert after.error is not None
    assert "'starting', which does not follow the phase 'failing'" in after.error.message


def test_one_in_its_steps_cleans_up_after_a_phase_that_does_not_follow() -> None:  # JB-3, JB-6
    after = ended(in_phase(Phase.RUNNING), Stepped(phase=Phase.STARTING))

    assert (after.status, after.phase) == (Status.WAITING, Phase.FAILING)
    assert after.course is not None
    assert after.course.ends_as == Status.FAILED


def test_a_step_that_is_over_waits_behind_all_others_of_its_priority() -> None:
    record = in_phase(Phase.RUNNING, failures=2, crashes=1, error=BROKEN, cursor='{"":3}', state="{}", priority=4)

    after = ended(record, Stepped(phase=Phase.RUNNING, state='{"n":1}', reports='{"n":2}'))

    assert (after.status, after.cause, after.ready_at) == (Status.WAITING, Cause.STEPPED, NOW)
    assert after.rank == rank_of(NOW, 4)
    assert (after.state, after.cursor, after.error, after.attempts) == ('{"n":1}', None, None, ())
    course = Continuation(phase=Phase.RUNNING, steps=8, reports='{"n":2}', failures=2, crashes=1)
    assert after.course == course
    assert (after.counted_failures, after.counted_crashes, after.attempt) == (0, 0, 4)


def test_only_iterations_are_counted_as_steps() -> None:
    record = a_record(Status.PROCESSING)
    steps = []
    for phase in (Phase.STARTING, Phase.RUNNING, Phase.RUNNING, Phase.ENDING):
        record = replace(ended(record, Stepped(phase=phase)), status=Status.PROCESSING)
        assert record.course is not None
        steps.append(record.course.steps)

    assert steps == [0, 0, 1, 2]


def test_each_step_has_the_whole_retry_policy_to_itself() -> None:
    record = in_phase(Phase.RUNNING, FixedRetry(times=1), failures=1)
    fresh = replace(ended(record, Stepped(phase=Phase.RUNNING)), status=Status.PROCESSING)

    assert settle.is_last_attempt(record, NOW)
    assert not settle.is_last_attempt(fresh, NOW)
    assert ended(fresh, Failed(failure=BROKEN)).cause is Cause.RETRY


@pytest.mark.parametrize(
    ("outcome", "end", "cause"),
    [
        (Failed(failure=BROKEN), Status.FAILED, Cause.FAILED),
        (GivenUp(failure=BROKEN), Status.FAILED, Cause.FAILED),
        (TimedOut(failure=BROKEN), Status.TIMEOUT, Cause.TIMED_OUT),
        (Stalled(failure=BROKEN), Status.TIMEOUT, Cause.STALLED),
        (Crashed(failure=BROKEN), Status.FAILED, Cause.CRASHED),
        (Canceled(), Status.CANCELED, Cause.CANCELED),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.ENDING])
def test_it_cleans_up_before_a_bad_end(phase: Phase, outcome: Outcome, end: Status, cause: Cause) -> None:  # JB-6, JB-9
    failing = ended(in_phase(phase, options=Options(crash_retries=0)), outcome)

    assert (failing.status, failing.cause, failing.phase) == (Status.WAITING, Cause.CLEAN_UP, Phase.FAILING)
    assert failing.error is not None
    cleaning = pending.claimed(failing, WEB, NOW + LEASE)
    after = ended(cleaning, Done(reports='{"cleaned":true}'))
    assert (after.status, after.cause, after.error) == (end, cause, failing.error)
    assert after.course is not None
    assert after.course.reports == '{"cleaned":true}'


@pytest.mark.parametrize("status", [Status.WAITING, Status.POSTPONED])
def test_one_that_waits_for_its_next_step_cleans_up_when_it_is_canceled(status: Status) -> None:  # JB-6, X-28
    record = a_record(status, course=Continuation(phase=Phase.RUNNING), ready_at=NOW + HOUR)

    failing = pending.canceled(record, "enough", NOW)
    again = pending.canceled(failing, "at once", NOW)

    assert (failing.status, failing.phase, failing.ready_at) == (Status.WAITING, Phase.FAILING, NOW)
    assert (again.status, again.cause) == (Status.CANCELED, Cause.CANCELED)


def test_one_that_has_not_begun_is_canceled_at_once() -> None:
    assert pending.canceled(a_record(), "", NOW).status is Status.CANCELED


def test_one_that_is_replaced_or_cannot_be_loaded_does_not_clean_up() -> None:
    waiting = a_record(course=Continuation(phase=Phase.RUNNING))
    running = in_phase(Phase.RUNNING)

    assert pending.canceled(waiting, "", NOW, Cause.REPLACED).status is Status.CANCELED
    assert ended(running, Unloadable(failure=BROKEN, retry_for=timedelta(0))).cause is Cause.UNLOADABLE


def test_nobody_interrupts_the_cleaning_but_its_time_is_bounded() -> None:
    cleaning = in_phase(Phase.FAILING)

    assert pending.canceled(cleaning, "enough", NOW) == cleaning
    assert pending.orphaned(cleaning, cleaning.id, Status.CANCELED, NOW) == cleaning
    asked = replace(cleaning, cancel=CancelRequest(requested_at=NOW))
    assert ended(asked, Interrupted()).status is Status.WAITING
    assert settle.time_limit(cleaning) == CLEAN_UP_LIMIT
    assert settle.time_limit(replace(cleaning, options=Options(timeout=5))) == 5
    assert settle.time_limit(in_phase(Phase.RUNNING)) is None


@pytest.mark.parametrize(
    "outcome",
    [Failed(failure=BROKEN), GivenUp(failure=BROKEN), TimedOut(failure=BROKEN), Crashed(failure=BROKEN)],
    ids=lambda outcome: type(outcome).__name__,
)
def test_cleaning_up_is_tried_with_growing_pauses_and_then_given_up(outcome: Outcome) -> None:
    record = in_phase(Phase.FAILING, FixedRetry(times=50), options=Options(on_crash=OnCrash.FAIL))
    pauses = []
    while not record.status.is_final:
        record = ended(replace(record, status=Status.PROCESSING), outcome)
        if record.ready_at is not None:
            pauses.append(record.ready_at - NOW)

    assert pauses == list(CLEAN_UP_PAUSES)
    assert len(pauses) == CLEAN_UPS - 1
    assert (record.status, record.cause) == (Status.FAILED, Cause.CLEAN_UP_FAILED)
    assert record.error is not None
    assert record.error.message == "clean_up() failed: no such address; before that: too late"


@pytest.mark.parametrize("outcome", [Interrupted(), HandedBack(), Snoozed(seconds=0)], ids=repr)
def test_an_interrupted_cleaning_counts_nowhere(outcome: Outcome) -> None:
    after = ended(in_phase(Phase.FAILING), outcome)

    assert (after.status, after.phase) == (Status.WAITING, Phase.FAILING)
    assert after.course is not None
    assert after.course.clean_ups == 0


def test_a_step_that_is_over_makes_an_interruption_that_nobody_asked_for_the_first() -> None:
    stopped, signalled = Interrupted(), Interrupted(failure=BROKEN)
    first = ended(in_phase(Phase.RUNNING, options=Options(crash_retries=0)), signalled)
    step = ended(pending.claimed(first, WEB, NOW + LEASE), Stepped(phase=Phase.RUNNING))
    further = ended(pending.claimed(step, WEB, NOW + LEASE), signalled)
    halted = ended(pending.claimed(further, WEB, NOW + LEASE), stopped)
    again = ended(pending.claimed(halted, WEB, NOW + LEASE), signalled)

    assert [record.crashes for record in (first, further, halted, again)] == [0, 0, 0, 1]
    assert again.phase is Phase.FAILING


def test_a_cleaning_that_is_interrupted_again_and_again_is_given_up() -> None:
    record = in_phase(Phase.FAILING)
    for _ in range(CLEAN_UPS + 1):
        record = ended(replace(record, status=Status.PROCESSING, claims=record.claims + 1), Interrupted(failure=BROKEN))

    assert (record.status, record.cause) == (Status.FAILED, Cause.CLEAN_UP_FAILED)


def test_a_step_that_was_canceled_while_it_ran_to_its_end_cleans_up() -> None:
    asked = in_phase(Phase.RUNNING, cancel=CancelRequest(requested_at=NOW, reason="enough"))

    after = ended(asked, Stepped(phase=Phase.RUNNING))

    assert (after.status, after.phase) == (Status.WAITING, Phase.FAILING)
    assert after.error == Failure(type="Canceled", message="enough")


def test_one_that_has_come_some_way_is_not_late() -> None:
    record = in_phase(Phase.RUNNING, expires_at=NOW + HOUR, started_at=None)

    for back in (ended(record, HandedBack()), settle.lost(record, NOW)):
        assert not pending.is_late(back, NOW + 2 * HOUR)


def test_crashes_count_only_while_a_loop_does_not_move_on() -> None:
    record = a_record(Status.PROCESSING, options=Options(crash_retries=1))
    for place in range(50):
        record = ended(replace(record, status=Status.PROCESSING, cursor=f'{{"":{place}}}'), Crashed(failure=BROKEN))
        assert (record.status, record.counted_crashes) == (Status.WAITING, 1)

    stuck = ended(replace(record, status=Status.PROCESSING), Crashed(failure=BROKEN))
    assert (stuck.status, stuck.crashes, stuck.counted_crashes) == (Status.FAILED, 51, 2)


def test_crashes_count_where_there_is_no_loop() -> None:
    record = ended(a_record(Status.PROCESSING, crashes=3), Crashed(failure=BROKEN))

    assert (record.status, record.course) == (Status.FAILED, None)


def test_a_course_comes_back_from_its_document() -> None:
    full = Continuation(
        phase=Phase.FAILING,
        steps=3,
        reports='{"n":1}',
        failures=1,
        crashes=2,
        crashed_at='{"":1}',
        ends_as=4,
        ends_because="crashed",
        clean_ups=1,
    )

    assert [continuation_of(document(course)) for course in (full, Continuation())] == [full, Continuation()]
