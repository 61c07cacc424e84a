"""Reads records: pages in a given order, counts, and the tally of queues.

The first records by id or time of addition are found by a walk in that order, or by sorting the matching records if
these are fewer. How many records precede the first match is not known, so a walk continues while it is shorter
than half of what there is to sort: the cost is bounded by the smaller of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from bson import MaxKey, MinKey
from bson.int64 import Int64
from pymongo import ASCENDING, DESCENDING
from pymongo.collection import Collection
from pymongo.cursor import Cursor

from taskqueue.model.analytics import Due, Postponed, Present
from taskqueue.model.history import Step
from taskqueue.model.ids import WORKFLOW, JobId
from taskqueue.model.lifecycle.claim_end import since_of
from taskqueue.model.lifecycle.recovered_copy import COPY
from taskqueue.model.query import Query
from taskqueue.model.reading import or_none, readable, text
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.timestamps import EPOCH, MILLISECOND, milliseconds, moment
from taskqueue.model.workflow import MembersAlike, WorkflowSummary, summaries
from taskqueue.store.arguments import order_of
from taskqueue.store.mongodb import indexes
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.counts import CountReads, StateReader, Tally
from taskqueue.store.mongodb.documents import Document, needed_time_in, records, time_in
from taskqueue.store.mongodb.filters import filter_of
from taskqueue.store.query_bounds import (
    bounds_of,
    compared_fields,
    fields_of,
    has_field,
    holds_for,
    queue_of,
    statuses_of,
)

WALKED = 1_000
"""How many records are walked in order at first."""

_INDEXES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "id": ("_id_", ("_id",)),
    "created_at": (indexes.CREATED, ("created_at", "_id")),
}
"""For each order, the index of all records and its fields."""

Place: TypeAlias = tuple[Any, ...]


class OrderedFind:
    """One search for records that have one of these statuses."""

    def __init__(
        self,
        jobs: Collection[Document],
        query: Query,
        statuses: Sequence[int],
        where: Document,
        order: tuple[str, bool],
    ) -> None:
        name, self._falls = order
        self._jobs = jobs
        self._where = where
        self._ranges = _ranges(query, statuses)
        self._index, self._fields = _INDEXES[name]
        self._order = [(field, DESCENDING if self._falls else ASCENDING) for field in self._fields]
        self._low, self._high = _added(query) if name == "created_at" else (None, None)

    def first(self, limit: int, after: Place | None) -> list[Document]:
        """Return the first records; ``where`` selects records after the place ``after`` in the order."""
        if after is not None:
            self._go_on(after)
        if self._low is not None and self._high is not None and self._low >= self._high:
            return []
        documents: list[Document] = []
        walked, step = 0, WALKED
        while not self._are_at_most(2 * step):
            edge = self._edge(step)
            documents += self._walked(edge).limit(limit - len(documents))
            if edge is None or len(documents) == limit:
                return documents
            self._go_on(edge)
            walked += step
            step = 3 * walked
        return self._sorted(limit)

    def _are_at_most(self, most: int) -> bool:
        """Return whether there are no more than that to sort, from indexes alone."""
        counted = 0
        for index, where in self._ranges:
            counted += self._jobs.count_documents(where, hint=index, limit=most + 1 - counted)
            if counted > most:
                return False
        return True

    def _edge(self, step: int) -> Place | None:
        """Return the place after this many records, or None if there are fewer."""
        fields = dict.fromkeys(("_id", *self._fields), True)
        documents = self._within(self._jobs.find({}, fields), self._low, self._high).skip(step).limit(1)
        return next((tuple(document.get(field) for field in self._fields) for document in documents), None)

    def _walked(self, edge: Place | None) -> Cursor[Document]:
        """Return the matching records up to this place."""
        low, high = (edge or self._low, self._high) if self._falls else (self._low, edge or self._high)
        return self._within(self._jobs.find(self._where), low, high)

    def _within(self, cursor: Cursor[Document], low: Place | None, high: Place | None) -> Cursor[Document]:
        cursor = cursor.hint(self._index).sort(self._order)
        if low is not None:
            cursor = cursor.min(list(zip(self._fields, low, strict=True)))
        return cursor if high is None else cursor.max(list(zip(self._fields, high, strict=True)))

    def _go_on(self, place: Place) -> None:
        """Start at this place; in descending order it is the exclusive end of the rest."""
        if self._falls:
            self._high = place
        else:
            self._low = place

    def _sorted(self, limit: int) -> list[Document]:
        """Return the first of all that have these statuses."""
        documents: list[Document] = []
        for index, where in self._ranges:
            documents += self._jobs.find({"$and": [where, self._where]}).hint(index).sort(self._order).limit(limit)
        if len(self._ranges) == 1:
            return documents
        ids = [document["_id"] for document in documents]
        return list(self._jobs.find({"_id": {"$in": ids}}).sort(self._order).limit(limit))


def _ranges(query: Query, statuses: Sequence[int]) -> list[tuple[str, Document]]:
    """Return index ranges without overlap that cover all records of these statuses that may match."""
    parts: list[tuple[str, Document]] = []
    rest = set(statuses)
    if Status.WAITING in rest and (queue := queue_of(query)) is not None:
        rest.remove(Status.WAITING)
        parts.append((indexes.WAITING_IN_QUEUE, {"status": int(Status.WAITING), "queue": queue}))
    _, latest = bounds_of("ready_at", query)
    is_behind = has_field("waiting_for", query)
    if Status.POSTPONED in rest and (latest is not None or is_behind):
        rest.remove(Status.POSTPONED)
        postponed = {"status": int(Status.POSTPONED)}
        parts.append((indexes.BEHIND, {**postponed, "waiting_for": {"$exists": True}}))
        if not is_behind and latest is not None:
            alone = {"waiting_for": {"$exists": False}}
            parts.append((indexes.DUE, {**postponed, **alone, "due": {"$exists": True, "$lte": _at(latest)}}))
    pending = [status for status in sorted(rest) if status <= Status.PROCESSING]
    ended = [status for status in sorted(rest) if status > Status.PROCESSING]
    earliest, _ = bounds_of("ended_at", query)
    if earliest is None:
        pending, ended = sorted(rest), []
    if pending:
        parts.append((indexes.OUTCOMES, {"status": {"$in": pending}}))
    if ended and earliest is not None:
        parts.append((indexes.OUTCOMES, {"status": {"$in": ended}, "ended_at": {"$gte": _at(earliest)}}))
    return parts


def _added(query: Query) -> tuple[Place | None, Place | None]:
    """Return the position before the first added job that may match, and the position after the last one."""
    earliest, latest = bounds_of("created_at", query)
    low = None if earliest is None else (_at(earliest), MinKey())
    return low, None if latest is None else (_at(latest), MaxKey())


def _at(bound: int) -> datetime:
    """Return the time of a bound, or the nearest that a record can have."""
    return moment(min(max(bound, 0), milliseconds(LATEST)))


_FORCED: tuple[Any, ...] = (False, True, 2, 3)
"""The values of the field ``forced``: see ``documents.forced``."""

_SELECTIVE = {"id", "id_text", "parent", "workflow", "unique", "waiting_for"}
"""Fields that few records share a value of: records are found by these, and then sorted."""


class Queries:
    """Finds and counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.counts = Tally(connection)
        self.state_reader = StateReader(connection)

    def find(
        self, query: Query, *, order: str = "id", limit: int = 100, after: tuple[object, JobId] | None = None
    ) -> list[Record]:
        name, is_falling = order_of(order)
        where = filter_of(query)
        if after is not None:
            where = {"$and": [where, _behind(name, DESCENDING if is_falling else ASCENDING, *after)]}
        statuses = statuses_of(query)
        if name == "ended_at" and not compared_fields(query) & _SELECTIVE:
            documents = self._by_end(statuses, where, is_falling, limit)
            if statuses is not None or len(documents) == limit:  # otherwise a record may have a damaged status
                return records(documents)
        if order == "rank" and statuses is not None and not compared_fields(query) & _SELECTIVE:
            return records(self._by_rank(statuses, where, queue_of(query) is not None, limit))
        is_placed = after is None or after[0] is not None
        if name in ("id", "created_at") and statuses and is_placed and not compared_fields(query) & _SELECTIVE:
            found_first = OrderedFind(self._connection.collections.jobs, query, statuses, where, (name, is_falling))
            place = None if after is None else after[1:] if name == "id" else after
            return records(found_first.first(limit, place))
        return records(self._sorted(where, name, is_falling, limit))

    def time_after(
        self, order: str, steps: int, statuses: Sequence[int], after: tuple[object, JobId] | None = None
    ) -> datetime | None:
        name, falling = order_of(order)
        ranges: list[tuple[str, Document]] = [(indexes.CREATED, {})]
        if name == "ended_at":
            ranges = [(indexes.OUTCOMES, {"status": int(status)}) for status in statuses]
        times = [self._time_after(index, of, name, falling, steps, after) for index, of in ranges]
        return (max if falling else min)((time for time in times if isinstance(time, datetime)), default=None)

    def _time_after(
        self, index: str, of: Document, name: str, falling: bool, steps: int, after: tuple[object, JobId] | None
    ) -> object:
        """Return the time after this many records of an index; ones with the time of ``after`` are counted by id."""
        jobs, further = self._connection.collections.jobs, "$lt" if falling else "$gt"
        begin = of
        if after is not None:
            same = {**of, name: after[0], "_id": {further: after[1]}}
            steps -= jobs.count_documents(same, hint=index, limit=steps + 1)
            if steps < 0:
                return after[0]
            begin = {**of, name: {further: after[0]}}
        cursor = jobs.find(begin, {"_id": False, name: True}).hint(index)
        found = cursor.sort(name, DESCENDING if falling else ASCENDING).skip(steps).limit(1)
        return next((document.get(name) for document in found), None)

    def count(self, query: Query, most: int | None = None) -> int:
        fields, statuses = fields_of(query), statuses_of(query)
        if most is not None and fields == {"status"} and statuses is not None:  # the tally reads all pending jobs
            of_statuses: Document = {"status": {"$in": statuses}}
            return self._connection.collections.jobs.count_documents(of_statuses, hint=indexes.OUTCOMES, limit=most)
        if fields <= {"queue", "status"}:
            counted = sum(number for key, number in self.tally().items() if holds_for(query, *key))
            return counted if most is None else min(counted, most)
        bound: dict[str, Any] = {} if most is None else {"limit": most}
        return self._connection.collections.jobs.count_documents(filter_of(query), **bound)

    def store_count(self, now: datetime) -> bool:
        """Store the count of ended jobs for processes that start later; return whether jobs are still to be counted."""
        return self.state_reader.read(lambda reads: self.counts.store_count(reads, now))

    def tally(self) -> Mapping[tuple[str, Status], int]:
        """Return how many records there are for each queue and status."""
        return self.state_reader.read(self.counts.read)

    def _sorted(
        self, where: Document, name: str, is_falling: bool, limit: int, index: str | None = None
    ) -> list[Document]:
        direction = DESCENDING if is_falling else ASCENDING
        cursor = self._connection.collections.jobs.find(where).limit(limit)
        if index is not None:
            cursor = cursor.hint(index)
        return list(cursor.sort([(name, direction), ("_id", direction)] if name != "id" else [("_id", direction)]))

    def _by_end(self, statuses: Sequence[int] | None, where: Document, is_falling: bool, limit: int) -> list[Document]:
        """Return the first by end: ended records of each status by their index, then records without an end."""
        searched = [int(status) for status in Status] if statuses is None else statuses
        final = [status for status in searched if Status(status).is_final]
        pending = {"$and": [{"status": {"$in": [status for status in searched if status not in final]}}, where]}
        documents: list[Document] = []
        for is_final in (True, False) if is_falling else (False, True):
            if is_final:
                documents += self._first_ended(final, where, is_falling, limit)
            elif len(documents) < limit and len(final) < len(searched):
                documents += self._sorted(pending, "id", is_falling, limit)
        return documents[:limit]

    def _first_ended(self, statuses: Sequence[int], where: Document, is_falling: bool, limit: int) -> list[Document]:
        """Return the first of these statuses by end; each is walked only as far as it can be among the first of all.

        So a status whose jobs rarely match is not walked to its beginning if another status has enough matches.
        """
        ended: list[Document] = []
        for status in statuses:
            bound = ended[limit - 1].get("ended_at") if is_falling and len(ended) >= limit else None
            among: Document = {"$and": [where, {"ended_at": {"$gte": bound}}]} if isinstance(bound, datetime) else where
            ended = sorted([*ended, *self._ended(status, among, is_falling, limit)], key=_end, reverse=is_falling)
        return ended[:limit]

    def _ended(self, status: int, where: Document, is_falling: bool, limit: int) -> list[Document]:
        """Return the first of a status by end and id; the index has no ids, so records with the last end are sorted."""
        jobs, direction = self._connection.collections.jobs, DESCENDING if is_falling else ASCENDING
        of_status: Document = {"$and": [{"status": status}, where]}
        documents = list(jobs.find(of_status).hint(indexes.OUTCOMES).sort("ended_at", direction).limit(limit))
        if len(documents) < limit:
            return documents
        last = documents[-1].get("ended_at")
        before = [document for document in documents if document.get("ended_at") != last]
        at_last: Document = {"$and": [{"status": status, "ended_at": last}, where]}
        ties = jobs.find(at_last).hint(indexes.OUTCOMES).sort("_id", direction).limit(limit - len(before))
        return [*before, *ties]

    def _by_rank(self, statuses: Sequence[int], where: Document, is_of_queue: bool, limit: int) -> list[Document]:
        """Return the first by rank: waiting records of each kind by their index."""
        jobs, by_rank = self._connection.collections.jobs, [("rank", ASCENDING), ("_id", ASCENDING)]
        index = indexes.WAITING_IN_QUEUE if is_of_queue else indexes.WAITING
        documents: list[Document] = []
        for status in statuses:
            if status != Status.WAITING:
                documents += self._sorted({"$and": [{"status": status}, where]}, "rank", False, limit)
                continue
            for forced in _FORCED:
                of_kind: Document = {"$and": [{"status": status, "forced": forced}, where]}
                documents += jobs.find(of_kind).hint(index).sort(by_rank).limit(limit)
        return sorted(documents, key=_rank)[:limit]

    def waiting_since(self) -> Mapping[str, datetime]:
        """Return since when the first job of each queue has waited, by one index lookup per queue."""
        jobs = self._connection.collections.jobs
        in_order = {"queue": ASCENDING, "forced": ASCENDING, "rank": ASCENDING, "_id": ASCENDING}
        first = {name: {"$first": f"${name}"} for name in ("rank", "priority")}
        since_by_queue: dict[str, datetime] = {}
        for forced in _FORCED:  # with several queues the server would walk all waiting jobs
            of_kind: Document = {"status": int(Status.WAITING), "forced": forced, **indexes.RANKED}
            steps: list[Document] = [{"$match": of_kind}, {"$sort": in_order}, {"$group": {"_id": "$queue", **first}}]
            firsts = jobs.aggregate(steps, hint=indexes.WAITING_IN_QUEUE)
            for queue, since in readable(firsts, _since, "a waiting job"):
                since_by_queue[queue] = min(since, since_by_queue.get(queue, since))
        return since_by_queue

    def waiting_lanes(self, limit: int) -> Mapping[str, int]:
        """Return how many records wait in each lane, from an index alone."""
        waiting = {"status": int(Status.WAITING), "lane": {"$gt": ""}}  # $exists would fetch every document
        steps: list[Document] = [{"$match": waiting}, {"$project": {"_id": False, "lane": True}}, {"$limit": limit}]
        group = {"$group": {"_id": "$lane", "records": {"$sum": 1}}}
        groups = self._connection.collections.jobs.aggregate([*steps, group], hint=indexes.LIMITED)
        by_lane: dict[str, int] = {}
        for queued, number in readable(groups, lambda group: (text(group["_id"]), group["records"]), "waiting jobs"):
            lane = queued.partition(" ")[2]  # in documents the queue precedes it
            by_lane[lane] = by_lane.get(lane, 0) + number
        return by_lane

    def workflows(self, upto: JobId | None, limit: int) -> list[WorkflowSummary]:
        """Return the newest workflows: their ids are read from an index alone, and their members counted."""
        jobs, field = self._connection.collections.jobs, f"given.{WORKFLOW}"
        where: Document = {"$lt": "g"} if upto is None else {"$lte": str(upto)}
        listed: list[str] = []
        while len(listed) < limit:
            keys = jobs.find({field: where}, {"_id": False, field: True}).hint(indexes.OF_WORKFLOWS).limit(WALKED)
            read = [key["given"][WORKFLOW] for key in keys.sort([(field, DESCENDING), ("_id", DESCENDING)])]
            listed += dict.fromkeys(read)
            if len(read) < WALKED:
                break
            where = {"$lt": listed[-1]}  # the other members of this one are left out
        alike = {
            "workflow": f"${field}",
            "job": "$job",
            "name": "$options.name",
            "status": "$status",
            "is_recovered": {"$gt": [f"$given.{COPY}", None]},
        }
        times = {"created_at": "$min", "started_at": "$min", "ended_at": "$max"}
        figures = {"number": {"$sum": 1}, "first": {"$min": "$_id"}} | {
            name: {least: f"${name}"} for name, least in times.items()
        }
        steps: list[Document] = [{"$match": {field: {"$in": listed[:limit]}}}, {"$group": {"_id": alike, **figures}}]
        return summaries(readable(jobs.aggregate(steps, hint=indexes.OF_WORKFLOWS), _members, "members of a workflow"))

    def present(self, now: datetime) -> Present:
        """Return how many records have not ended, by what they wait for; only those waiting for a time have ``due``."""
        return self.state_reader.read(lambda reads: self._present(reads, now))

    def _present(self, reads: CountReads, now: datetime) -> Present:
        tally = self.counts.read(reads)
        due, later = (reads.count({"due": {sign: now}}, indexes.DUE) for sign in ("$lte", "$gt"))
        waiting, postponed, running = (
            sum(records for (_, kept_status), records in tally.items() if kept_status is status)
            for status in (Status.WAITING, Status.POSTPONED, Status.PROCESSING)
        )
        return Present(
            queued=waiting + due,
            running=running,
            postponed=later,
            blocked=max(0, postponed - due - later),
            lost=reads.count({"status": int(Status.PROCESSING), "ready_at": {"$lte": now}}, indexes.HELD),
        )

    def postponed(self, most: int) -> Postponed:
        """Return how many records are due in which hour, and how many wait for others, up to ``most`` each."""
        jobs = self._connection.collections.jobs
        hour = {"$subtract": ["$due", {"$mod": [{"$toLong": "$due"}, Step.HOUR.length // MILLISECOND]}]}
        steps: list[Document] = [
            {"$match": {"due": {"$type": "date"}}},
            {"$sort": {"due": ASCENDING}},
            {"$limit": most},
            {
                "$group": {
                    "_id": {"cause": "$cause", "failed": {"$gt": ["$failures", 0]}, "hour": hour},
                    "records": {"$sum": 1},
                }
            },
        ]
        due = dict(readable(jobs.aggregate(steps, hint=indexes.DUE), _due, "postponed jobs"))
        return Postponed(due, jobs.count_documents({"waiting_for": {"$exists": True}}, hint=indexes.BEHIND, limit=most))


def _due(group: Document) -> tuple[Due, int]:
    key = group["_id"]
    return Due(Cause(key["cause"]), bool(key["failed"]), needed_time_in(key["hour"])), group["records"]


def _members(group: Document) -> MembersAlike:
    alike = group["_id"]
    return MembersAlike(
        JobId(alike["workflow"]),
        text(alike["job"]),
        or_none(text)(alike.get("name")),
        Status(alike["status"]),
        alike["is_recovered"],
        group["number"],
        group["first"],
        needed_time_in(group["created_at"]),
        *(time_in(group[name]) for name in ("started_at", "ended_at")),
    )


def _behind(name: str, direction: int, value: Any, id: JobId) -> Document:
    """Return the filter for records after this one; MongoDB sorts empty values first."""
    further = "$gt" if direction == ASCENDING else "$lt"
    if name == "id":
        return {"_id": {further: id}}
    same = {name: value, "_id": {further: id}}
    if value is None:
        return same if direction == DESCENDING else {"$or": [same, {name: {"$ne": None}}]}
    empty = [{name: None}] if direction == DESCENDING else []
    return {"$or": [same, {name: {further: value}}, *empty]}


def _end(document: Document) -> tuple[Any, ...]:
    """Return the sort key of an ended job; a damaged time counts as none."""
    at = document.get("ended_at")
    return (isinstance(at, datetime), at if isinstance(at, datetime) else EPOCH, document["_id"])


def _rank(document: Document) -> tuple[Any, ...]:
    """Return the sort key of a pending job; a damaged rank comes last, as in the database."""
    rank = document.get("rank")
    is_damaged = type(rank) not in (int, float, Int64)
    return (is_damaged, 0 if is_damaged else rank, document["_id"])


def _since(first: Document) -> tuple[str, datetime]:
    return text(first["_id"]), since_of(int(first["rank"]), first["priority"])
