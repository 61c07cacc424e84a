"""Reads records: pages in a given order, counts, and the tally of queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from bson.int64 import Int64
from pymongo import ASCENDING, DESCENDING

from taskqueue.model.analytics import Present
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.claim_end import since_of
from taskqueue.model.query import Query
from taskqueue.model.reading import text
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import EPOCH
from taskqueue.store.arguments import order_of
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.count_reads import CountReads, StateReader
from taskqueue.store.mongodb.counts import Tally
from taskqueue.store.mongodb.documents import Document, records
from taskqueue.store.mongodb.filters import filter_of
from taskqueue.store.mongodb.indexes import DUE, HELD, LIMITED, OUTCOMES, RANKED, WAITING, WAITING_IN_QUEUE
from taskqueue.store.mongodb.ordered_finds import OrderedFind
from taskqueue.store.query_bounds import fields_of, holds_for, queue_of, statuses_of
from taskqueue.store.reading import readable

_FORCED: tuple[Any, ...] = (False, True, 2, 3)
"""The values of the field of this name: see ``documents.forced``."""

_SELECTIVE = {"id", "parent", "unique", "waiting_for"}
"""Fields of which few records have the same value: they are found by these, and sorted."""


class Queries:
    """Finds and counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.counts = Tally(connection)
        self.state_reader = StateReader(connection)

    def find(self, query: Query, order: str, limit: int, after: tuple[object, JobId] | None) -> list[Record]:
        name, is_falling = order_of(order)
        where = filter_of(query)
        if after is not None:
            where = {"$and": [where, _behind(name, DESCENDING if is_falling else ASCENDING, *after)]}
        statuses = statuses_of(query)
        if name == "ended_at" and not fields_of(query) & _SELECTIVE:
            found = self._by_end(statuses, where, is_falling, limit)
            if statuses is not None or len(found) == limit:  # else one may have a damaged status
                return records(found)
        if order == "rank" and statuses is not None and not fields_of(query) & _SELECTIVE:
            return records(self._by_rank(statuses, where, queue_of(query) is not None, limit))
        is_placed = after is None or after[0] is not None
        if name in ("id", "created_at") and statuses and is_placed and not fields_of(query) & _SELECTIVE:
            found_first = OrderedFind(self._connection.collections.jobs, query, statuses, where, (name, is_falling))
            place = None if after is None else after[1:] if name == "id" else after
            return records(found_first.first(limit, place))
        return records(self._sorted(where, name, is_falling, limit))

    def count(self, query: Query, most: int | None = None) -> int:
        if fields_of(query) <= {"queue", "status"}:
            found = sum(number for key, number in self.tally().items() if holds_for(query, *key))
            return found if most is None else min(found, most)
        bound: dict[str, Any] = {} if most is None else {"limit": most}
        return self._connection.collections.jobs.count_documents(filter_of(query), **bound)

    def tally(self) -> Mapping[tuple[str, Status], int]:
        """Return how many records there are for each queue and status."""
        return self.state_reader.read(self.counts.read)

    def _sorted(
        self, where: Document, name: str, is_falling: bool, limit: int, index: str | None = None
    ) -> list[Document]:
        direction = DESCENDING if is_falling else ASCENDING
        found = self._connection.collections.jobs.find(where).limit(limit)
        if index is not None:
            found = found.hint(index)
        return list(found.sort([(name, direction), ("_id", direction)] if name != "id" else [("_id", direction)]))

    def _by_end(self, statuses: Sequence[int] | None, where: Document, is_falling: bool, limit: int) -> list[Document]:
        """Return the first by end: ended ones of each status by their index, and those without an end."""
        wanted = [int(status) for status in Status] if statuses is None else statuses
        final = [status for status in wanted if Status(status).is_final]
        pending = {"$and": [{"status": {"$in": [one for one in wanted if one not in final]}}, where]}
        found: list[Document] = []
        for is_final in (True, False) if is_falling else (False, True):
            if is_final:
                found += self._first_ended(final, where, is_falling, limit)
            elif len(found) < limit and len(final) < len(wanted):
                found += self._sorted(pending, "id", is_falling, limit)
        return found[:limit]

    def _first_ended(self, statuses: Sequence[int], where: Document, is_falling: bool, limit: int) -> list[Document]:
        """Return the first of these statuses by end, each walked as far as it may be among the first of all.

        So a status whose jobs rarely match is not walked back to its beginning where another one has enough.
        """
        ended: list[Document] = []
        for status in statuses:
            bound = ended[limit - 1].get("ended_at") if is_falling and len(ended) >= limit else None
            among: Document = {"$and": [where, {"ended_at": {"$gte": bound}}]} if isinstance(bound, datetime) else where
            ended = sorted([*ended, *self._ended(status, among, is_falling, limit)], key=_end, reverse=is_falling)
        return ended[:limit]

    def _ended(self, status: int, where: Document, is_falling: bool, limit: int) -> list[Document]:
        """Return the first of a status by end and id; the index has no ids, so those of the last end are sorted."""
        jobs, direction = self._connection.collections.jobs, DESCENDING if is_falling else ASCENDING
        of_status: Document = {"$and": [{"status": status}, where]}
        found = list(jobs.find(of_status).hint(OUTCOMES).sort("ended_at", direction).limit(limit))
        if len(found) < limit:
            return found
        last = found[-1].get("ended_at")
        before = [one for one in found if one.get("ended_at") != last]
        at_last: Document = {"$and": [{"status": status, "ended_at": last}, where]}
        ties = jobs.find(at_last).hint(OUTCOMES).sort("_id", direction).limit(limit - len(before))
        return [*before, *ties]

    def _by_rank(self, statuses: Sequence[int], where: Document, is_of_queue: bool, limit: int) -> list[Document]:
        """Return the first by rank: waiting ones of each kind by their index."""
        jobs, by_rank = self._connection.collections.jobs, [("rank", ASCENDING), ("_id", ASCENDING)]
        index = WAITING_IN_QUEUE if is_of_queue else WAITING
        found: list[Document] = []
        for status in statuses:
            if status != Status.WAITING:
                found += self._sorted({"$and": [{"status": status}, where]}, "rank", False, limit)
                continue
            for forced in _FORCED:
                of_kind: Document = {"$and": [{"status": status, "forced": forced}, where]}
                found += jobs.find(of_kind).hint(index).sort(by_rank).limit(limit)
        return sorted(found, key=_rank)[:limit]

    def waiting_since(self) -> Mapping[str, datetime]:
        """Return since when the first job of each queue waits, by one look into the index for each."""
        jobs = self._connection.collections.jobs
        in_order = {"queue": ASCENDING, "forced": ASCENDING, "rank": ASCENDING, "_id": ASCENDING}
        first = {name: {"$first": f"${name}"} for name in ("rank", "priority")}
        found: dict[str, datetime] = {}
        for forced in _FORCED:  # with more than one the server would walk all that wait
            of_kind: Document = {"status": int(Status.WAITING), "forced": forced, **RANKED}
            steps: list[Document] = [{"$match": of_kind}, {"$sort": in_order}, {"$group": {"_id": "$queue", **first}}]
            firsts = jobs.aggregate(steps, hint=WAITING_IN_QUEUE)
            for queue, since in readable(firsts, _since, "a waiting job"):
                found[queue] = min(since, found.get(queue, since))
        return found

    def waiting_lanes(self, limit: int) -> Mapping[str, int]:
        """Return how many records wait in each lane, from an index alone."""
        waiting = {"status": int(Status.WAITING), "lane": {"$gt": ""}}  # $exists would fetch each document
        steps: list[Document] = [{"$match": waiting}, {"$project": {"_id": False, "lane": True}}, {"$limit": limit}]
        group = {"$group": {"_id": "$lane", "records": {"$sum": 1}}}
        groups = self._connection.collections.jobs.aggregate([*steps, group], hint=LIMITED)
        found: dict[str, int] = {}
        for kept, number in readable(groups, lambda kept: (text(kept["_id"]), kept["records"]), "waiting jobs"):
            lane = kept.partition(" ")[2]  # documents have the queue before it
            found[lane] = found.get(lane, 0) + number
        return found

    def present(self, now: datetime) -> Present:
        """Return how many records have not ended, by what they wait for; ``due`` exists only for times."""
        return self.state_reader.read(lambda reads: self._present(reads, now))

    def _present(self, reads: CountReads, now: datetime) -> Present:
        tally = self.counts.read(reads)
        due, later = (reads.count({"due": {sign: now}}, DUE) for sign in ("$lte", "$gt"))
        waiting, postponed, running = (
            sum(records for (_, kept), records in tally.items() if kept is status)
            for status in (Status.WAITING, Status.POSTPONED, Status.PROCESSING)
        )
        return Present(
            queued=waiting + due,
            running=running,
            postponed=later,
            blocked=max(0, postponed - due - later),
            lost=reads.count({"status": int(Status.PROCESSING), "ready_at": {"$lte": now}}, HELD),
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


def _end(one: Document) -> tuple[Any, ...]:
    """Return the sort key of an ended job; a damaged time counts as none."""
    at = one.get("ended_at")
    return (isinstance(at, datetime), at if isinstance(at, datetime) else EPOCH, one["_id"])


def _rank(one: Document) -> tuple[Any, ...]:
    """Return the sort key of a pending job; a damaged rank comes last, as in the database."""
    rank = one.get("rank")
    is_damaged = type(rank) not in (int, float, Int64)
    return (is_damaged, 0 if is_damaged else rank, one["_id"])


def _since(first: Document) -> tuple[str, datetime]:
    return text(first["_id"]), since_of(int(first["rank"]), first["priority"])
