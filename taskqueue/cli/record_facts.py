"""Describes a record in few words, as cells of tables."""

from __future__ import annotations

from datetime import datetime, timedelta

from taskqueue.cli import ids
from taskqueue.model.controls import NONE, Controls
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.wording import count, percent, span


def cells(record: Record, now: datetime, controls: Controls) -> list[str]:
    """Return the cells of the job in a list: id, class, status, queue, age, progress, attempts and cause."""
    return [
        ids.named(record),
        record.shown_job,
        record.status.name,
        record.queue,
        span(max(round((now - record.created_at).total_seconds()), 1)),
        progress(record),
        str(record.tries),
        cause(record, now, controls),
    ]


def progress(record: Record) -> str:
    """Return the progress if there is any."""
    if not record.progress and record.status is not Status.PROCESSING:
        return "-"
    return percent(record.progress / 100).replace(" ", "")


def cause(record: Record, now: datetime, controls: Controls = NONE) -> str:
    """Return the cause of the record's status, with the most helpful detail."""
    if record.damage and not record.status.is_final:
        return Cause.UNREADABLE.value
    said = record.cause.value.replace("_", " ")
    match record.status:
        case Status.PROCESSING:
            return _running(record)
        case Status.WAITING:
            before = "" if record.cause is Cause.ADDED else f"after {said}"
            return ", ".join(filter(None, (before, controls.hold_in_words(record.queue, record.lane))))
        case Status.POSTPONED:
            return _postponed(record, said, now)
        case Status.DONE:
            return said
    reason = record.error.type.rpartition(".")[2] if record.error else ""
    return f"{said}: {reason}" if reason and reason.lower() != said else said


def _running(record: Record) -> str:
    seat = record.holder.seat if record.holder else "?"
    if record.cancel is not None:
        return f"asked to end, on {seat}"
    if record.progress_message:
        return f"{record.progress_message}, on {seat}"
    return f"on {seat}"


def _postponed(record: Record, said: str, now: datetime) -> str:
    if record.waiting_for:
        return f"waits for {count(len(record.waiting_for), 'job')}"
    left = (record.ready_at - now) if record.ready_at else timedelta(0)
    return f"{said} in {span(max(left.total_seconds(), 0))}"
