"""Ends a claim: to run later, to go back into the queue, or for good."""

from __future__ import annotations

from dataclasses import replace as replaced
from datetime import datetime, timedelta

from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.record import PRIORITY_STEP, Cause, Failure, Record, Status, replace
from taskqueue.model.timestamps import moment, whole


def run_later(record: Record, cause: Cause, pause: timedelta, now: datetime) -> Record:
    """Return the record freed, to run again after the pause."""
    status = Status.POSTPONED if pause > timedelta(0) else Status.WAITING
    freed = replace(record, status=status, cause=cause, ready_at=whole(now + pause), holder=None)
    return freed.at_rank()


def put_back(record: Record, cause: Cause, now: datetime) -> Record:
    """Return the record with its rank, as before the claim; one claimed early waits for its time."""
    since = waits_since(record)
    if since > now:
        status, cause = Status.POSTPONED, Cause.SCHEDULED
    else:
        status = Status.WAITING
    return replace(record, status=status, cause=cause, ready_at=since, holder=None, started_at=began_at(record))


def began_at(record: Record) -> datetime | None:
    """Return when the last attempt started; the current claim may not have started one. A started job is not late."""
    start_times = (attempt.started_at for attempt in reversed(record.attempts) if attempt.started_at is not None)
    has_begun = record.course is not None and record.course.has_begun
    return next(start_times, waits_since(record) if has_begun else None)


def waits_since(record: Record) -> datetime:
    """Return since when the record waits, or until when; its rank says so even while a claim holds it."""
    return since_of(record.rank, record.priority)


def since_of(rank: int, priority: int) -> datetime:
    """Return since when, or until when, a record of this rank and priority waits."""
    return moment(rank) - priority * PRIORITY_STEP


_UNCLEANED = (Cause.UNLOADABLE, Cause.UNREADABLE, Cause.REPLACED, Cause.DUPLICATE)
"""The unsuccessful ends before which a job in steps does not clean up: no worker can, or another job has its key."""


def end_as(record: Record, status: Status, cause: Cause, now: datetime, error: Failure | None) -> Record:
    """Return the record at this end; a job that runs in steps cleans up first."""
    cannot_load = cause is Cause.GIVEN_UP and record.cause is Cause.UNLOADABLE
    is_cleaned = cause not in _UNCLEANED and not cannot_load
    if record.phase not in (None, Phase.FAILING) and status is not Status.DONE and is_cleaned:
        return _to_clean_up(record, status, cause, now, error)
    return replace(
        record,
        status=status,
        cause=cause,
        ready_at=None,
        holder=None,
        waiting_for=(),
        ended_at=whole(now),
        error=error,
    )


def _to_clean_up(record: Record, status: Status, cause: Cause, now: datetime, error: Failure | None) -> Record:
    """Return the record that must clean up before it ends."""
    assert record.course is not None
    course = replaced(record.course, phase=Phase.FAILING, ends_as=int(status), ends_because=cause.value)
    later = run_later(record, Cause.CLEAN_UP, timedelta(0), now)
    return replace(later, course=course, cursor=None, waiting_for=(), error=error)


_STEP_ENDS = (Cause.STEPPED, Cause.CLEAN_UP, Cause.FAILED)
"""The causes after a step, which leaves no attempt: the next one, clean-up for a cancel, or a step out of turn."""


def counted_from(after: Record, now: datetime, *, is_unseen: bool) -> datetime | None:
    """Return from when rates count the claim that has led to this record; None if its run never started.

    If no process has seen the end of the run, its class may have taken until then to load, and the job may have started
    just before.
    """
    if is_unseen:
        return now
    last = after.attempts[-1] if after.attempts else None
    if last is not None and last.claims == after.claims:
        return last.started_at
    return after.started_at if after.cause in _STEP_ENDS else None
