"""Keeps the log lines of the last runs of each job: one document per run, identified by job and claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bson import MaxKey
from pymongo import DeleteMany, UpdateOne

from taskqueue.model.ids import JobId
from taskqueue.model.log_lines import RUNS_KEPT
from taskqueue.model.record import Holder
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, held_by


def keep(connection: Connection, holder: Holder, lines: Mapping[JobId, str]) -> None:
    """Keep the lines of runs that ``holder`` still holds, and replace their stored lines."""
    if not lines:
        return
    still_held = {"_id": {"$in": list(lines)}, **held_by(holder)}
    changes: list[UpdateOne | DeleteMany] = []
    jobs = connection.collections.latest  # a newly elected primary may not know of a majority yet
    for job in jobs.find(still_held, {"claims": True}):
        id, claims = job["_id"], job["claims"]
        changes.append(UpdateOne({"_id": _key(id, claims)}, {"$set": {"lines": lines[id]}}, upsert=True))
        changes.append(DeleteMany({"_id": {"$gte": _key(id, 0), "$lte": _key(id, claims - RUNS_KEPT)}}))
    if changes:
        connection.collections.logs.bulk_write(changes, ordered=False)


def of_job(connection: Connection, id: JobId) -> dict[int, str]:
    """Return the lines of the runs of a job."""
    documents = connection.collections.logs.find(_of_job(id)).sort("_id")
    return {int(document["_id"]["claims"]): str(document["lines"]) for document in documents}


def remove(connection: Connection, ids: Sequence[JobId]) -> None:
    """Remove the lines of these jobs."""
    logs = connection.collections.logs
    if ids and logs.find_one({}, {"_id": True}) is not None:
        logs.bulk_write([DeleteMany(_of_job(id)) for id in ids], ordered=False)


def flush(connection: Connection) -> None:
    """Remove the lines of all jobs."""
    connection.collections.logs.delete_many({})


def _key(id: JobId, claims: int) -> Document:
    return {"job": id, "claims": claims}


def _of_job(id: JobId) -> Document:
    return {"_id": {"$gte": _key(id, 0), "$lt": {"job": id, "claims": MaxKey()}}}
