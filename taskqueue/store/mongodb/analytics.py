"""Reads the rows for analytics: a few fields of the jobs that ended in a period, the newest first."""

from __future__ import annotations

from datetime import datetime, timedelta

from pymongo import DESCENDING

from taskqueue.model.analytics import Sample
from taskqueue.model.ids import JobId
from taskqueue.model.meta import META, meta_in
from taskqueue.model.query import EVERYTHING, Query
from taskqueue.model.reading import readable, text
from taskqueue.model.record import PRIORITY_STEP, Status
from taskqueue.model.timestamps import moment
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, needed_time_in, tags_in
from taskqueue.store.mongodb.filters import filter_of
from taskqueue.store.mongodb.indexes import OUTCOMES

_ENDED = [int(status) for status in Status if status.is_final]
_NAMES = ("queue", "job", "tags", "status", "ended_at", "started_at", "rank", "priority", "failures", "crashes")
_FIELDS = {"error.type": True, f"given.{META}": True, **dict.fromkeys(_NAMES, True)}


def samples(
    connection: Connection, since: datetime, until: datetime, limit: int, query: Query = EVERYTHING
) -> list[Sample]:
    """Return up to ``limit`` samples of ends after ``since`` and up to ``until``, by the index of outcomes."""
    ended: Document = {"status": {"$in": _ENDED}, "ended_at": {"$gt": since, "$lte": until}}
    where = ended if query == EVERYTHING else {"$and": [ended, filter_of(query)]}
    documents = (
        connection.collections.jobs.find(where, _FIELDS).sort("ended_at", DESCENDING).hint(OUTCOMES).limit(limit)
    )
    return list(readable(documents, _sample, "a job that ended"))


def _sample(document: Document) -> Sample:
    status = Status(document["status"])
    started_at = document.get("started_at") if status is not Status.CANCELED else None
    since = moment(int(document["rank"])) - document["priority"] * PRIORITY_STEP
    return Sample(
        id=JobId(document["_id"]),
        queue=text(document["queue"]),
        job=text(document["job"]),
        tags=tags_in(document.get("tags")),
        meta=meta_in(document.get("given", {})),
        status=status,
        ended_at=needed_time_in(document["ended_at"]),
        attempts=document["failures"] + document["crashes"] + (status is Status.DONE),
        waited=_milliseconds(since, started_at),
        ran=_milliseconds(started_at, document["ended_at"]),
        error=document["error"]["type"] if "error" in document and status is not Status.CANCELED else None,
    )


def _milliseconds(begin: datetime | None, end: datetime | None) -> int | None:
    """Return the milliseconds between two times, never less than 0; None if either is unknown."""
    if begin is None or end is None:
        return None
    return max(0, (end - begin) // timedelta(milliseconds=1))
