"""Reads the rows for analytics: a few columns of the jobs that ended in a period, the newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from taskqueue.model.analytics import Sample
from taskqueue.model.ids import JobId
from taskqueue.model.meta import meta_in
from taskqueue.model.query import Query
from taskqueue.model.reading import readable, text
from taskqueue.model.record import RANK_A_PRIORITY, Status
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.relational.columns import given_of, in_json, tags_of
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.filters import condition_of

_ENDED = """SELECT number, ended_at FROM (
        SELECT rowid AS number, ended_at FROM jobs
        WHERE status > 2 AND status = {} AND ended_at > ? AND ended_at <= ? AND {}
        ORDER BY ended_at DESC LIMIT ?) AS of_status"""
"""Numbers and times of ended jobs, from the index of each status alone, so that only the newest rows are read."""

_FINAL = [int(status) for status in Status if status.is_final]

_SAMPLES = f"""
SELECT id, queue, job, tags, given, status, jobs.ended_at,
    failures + crashes + CASE WHEN status = {int(Status.DONE)} THEN 1 ELSE 0 END,
    started_at - rank + priority * {RANK_A_PRIORITY}, jobs.ended_at - started_at, {in_json("error", "type")}
FROM (SELECT number FROM ({{}}) AS ended ORDER BY ended_at DESC LIMIT ?) AS newest
CROSS JOIN jobs ON jobs.rowid = number
ORDER BY jobs.ended_at DESC
"""


def samples(database: Database, since: datetime, until: datetime, limit: int, query: Query) -> list[Sample]:
    """Return up to ``limit`` samples of matching jobs that ended after ``since`` and up to ``until``."""
    where, values = condition_of(query)
    ended = " UNION ALL ".join(_ENDED.format(status, where) for status in _FINAL)
    of_each = [milliseconds(since), milliseconds(until), *values, limit]
    rows = database.execute(_SAMPLES.format(ended), [*of_each * len(_FINAL), limit])
    return list(readable(rows, _sample, "a job that ended"))


def _sample(row: tuple[Any, ...]) -> Sample:
    id, queue, job, tags, given, status, ended_at, attempts, waited, ran, error = row
    has_run = status != Status.CANCELED
    return Sample(
        id=JobId(id),
        queue=text(queue),
        job=text(job),
        tags=tags_of(tags),
        meta=meta_in(given_of(given)),
        status=Status(status),
        ended_at=moment(ended_at),
        attempts=attempts,
        waited=max(0, waited) if has_run and waited is not None else None,
        ran=max(0, ran) if has_run and ran is not None else None,
        error=error if has_run else None,
    )
