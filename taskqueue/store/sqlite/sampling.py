"""What figures are made of: of the jobs that ended in a time the few columns that count, the newest first."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime

from taskqueue.model.analytics import Sample
from taskqueue.model.record import PRIORITY_STEP, Status, milliseconds, moment

_STEP = PRIORITY_STEP.total_seconds() * 1000

_ENDED = " UNION ALL ".join(
    f"""SELECT number, ended_at FROM (
        SELECT rowid AS number, ended_at FROM jobs
        WHERE status > 2 AND status = {int(status)} AND ended_at > :since AND ended_at <= :until
        ORDER BY ended_at DESC LIMIT :limit)"""
    for status in Status
    if status.is_final
)
"""Numbers and times of what ended, each status by its index alone, so that rows are read of the newest only."""

_SAMPLES = f"""
SELECT queue, job, tags, status, jobs.ended_at, failures + crashes + (status = {int(Status.DONE)}),
    max(0, started_at - rank + priority * {_STEP:.0f}), max(0, jobs.ended_at - started_at),
    json_extract(error, '$.type')
FROM (SELECT number FROM ({_ENDED}) ORDER BY ended_at DESC LIMIT :limit) CROSS JOIN jobs ON jobs.rowid = number
ORDER BY jobs.ended_at DESC
"""


def samples(raw: sqlite3.Connection, since: datetime, until: datetime, limit: int) -> list[Sample]:
    """Return up to ``limit`` samples of what ended after ``since`` and up to ``until``."""
    window = {"since": milliseconds(since), "until": milliseconds(until), "limit": limit}
    return [_sample(*row) for row in raw.execute(_SAMPLES, window)]


def _sample(
    queue: str,
    job: str,
    tags: str | None,
    status: int,
    ended_at: int,
    attempts: int,
    waited: int | None,
    ran: int | None,
    error: str | None,
) -> Sample:
    has_run = status != Status.CANCELED
    return Sample(
        queue=queue,
        job=job,
        tags=() if tags is None else tuple(json.loads(tags)),
        status=Status(status),
        ended_at=moment(ended_at),
        attempts=attempts,
        waited=waited if has_run else None,
        ran=ran if has_run else None,
        error=error if has_run else None,
    )
