"""The options of a series: checks them, builds the series, and reads them back from a record."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.model.schedules import Again, Every, is_relative, moment_of, seconds_of
from taskqueue.model.schedules.origin import Series
from taskqueue.model.schedules.trigger import END, SHORTEST, START
from taskqueue.model.timestamps import EPOCH

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
