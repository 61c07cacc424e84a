"""Settles steps: the record between two steps, and after a bad end."""

from __future__ import annotations

from dataclasses import replace as replaced
from datetime import datetime, timedelta

from taskqueue.model.lifecycle.claim_end import end_as, run_later
from taskqueue.model.lifecycle.continuation import CLEAN_UPS, PHASES, Continuation, Phase
from taskqueue.model.lifecycle.outcomes import Canceled, Crashed, Done, Failed, GivenUp, Stalled, Stepped, TimedOut
from taskqueue.model.record import (
    Cause,
    Failure,
    Record,
    Status,
    replace,
)

CLEAN_UP_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (1, 10, 60, 600))
"""The pause after each failed ``clean_up``."""


def after_step(record: Record, outcome: Stepped, now: datetime) -> Record:
    """Return the record before its next step; failures and crashes of this step no longer count."""
    course = record.course or Continuation()
    if outcome.phase not in PHASES[course.phase]:
        return _out_of_step(record, course.phase, outcome.phase, now)
    following = replaced(
        course,
        phase=outcome.phase,
        steps=course.steps + (course.phase is Phase.RUNNING),
        reports=outcome.reports or course.reports,
        failures=record.failures,
        crashes=record.crashes,
        crashed_at=None,
    )
    state = outcome.state or record.state
    later = run_later(record, Cause.STEPPED, timedelta(0), now)
    return replace(later, course=following, state=state, cursor=None, error=None)


def _out_of_step(record: Record, before: Phase | None, after: Phase, now: datetime) -> Record:
    """Return the record as failed: its worker reported a step that cannot follow, so another version of us ran it."""
    at = "a job that had no steps yet" if before is None else f"the phase {before.value!r}"
    message = (
        f"its worker reported the phase {after.value!r}, which does not follow {at}: "
        "do node and worker run the same version?"
    )
    failed = replace(record, failures=record.failures + 1)
    return end_as(failed, Status.FAILED, Cause.FAILED, now, Failure(type="taskqueue.InvalidStep", message=message))


def with_reports(record: Record, reports: str | None) -> Record:
    """Return the record with state and reports of its last step."""
    if record.course is None or reports is None:
        return record
    return replace(record, course=replaced(record.course, reports=reports))


def after_clean_up(
    record: Record, outcome: Done | Failed | GivenUp | TimedOut | Stalled | Canceled | Crashed, now: datetime
) -> Record:
    """Return the record at its end, or before another try to clean up."""
    course = record.course
    assert course is not None
    assert course.ends_as is not None
    if isinstance(outcome, Done):
        record = with_reports(record, outcome.reports)
        return end_as(record, Status(course.ends_as), Cause(course.ends_because), now, record.error)
    if isinstance(outcome, Canceled):
        return end_as(record, Status.CANCELED, Cause.CANCELED, now, record.error)
    course = replaced(course, clean_ups=course.clean_ups + 1)
    record = replace(record, course=course)
    if course.clean_ups >= CLEAN_UPS:
        first = f"; before that: {record.error.message}" if record.error else ""
        failure = replaced(outcome.failure, message=f"clean_up() failed: {outcome.failure.message}{first}")
        return end_as(record, Status.FAILED, Cause.CLEAN_UP_FAILED, now, failure)
    return run_later(record, Cause.CLEAN_UP, CLEAN_UP_PAUSES[course.clean_ups - 1], now)
