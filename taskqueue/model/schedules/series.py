"""Recurring jobs: the options of a series, and the run that follows a job that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.ids import JobId, occurrence_id, without_text
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.record import Cause, Record, Status, changed
from taskqueue.model.schedules import Again, Every, is_relative, moment_of, seconds_of
from taskqueue.model.schedules.origin import FromSchedule, Series
from taskqueue.model.schedules.trigger import END, SHORTEST, START
from taskqueue.model.timestamps import EPOCH, whole

AT_ONCE = -1
"""The interval of a job that runs again as soon as a run has ended."""

FAILURES_LIMIT = 100
"""Maximum number of failures in a row that can be waited for: a schedule looks back no further."""


def interval(value: Any) -> float | None:
    """Return the interval in seconds, -1 for at once, None for a job that runs once; raise ``InvalidOption``."""
    if value is None:
        return None
    if type(value) in (int, float) and value == AT_ONCE:
        return AT_ONCE
    if type(value) in (int, float) and value < 0:
        raise InvalidOption("pass a duration such as '5m', or -1 for at once")
    seconds = round(seconds_of(value), 3)
    if 0 < seconds < SHORTEST or (seconds == 0 and value != 0):
        raise InvalidOption("pass 1 ms or more, or -1 for at once")
    return seconds or None


def reference(value: Any) -> str | datetime:
    """Return what the interval counts from: ``end``, ``start``, or a base time; raise ``InvalidOption``."""
    if value in (END, START):
        return str(value)
    at = moment_of(value, EPOCH)
    return str(value).strip() if is_relative(value) else at


def trigger(options: Mapping[str, Any], now: datetime) -> Every | Again | None:
    """Return the trigger, None for a job that runs once."""
    seconds, anchor = options["interval"], options["interval_reference"]
    if seconds is None:
        _refuse_alone(options)
        return None
    if seconds == AT_ONCE:
        return Again()
    return Every(seconds, anchor if anchor in (END, START) else moment_of(anchor, now))


def first(trigger: Every | Again | None, now: datetime) -> datetime | None:
    """Return when a series without ``at`` starts: at once, or at the first step from its base time."""
    return trigger.after(now) if isinstance(trigger, Every) and trigger.base is not None else None


def series(options: Mapping[str, Any], trigger: Every | Again, made: Record, now: datetime) -> Series:
    """Return the series that the new record starts; raise ``InvalidOption`` for options of a single job."""
    if made.expires_at is not None and not is_relative(options["expires"]):
        raise InvalidOption(
            f"expires={options['expires']!s} is a fixed time, but the job recurs: pass a relative one such as '+1 hour'"
        )
    until = None if options["until"] is None else moment_of(options["until"], now)
    if until is not None and made.ready_at is not None and until < made.ready_at:
        raise InvalidOption(
            f"until={options['until']!s} is before the time at which the job may start: pass a later one"
        )
    expires_for = None
    if made.expires_at is not None and made.ready_at is not None:
        expires_for = (made.expires_at - max(made.ready_at, now)).total_seconds()
    return Series(
        id=made.id,
        trigger=trigger,
        until=until,
        max_runs=options["max_runs"],
        stop_after_failures=options["stop_after_failures"],
        expires_for=expires_for,
    )


def in_force(record: Record) -> dict[str, Any]:
    """Return the options of recurrence that a record has, as plain JSON values."""
    series = record.origin if isinstance(record.origin, Series) else None
    every = series.trigger if series is not None and isinstance(series.trigger, Every) else None
    return {
        "interval": every.seconds if every else AT_ONCE if series else None,
        "interval_reference": _stated(every.anchor) if every else END,
        "until": _stated(series.until) if series else None,
        "max_runs": series.max_runs if series else None,
        "stop_after_failures": series.stop_after_failures if series else None,
    }


def differs(record: Record, name: str, value: Any) -> bool:
    """Return whether the value of an option of recurrence differs from the value of the record."""
    if is_relative(value):
        return bool(record.given.get(name) != value)
    return bool(in_force(record)[name] != _stated(value))


def series_id(record: Record) -> JobId | None:
    """Return the series that the record is of, None for other jobs."""
    return record.origin.id if isinstance(record.origin, Series) else None


def _refuse_alone(options: Mapping[str, Any]) -> None:
    for name in ("until", "max_runs", "stop_after_failures"):
        if options[name] is not None:
            raise InvalidOption(f"{name}={options[name]!s} is for a job that recurs: pass interval as well")


def _stated(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


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
