"""Claims candidates that are unchanged since they were read, in one write."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from bson import ObjectId
from pymongo import ASCENDING

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import claimed
from taskqueue.model.record import Cause, Holder, Record, Status
from taskqueue.model.timestamps import whole
from taskqueue.store.mongodb.background_writer import EventWriter
from taskqueue.store.mongodb.claim_candidates import Candidate
from taskqueue.store.mongodb.connection import Connection, find_and_modify
from taskqueue.store.mongodb.documents import Document, record, setting
from taskqueue.store.mongodb.effects import transition
from taskqueue.store.mongodb.indexes import BY_ID, RANKED, WAITING

log = logging.getLogger(__name__)


class ClaimTerms(NamedTuple):
    """The holder, the time and the lease end of the claims of one call."""

    holder: Holder
    now: datetime
    until: datetime


class ClaimWrite:
    """Writes claims to one store."""

    def __init__(self, connection: Connection, event_writer: EventWriter) -> None:
        self._connection = connection
        self._event_writer = event_writer

    def take(self, candidates: Sequence[Candidate], terms: ClaimTerms, *, was: Status = Status.WAITING) -> list[Record]:
        """Claim the candidates that are unchanged since they were read, as ``pending.claimed`` does."""
        holder, now, until = terms
        candidates = _without_unclaimable(self._connection, candidates, was, now)
        if not candidates:
            return []
        token = ObjectId()
        change = _claiming(terms, token)
        where = {**_unmoved(candidates, was), "expires": {"$not": {"$lte": now}}}
        jobs = self._connection.collections.jobs
        matched = jobs.update_many(where, change, hint=BY_ID).matched_count
        if matched < len(candidates):
            ours = {"_id": {"$in": [one.id for one in candidates]}, "claimed": token}
            ids = {one["_id"] for one in jobs.find(ours, {"_id": True}).hint([("_id", ASCENDING)])} if matched else ()
            candidates = [one for one in candidates if one.id in ids]
        taken = [claimed(record(one.kept), holder, until) for one in sorted(candidates)]
        self._event_writer.submit([transition(one, now) for one in taken])
        return taken

    def take_first(self, terms: ClaimTerms) -> Record | None:
        """Claim the lowest (rank, id) that waits for the pool, in one command; None if there is none that can be read.

        A claim whose answer is lost is handed back.
        """
        holder, now, until = terms
        first = {"status": int(Status.WAITING), "forced": False, **RANKED, "expires": {"$not": {"$lte": now}}}
        readable = {"_id": {"$type": "objectId"}, "claims": {"$type": ["int", "long"]}}
        kept = find_and_modify(
            self._connection.collections.jobs,
            {**first, **readable},
            _claiming(terms, ObjectId()),
            sort={"rank": ASCENDING, "_id": ASCENDING},
            hint=WAITING,
        )
        if kept is None:
            return None
        taken = claimed(record(kept), holder, until)
        self._event_writer.submit([transition(taken, now)])
        return taken


def _claiming(terms: ClaimTerms, token: ObjectId) -> Document:
    """Return the update of a claim."""
    return {
        "$set": {
            "status": int(Status.PROCESSING),
            "cause": Cause.CLAIMED.value,
            "ready_at": whole(terms.until),
            "holder": {"seat": terms.holder.seat, "incarnation": terms.holder.incarnation},
            "claimed": token,
        },
        "$inc": {"claims": 1},
        "$unset": {"started_at": "", "expires": "", "due": ""},
    }


def _without_unclaimable(
    connection: Connection, candidates: Sequence[Candidate], was: Status, now: datetime
) -> Sequence[Candidate]:
    """Return the candidates that have an id and a fence; all others are ended as FAILED."""
    damaged = [one for one in candidates if not one.is_whole]
    for one in damaged:
        log.error("ended an unclaimable job, as its id or fence cannot be read: job %s", one.kept["_id"])
        fields = {"status": int(Status.FAILED), "cause": Cause.UNREADABLE.value, "ended_at": now, "claims": 0}
        change = setting(fields | dict.fromkeys(("ready_at", "due", "expires", "unique")))
        connection.collections.jobs.update_one({"_id": one.kept["_id"], "status": int(was)}, change)
    return [one for one in candidates if one.is_whole] if damaged else candidates


def _unmoved(candidates: Sequence[Candidate], was: Status) -> Document:
    """Return the filter for records of this status that are unchanged since they were read, also by their owners."""
    by_fence: dict[int, list[JobId]] = {}
    for one in candidates:
        by_fence.setdefault(one.claims, []).append(one.id)
    revisions = {one.kept.get("revised") for one in candidates}
    where: Document = {"status": int(was), "revised": {"$in": [None, *(revisions - {None})]}}
    if len(by_fence) == 1:
        [(claims, ids)] = by_fence.items()
        return where | {"_id": {"$in": ids}, "claims": claims}
    fences = [{"_id": {"$in": ids}, "claims": claims} for claims, ids in by_fence.items()]
    return where | {"_id": {"$in": [one.id for one in candidates]}, "$and": [{"$or": fences}]}
