"""Passes unique keys on: a running job releases its key in one write, and its successor takes it in the next.

A new job that takes the key in between must wait for the running one. So a job with a key is inserted as waiting for
itself, which no node claims, until a recheck of its key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection as Jobs

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import released
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.unique_period import PERIOD, keeps_out
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, moving, record, setting
from taskqueue.store.mongodb.indexes import GIVEN, HAS_PERIOD, PERIOD_KEY, PERIODS, UNIQUE


def clear(connection: Connection, new: Sequence[Record], tokens: Mapping[JobId, ObjectId]) -> set[JobId]:
    """Admit and return the records in doubt whose key is free; the others need a recheck."""
    if not new:
        return set()
    given = _given(connection, {job.unique for job in new if job.unique is not None})
    free = [job for job in new if job.unique not in given]
    changes = []
    for job in free:
        change = setting(moving(job)) | {"$pull": {"after": {"token": tokens[job.id]}}}
        changes.append(UpdateOne(_untouched(job), change, hint=UNIQUE))  # a missing index is detected
    jobs = connection.collections.jobs
    if not changes or jobs.bulk_write(changes, ordered=False).matched_count < len(changes):
        return set()
    return {job.id for job in free}


def check(connection: Connection, keys: Collection[str]) -> None:
    """If some records are not admitted yet, check that the unique index exists."""
    pending = {"unique": {"$in": list(keys), "$type": "string"}, "status": {"$lte": int(Status.PROCESSING)}}
    list(connection.collections.jobs.find(pending, {"_id": True}).hint(UNIQUE))


def wait_behind(connection: Connection, doubtful: Mapping[str, JobId]) -> set[JobId]:
    """Make the jobs in doubt wait for the jobs that have released their keys, and return the latter."""
    givers = _given(connection, doubtful)
    for key, giver in givers.items():
        _put_behind(connection, doubtful[key], giver)
    return set(givers.values())


def taken(connection: Connection, key: str, giver: JobId) -> list[JobId]:
    """Make the current holder of the key wait for the previous holder, if it is still in doubt."""
    document = connection.collections.jobs.find_one(holds(key), {"_id": True})
    if document is None or not _put_behind(connection, document["_id"], giver):
        return []
    return [document["_id"]]


def _given(connection: Connection, keys: Collection[str]) -> dict[str, JobId]:
    jobs = connection.collections.jobs
    where = {"after.successor.unique": {"$in": list(keys)}}
    documents = jobs.find(where, {"after.successor.unique": True}).hint(GIVEN)
    pairs = [
        (entry.get("successor", {}).get("unique"), document["_id"])
        for document in documents
        for entry in document["after"]
    ]
    return {key: id for key, id in pairs if key in keys}


def _put_behind(connection: Connection, id: JobId, giver: JobId) -> bool:
    change = {"$set": {"waiting_for.$": giver, "cause": Cause.BEHIND.value}}
    return connection.collections.jobs.update_one({"_id": id, "waiting_for": id}, change).matched_count == 1


def holds(key: str) -> Document:
    """Return the filter for the pending job of this key; without the type, the server would not use the index."""
    return {"unique": {"$eq": key, "$type": "string"}, "status": {"$lte": int(Status.PROCESSING)}}


def in_doubt(new: Record) -> Record:
    """Return the record as it is inserted: no node can claim one with a key."""
    if not needs_look(new):
        return new
    return replace(new, status=Status.POSTPONED, waiting_for=(*new.waiting_for, new.id))


def needs_look(new: Record) -> bool:
    """Return whether the record's key needs a recheck."""
    return new.unique is not None and new.status < Status.PROCESSING


def is_in_doubt(record: Record) -> bool:
    """Return whether the recheck of the record's key is still pending."""
    return record.id in record.waiting_for


def undoubted(record: Record, now: datetime) -> Record:
    """Return the record after the recheck, as it was meant to be stored."""
    if not is_in_doubt(record):
        return record
    others = tuple(id for id in record.waiting_for if id != record.id)
    if record.ready_at is None and not others:
        return released(record, record.id, now)
    if others or record.ready_at is None or record.ready_at > now:
        return replace(record, waiting_for=others)
    return replace(record, waiting_for=(), status=Status.WAITING)


def _untouched(new: Record) -> Document:
    came = in_doubt(new)
    assert new.unique is not None
    where: Document = {**holds(new.unique), "status": int(came.status), "_id": new.id}
    where["waiting_for"] = list(came.waiting_for)
    return where | {"rank": came.rank, "ready_at": came.ready_at, "queue": came.queue, "cancel": {"$exists": False}}


def of_period(jobs: Jobs[Document], new: Record, session: ClientSession | None = None) -> Record | None:
    """Return the ended job whose period keeps the new one out; None if there is no such job, or no longer."""
    if PERIOD not in new.given:
        return None
    where: Document = {**HAS_PERIOD, PERIOD_KEY: new.unique}
    document = jobs.find_one(where, session=session, hint=PERIODS)
    if document is None:
        return None
    holder = record(document)
    if keeps_out(holder, new):
        return holder
    over = {"_id": holder.id, f"given.{PERIOD}": document["given"][PERIOD]}
    jobs.update_one(over, {"$unset": {f"given.{PERIOD}": ""}}, session=session)
    return None
