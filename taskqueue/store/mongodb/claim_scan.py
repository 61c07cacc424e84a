"""Scans the store before a claim: promotes due jobs, ends expired ones, and finds where jobs with limits wait."""

from __future__ import annotations

from datetime import datetime

from pymongo import ASCENDING

from taskqueue.model.record import Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.timestamps import EPOCH
from taskqueue.store.mongodb.background_writer import EventWriter
from taskqueue.store.mongodb.bells import NewJobs
from taskqueue.store.mongodb.claim_cache import ClaimCache
from taskqueue.store.mongodb.claim_candidates import LimitedCandidates
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, records
from taskqueue.store.mongodb.events import status_event
from taskqueue.store.mongodb.indexes import DUE, EXPIRES
from taskqueue.store.mongodb.settlements import Settlements

STEP = 500
"""How many records one claim promotes, and how many it ends as expired, at most; then it asks to come back at once."""


class ClaimScan:
    """The scan of one store."""

    def __init__(
        self, connection: Connection, settlements: Settlements, event_writer: EventWriter, limited: LimitedCandidates
    ) -> None:
        self._connection = connection
        self._settlements = settlements
        self._event_writer = event_writer
        self._limited = limited

    def run(self, now: datetime, changes: NewJobs | None) -> ClaimCache:
        """Promote due records, end expired ones, and return the facts that claims use until the next scan."""
        jobs = self._connection.collections.jobs
        late = records(jobs.find({"expires": {"$lte": now}}).hint(EXPIRES).limit(STEP))
        self._settlements.expire(late, now)
        next_at = self.soonest()  # mostly none is due: reading the 500 that may be takes as long as all else here
        due: list[Document] = []
        if next_at is not None and next_at <= now:
            behind = {"$unionWith": {"coll": jobs.name, "pipeline": _first({"$gt": now, "$lt": LATEST}, 1)}}
            found = list(jobs.aggregate([*_first({"$gte": EPOCH, "$lte": now}, STEP + 1), behind], hint=DUE))
            due = [one for one in found if one["due"] <= now]
            self._promote(due, now)
            next_at = min((one["due"] for one in found if one["due"] > now), default=None)
        if len(late) == STEP or len(due) > STEP:
            next_at = now
        return ClaimCache(at=now, changes=changes, next_at=next_at, lanes=self._limited.lanes())

    def soonest(self) -> datetime | None:
        """Return when the next postponed job is due; None without one."""
        postponed = self._connection.collections.jobs.find(
            {"due": {"$exists": True, "$gte": EPOCH, "$lt": LATEST}}, {"due": True}
        )
        return next((one["due"] for one in postponed.hint(DUE).sort("due", ASCENDING).limit(1)), None)

    def _promote(self, due: list[Document], now: datetime) -> None:
        """Make due records WAITING: ``pending.promoted`` changes nothing but the status."""
        where = {"_id": {"$in": [one["_id"] for one in due]}, "status": int(Status.POSTPONED), "due": {"$lte": now}}
        change = {"$set": {"status": int(Status.WAITING)}, "$unset": {"due": ""}}
        self._connection.collections.jobs.update_many(where, change)
        self._event_writer.submit(
            [status_event(one["_id"], one.get("claims", 0), "waiting", now, Status.WAITING) for one in due]
        )


def _first(due: Document, most: int) -> list[Document]:
    """Return the steps that find up to so many postponed jobs within these bounds."""
    return [
        {"$match": {"due": due}},
        {"$sort": {"due": ASCENDING}},
        {"$limit": most},
        {"$project": {"due": True, "claims": True}},
    ]
