"""Finds the next run after a recurring job: the next occurrence of a series, or the next time of a schedule."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from taskqueue.model.ids import JobId, occurrence_id, without_text
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.record import Cause, Record, Status, changed
from taskqueue.model.schedules import Again, Every
from taskqueue.model.schedules.origin import FromSchedule, Series
from taskqueue.model.schedules.trigger import START
from taskqueue.model.timestamps import whole

_BAD = (Status.FAILED, Status.TIMEOUT)

_UNTRIED = {
    "depends_on": (),
    "waiting_for": (),
    "holder": None,
    "claims": 0,
    "failures": 0,
    "crashes": 0,
    "cancel": None,
    "unloadable_since": None,
    "unloadable_times": 0,
    "started_at": None,
    "ended_at": None,
    "progress": 0.0,
    "progress_message": "",
    "progress_at": None,
    "state": None,
    "cursor": None,
    "course": None,
    "result": None,
    "error": None,
    "attempts": (),
}
"""The fields of a job without attempts."""


@dataclass(frozen=True, kw_only=True)
class NextRun:
    """The change of a schedule at the end of a job that it started."""

    schedule: str
    job: JobId
    next_run_at: datetime | None = None
    """When it runs next, if it awaited the job; None if that does not depend on it."""
    failed: bool | None = None
    """Whether the job failed; None if that is not counted."""


def successor(ended: Record, now: datetime) -> Record | None:
    """Return the occurrence that follows ``ended``, None if the series has ended.

    A failed occurrence does not end its series, a canceled one does; an expired one is followed like one that ran.
    """
    series = ended.origin
    if not isinstance(series, Series) or not ended.status.is_final or _was_canceled(ended):
        return None
    failed = series.failed + 1 if ended.status in _BAD else 0
    if series.max_runs is not None and series.occurrence >= series.max_runs:
        return None
    if series.stop_after_failures is not None and failed >= series.stop_after_failures:
        return None
    at = _next_time(series.trigger, ended, now)
    if series.until is not None and at > series.until:
        return None
    following = replace(series, occurrence=series.occurrence + 1, failed=failed)
    return _fresh(ended, following, max(at, whole(now)), now)


def advance(ended: Record, now: datetime) -> NextRun | None:
    """Return the change of the schedule that started the job; None if there is none."""
    fired = ended.origin
    if not isinstance(fired, FromSchedule) or not ended.status.is_final:
        return None
    counts = fired.is_counted and ended.status is not Status.CANCELED
    if fired.trigger is None and not counts:
        return None
    next_run_at = None if fired.trigger is None else max(_next_time(fired.trigger, ended, now), whole(now))
    failed = ended.status in _BAD if counts else None
    return NextRun(schedule=fired.schedule, job=ended.id, next_run_at=next_run_at, failed=failed)


def ends_series(ended: Record) -> str:
    """Return in words why no occurrence follows the one that has ended; empty if one does, or there is no series."""
    series = ended.origin
    if not isinstance(series, Series) or not ended.status.is_final or ended.ended_at is None:
        return ""
    if _was_canceled(ended):
        return "the occurrence was canceled"
    if successor(ended, ended.ended_at) is not None:
        return ""
    if series.max_runs is not None and series.occurrence >= series.max_runs:
        return f"max_runs={series.max_runs} is reached"
    if series.stop_after_failures is not None and ended.status in _BAD:
        return f"stop_after_failures={series.stop_after_failures} is reached"
    return f"the next time would be after until={series.until:%Y-%m-%d %H:%M:%S} UTC"


def _was_canceled(ended: Record) -> bool:
    """Return whether the job was asked to end, even if it ended before the request arrived."""
    return ended.cancel is not None or (ended.status is Status.CANCELED and ended.cause is not Cause.EXPIRED)


def _next_time(trigger: Every | Again, ended: Record, now: datetime) -> datetime:
    """Return the next time of the trigger; after a timeout an interval from the start counts from now."""
    if isinstance(trigger, Again):
        return whole(now)
    from_start = trigger.anchor == START and ended.started_at is not None and ended.status is not Status.TIMEOUT
    return trigger.after(ended.started_at if from_start and ended.started_at else whole(now))


def _fresh(ended: Record, series: Series, at: datetime, now: datetime) -> Record:
    """Return a record like ``ended`` as it was added, due at another time; retries start again at zero."""
    later = at > now
    return changed(
        ended,
        id=occurrence_id(series.id, series.occurrence),
        given=without_text(ended.given),
        origin=series,
        created_at=whole(now),
        expires_at=None if series.expires_for is None else whole(at + timedelta(seconds=series.expires_for)),
        status=Status.POSTPONED if later else Status.WAITING,
        cause=Cause.SCHEDULED if later else Cause.ADDED,
        ready_at=at,
        **_UNTRIED,
    ).at_rank()
