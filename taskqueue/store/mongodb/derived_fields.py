"""Finds documents whose derived fields disagree with their sources, and writes these fields again.

Each write of a job also writes its derived fields, so they disagree only after a fault or a write by another program.
"""

from __future__ import annotations

from collections.abc import Sequence

import pymongo
from pymongo import UpdateOne
from pymongo.errors import PyMongoError

from taskqueue.model.record import RANK_A_PRIORITY, Status
from taskqueue.store import Disagreement, Disagreements
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, forced, lane, moving, record, setting
from taskqueue.store.mongodb.indexes import BY_ID, DUE, EXPIRES, OUTCOMES

LOOK_FOR = 20.0
"""Seconds that the server may spend on the search."""

_PENDING = [int(Status.WAITING), int(Status.POSTPONED)]
_ENDED_OR_RUNNING = {"$nin": _PENDING}
_SOURCES = ("status", "waiting_for", "ready_at", "expires_at", "started_at", "queue", "priority", "claims", "options")


def disagreeing(connection: Connection, limit: int, seconds: float = LOOK_FOR) -> Disagreements:
    """Return up to ``limit`` jobs whose derived fields disagree."""
    suspects: list[Document] = []
    is_complete = True
    try:
        with pymongo.timeout(seconds):
            for where, index in _SUSPECT:
                suspects += connection.collections.jobs.find(where).hint(index).limit(limit)
    except PyMongoError as error:
        if not error.timeout:
            raise
        is_complete = False
    flaws = {document["_id"]: tuple(_anew(document)) for document in suspects}
    disagreements = [Disagreement(f"job {id}", fields, id) for id, fields in flaws.items() if fields]
    return Disagreements(disagreements[:limit], is_complete)


def write_again(connection: Connection, disagreements: Sequence[Disagreement]) -> int:
    """Write the fields of these jobs again, and return of how many jobs; skip jobs that are changing right now."""
    jobs = connection.collections.jobs
    changes = []
    for document in jobs.find({"_id": {"$in": [disagreement.job for disagreement in disagreements]}}):
        fields = _anew(document)
        if fields:
            changes.append(UpdateOne(_unchanged(document, fields), setting(fields), hint=BY_ID))
    return jobs.bulk_write(changes, ordered=False).matched_count if changes else 0


def _anew(document: Document) -> Document:
    """Return the derived fields that disagree, with the values that they should have; none for a damaged document."""
    present = record(document)
    if present.damage:
        return {}
    moved = moving(present)
    derived = {"due": moved["due"], "expires": moved["expires"]}
    if present.status < Status.PROCESSING:
        derived |= {"rank": present.at_rank().rank, "forced": forced(present), "lane": lane(present)}
    return {name: value for name, value in derived.items() if document.get(name) != value}


def _unchanged(document: Document, fields: Document) -> Document:
    """Return the filter for the document as it was read: its sources, and the fields that disagree."""
    where = {"_id": document["_id"]}
    return where | {name: document.get(name, {"$exists": False}) for name in (*_SOURCES, *fields)}


def _or_none(field: str) -> Document:
    return {"$ifNull": [f"${field}", None]}


_IS_SCHEDULED: Document = {
    "$and": [{"$eq": ["$status", int(Status.POSTPONED)]}, {"$in": [_or_none("waiting_for"), [None, []]]}]
}
_DUE: Document = {"$cond": [_IS_SCHEDULED, _or_none("ready_at"), None]}
_EXPIRES: Document = {"$cond": [{"$eq": [_or_none("started_at"), None]}, _or_none("expires_at"), None]}
_RANK: Document = {
    "$cond": [
        {"$and": [{"$eq": [{"$type": "$ready_at"}, "date"]}, {"$isNumber": "$priority"}, {"$isNumber": "$rank"}]},
        {"$add": [{"$toLong": "$ready_at"}, {"$multiply": ["$priority", RANK_A_PRIORITY]}]},
        "$rank",
    ]
}
_HAS_LANE: Document = {"$eq": [{"$type": "$lane"}, "string"]}
_IS_OF_OTHER_QUEUE: Document = {
    "$and": [
        _HAS_LANE,
        {"$eq": [{"$type": "$queue"}, "string"]},
        {"$ne": [{"$indexOfBytes": ["$lane", {"$concat": ["$queue", " "]}]}, 0]},
    ]
}
_IS_BESIDE: Document = {
    "$or": [{"$eq": ["$options.force_spawn", True]}, {"$gt": [{"$ifNull": ["$options.concurrency", 1]}, 1]}]
}
_FORCED: Document = {"$cond": [_HAS_LANE, {"$cond": [_IS_BESIDE, 3, 2]}, _IS_BESIDE]}
_DISAGREE: list[Document] = [
    {"$ne": [_or_none("due"), _DUE]},
    {"$ne": [_or_none("expires"), _EXPIRES]},
    {"$ne": ["$rank", _RANK]},
    {"$ne": ["$forced", _FORCED]},
    _IS_OF_OTHER_QUEUE,
]
"""Expressions; at least one is true for a pending document whose derived fields disagree."""

_SUSPECT: list[tuple[Document, str]] = [
    ({"status": {"$in": _PENDING}, "$expr": {"$or": _DISAGREE}}, OUTCOMES),
    ({"due": {"$exists": True}, "status": _ENDED_OR_RUNNING}, DUE),
    ({"expires": {"$exists": True}, "status": _ENDED_OR_RUNNING}, EXPIRES),
]
"""The filters that find such documents, each with its index."""
