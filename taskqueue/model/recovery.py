"""The copy of a job that has ended, to be run once more (REC-33)."""

from __future__ import annotations

from datetime import datetime

from taskqueue.errors import WrongStatus
from taskqueue.model.record import Cause, JobId, Record, Status
from taskqueue.model.request import expiry

ORIGIN = "recovered_from"
"""Where ``given`` of the copy names the job that it is a copy of."""


def copy(record: Record, id: JobId, at: datetime | None, now: datetime) -> Record:
    """Return a new record of the same job with the same data and options, its counters and its history empty.

    It runs from ``at`` on; None is at once. A time at which it would expire is kept where it counts from that time, or
    lies behind it. Raises ``WrongStatus`` for a record that has not ended.
    """
    if not record.status.is_final:
        raise WrongStatus(record.id, record.status.name, "be recovered when it has ended")
    later = at is not None and at > now
    ready_at = at if at is not None and later else now
    given = {name: value for name, value in record.given.items() if name not in ("at", ORIGIN)}
    if later:
        given["at"] = ready_at.isoformat(timespec="milliseconds")
    expires_at = expiry(record, ready_at)
    return Record(
        id=id,
        job=record.job,
        data=record.data,
        queue=record.queue,
        priority=record.priority,
        tags=record.tags,
        unique=record.unique,
        options=record.options,
        given={**given, ORIGIN: str(record.id)},
        lane=record.lane,
        created_at=now,
        expires_at=expires_at if expires_at is not None and expires_at > ready_at else None,
        status=Status.POSTPONED if later else Status.WAITING,
        cause=Cause.SCHEDULED if later else Cause.ADDED,
        ready_at=ready_at,
    ).at_rank()


def origin_of(record: Record) -> JobId | None:
    """Return the id of the job that the record is a copy of, None if it is none."""
    origin = record.given.get(ORIGIN)
    return None if origin is None else JobId(origin)
