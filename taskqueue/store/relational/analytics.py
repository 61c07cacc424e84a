"""Reads the rows for analytics: a few columns of the jobs that ended in a period, the newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from taskqueue.model.analytics import Sample
from taskqueue.model.reading import text
from taskqueue.model.record import PRIORITY_STEP, Status
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.reading import readable
from taskqueue.store.relational.columns import in_json, tags_of
from taskqueue.store.relational.engine import Database

_STEP = PRIORITY_STEP.total_seconds() * 1000

_ENDED = " UNION ALL ".join(
    f"""SELECT number, ended_at FROM (
        SELECT rowid AS number, ended_at FROM jobs
        WHERE status > 2 AND status = {int(status)} AND ended_at > :since AND ended_at <= :until
        ORDER BY ended_at DESC LIMIT :limit) AS of_status"""
    for status in Status
    if status.is_final
)
"""Numbers and times of ended jobs, each status by its index alone, so that rows are read of the newest only."""

_SAMPLES = f"""
SELECT queue, job, tags, status, jobs.ended_at,
    failures + crashes + CASE WHEN status = {int(Status.DONE)} THEN 1 ELSE 0 END,
    started_at - rank + priority * {_STEP:.0f}, jobs.ended_at - started_at, {in_json("error", "type")}
FROM (SELECT number FROM ({_ENDED}) AS ended ORDER BY ended_at DESC LIMIT :limit) AS newest
CROSS JOIN jobs ON jobs.rowid = number
ORDER BY jobs.ended_at DESC
"""


def samples(database: Database, since: datetime, until: datetime, limit: int) -> list[Sample]:
    """Return up to ``limit`` samples of jobs that ended after ``since`` and up to ``until``."""
    window = {"since": milliseconds(since), "until": milliseconds(until), "limit": limit}
    return list(readable(database.execute(_SAMPLES, window), _sample, "a job that ended"))


def _sample(row: tuple[Any, ...]) -> Sample:
    queue, job, tags, status, ended_at, attempts, waited, ran, error = row
    has_run = status != Status.CANCELED
    return Sample(
        queue=text(queue),
        job=text(job),
        tags=tags_of(tags),
        status=Status(status),
        ended_at=moment(ended_at),
        attempts=attempts,
        waited=max(0, waited) if has_run and waited is not None else None,
        ran=max(0, ran) if has_run and ran is not None else None,
        error=error if has_run else None,
    )
