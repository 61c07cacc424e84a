"""Reads records: pages in a given order, counts, and the tally of queues."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pymongo import ASCENDING, DESCENDING

from taskqueue.model.analytics import Present
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.claim_end import since_of
from taskqueue.model.query import Query
from taskqueue.model.reading import text
from taskqueue.model.record import Record, Status
from taskqueue.store.arguments import order_of
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, records
from taskqueue.store.mongodb.filters import filter_of
from taskqueue.store.mongodb.indexes import OUTCOMES, RANKED, WAITING_IN_QUEUE
from taskqueue.store.reading import readable


class Queries:
    """Finds and counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, query: Query, order: str, limit: int, after: tuple[object, JobId] | None) -> list[Record]:
        name, is_falling = order_of(order)
        direction = DESCENDING if is_falling else ASCENDING
        where = filter_of(query)
        if after is not None:
            where = {"$and": [where, _behind(name, direction, *after)]}
        found = self._connection.collections.jobs.find(where).limit(limit)
        if name != "id":
            return records(found.sort([(name, direction), ("_id", direction)]))
        return records(found.sort("_id", direction))

    def count(self, query: Query) -> int:
        return self._connection.collections.jobs.count_documents(filter_of(query))

    def tally(self) -> Mapping[tuple[str, Status], int]:
        """Return how many records there are for each queue and status, from an index alone."""
        groups = self._connection.collections.jobs.aggregate(
            [
                {"$project": {"_id": False, "queue": True, "status": True}},
                {"$group": {"_id": {"queue": "$queue", "status": "$status"}, "records": {"$sum": 1}}},
            ],
            hint=OUTCOMES,
        )
        return dict(readable(groups, _counted, "jobs of a status"))

    def waiting_since(self) -> Mapping[str, datetime]:
        """Return since when the first job of each queue waits, by one look into the index for each."""
        jobs = self._connection.collections.jobs
        waiting = {"status": int(Status.WAITING)}
        found: dict[str, datetime] = {}
        for queue in jobs.distinct("queue", waiting):
            firsts = [
                next(
                    jobs.find({**waiting, "queue": queue, "forced": forced, **RANKED}, {"rank": True, "priority": True})
                    .hint(WAITING_IN_QUEUE)
                    .sort([("rank", ASCENDING), ("_id", ASCENDING)])
                    .limit(1),
                    None,
                )
                for forced in _FORCED
            ]
            since = list(readable([one for one in firsts if one is not None], _since, "a waiting job"))
            if since:
                found[text(queue)] = min(since)
        return found

    def present(self, now: datetime) -> Present:
        """Return how many records have not ended, by what they wait for; ``due`` exists only for times."""
        count = self._connection.collections.jobs.count_documents
        due, later = (count({"due": {sign: now}}) for sign in ("$lte", "$gt"))
        running = {"status": int(Status.PROCESSING)}
        return Present(
            queued=count({"status": int(Status.WAITING)}) + due,
            running=count(running),
            postponed=later,
            blocked=count({"status": int(Status.POSTPONED)}) - due - later,
            lost=count({**running, "ready_at": {"$lte": now}}),
        )


def _behind(name: str, direction: int, value: Any, id: JobId) -> Document:
    """Return the filter for records behind this one; MongoDB sorts empty values first."""
    further = "$gt" if direction == ASCENDING else "$lt"
    if name == "id":
        return {"_id": {further: id}}
    same = {name: value, "_id": {further: id}}
    if value is None:
        return same if direction == DESCENDING else {"$or": [same, {name: {"$ne": None}}]}
    empty = [{name: None}] if direction == DESCENDING else []
    return {"$or": [same, {name: {further: value}}, *empty]}


_FORCED: tuple[Any, ...] = (False, True, 2, 3)


def _since(kept: Document) -> datetime:
    return since_of(int(kept["rank"]), kept["priority"])


def _counted(group: Document) -> tuple[tuple[str, Status], int]:
    key = group["_id"]
    return (text(key.get("queue")), Status(key.get("status"))), group["records"]
