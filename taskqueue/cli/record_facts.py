"""Facts of a record in few words, for tables."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

from taskqueue.model.controls import Control
from taskqueue.model.record import Cause, Record, Status

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def duration(seconds: float) -> str:
    """Return whole units of a duration: ``3s``, ``12m``, ``5h``, ``2d``; below a second in milliseconds."""
    if seconds <= 0:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    return f"{int(seconds // size)}{unit}"


def span(seconds: float) -> str:
    """Return a duration by its two greatest units: ``8h59m``, ``1d3h``, ``45s``."""
    for (size, unit), (smaller, lesser) in pairwise(_UNITS):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)}{unit}{f'{rest}{lesser}' if rest else ''}"
    return duration(seconds)


def age(record: Record, now: datetime) -> str:
    """Return how long ago the job was added."""
    return duration(max((now - record.created_at).total_seconds(), 1))


def progress(record: Record) -> str:
    """Return the progress where there is any."""
    return f"{record.progress:.0f}%" if record.progress or record.status is Status.PROCESSING else "-"


def attempts(record: Record) -> str:
    """Return how many attempts there were, with the present one, of those that retry allows."""
    return str(record.tries)


def cause(record: Record, now: datetime) -> str:
    """Return why the record is as it is, with what helps most to act on it."""
    if record.damage and not record.status.is_final:
        return Cause.UNREADABLE.value
    said = record.cause.value.replace("_", " ")
    match record.status:
        case Status.PROCESSING:
            return _running(record)
        case Status.WAITING:
            return "" if record.cause is Cause.ADDED else f"after {said}"
        case Status.POSTPONED:
            return _postponed(record, said, now)
        case Status.DONE:
            return said
    reason = record.error.type.rpartition(".")[2] if record.error else ""
    return f"{said}: {reason}" if reason and reason.lower() != said else said


def count(number: int, thing: str) -> str:
    """Return so many of a thing: ``1 job``, ``1,200 jobs``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def moment(moment: datetime | None) -> str:
    """Return a time in the zone of the person who reads it, with the zone."""
    return "-" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def decided(control: Control) -> str:
    """Return what was decided, since when it holds, by whom and why."""
    reason = f": {control.reason}" if control.reason else ""
    return f"{control}, since {moment(control.since)} by {control.by}{reason}"


def size(count: int) -> str:
    """Return bytes in whole mebibytes, or kibibytes where that is less than one."""
    return f"{count / 1024**2:.0f} MiB" if count >= 1024**2 else f"{count / 1024:.0f} KiB"


def _running(record: Record) -> str:
    seat = record.holder.seat if record.holder else "?"
    if record.cancel is not None:
        return f"asked to end, on {seat}"
    if record.progress_message:
        return f"{record.progress_message}, on {seat}"
    return f"on {seat}"


def _postponed(record: Record, said: str, now: datetime) -> str:
    if record.waiting_for:
        return f"behind {count(len(record.waiting_for), 'job')}"
    left = (record.ready_at - now) if record.ready_at else timedelta(0)
    return f"{said} in {span(left.total_seconds())}"
