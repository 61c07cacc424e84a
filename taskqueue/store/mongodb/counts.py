"""Counts jobs by queue and status: ended ones once, and from then on those that ended since and those removed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, DeleteMany, UpdateOne

from taskqueue.model.reading import text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import EPOCH
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import OUTCOMES, WAITING_IN_QUEUE
from taskqueue.store.reading import readable

Counts: TypeAlias = "Counter[tuple[str, Status]]"


class Removals(NamedTuple):
    """How many jobs of one queue and status were removed since these are counted."""

    records: int
    before: datetime | None
    """The last end of one of them."""
    token: ObjectId | None
    """The name of this count: it may be forgotten, and another one begin with zero."""


Removed: TypeAlias = Mapping[str, Removals]

_ENDED = [int(status) for status in Status if status.is_final]

LAGS = (timedelta(minutes=10), timedelta(minutes=1), timedelta(seconds=10), timedelta(seconds=2))
"""How long before the last end a count may stop: the longest time with few ends, as some are written late."""

FEW = 1_000
"""So many jobs are counted within a few milliseconds."""

PORTION = 50_000
"""So many are counted together at first, within a fraction of a second."""

COUNTED_FOR = 3600.0
"""Seconds after which all are counted anew: an end that was written later than the lag was left out."""

FORGOTTEN_AFTER = timedelta(days=1)
"""How long a queue's removals are kept without another one: no count is as old that has to leave them out."""

_REMOVED = "removed "
_REMOVED_OF_QUEUES = {"$gte": f"{_REMOVED}0", "$lt": f"{_REMOVED}:"}
_FLUSHED = "removed all"


@dataclass(frozen=True, kw_only=True)
class _Count:
    """How many jobs had ended up to ``until``, by queue and status; those removed later are to be subtracted."""

    until: datetime
    counts: Counts
    removed: Removed
    """The removals that were known when these were counted: the numbers are without them."""
    counted_at: float

    def is_wrong(self, removed: Removed) -> bool:
        """Return whether all have to be counted anew: it is old, or others than the counted jobs may be removed since.

        Of removals only the numbers are known, and the last end: one behind ``until`` may be of a job left out here.
        """
        if time.monotonic() - self.counted_at > COUNTED_FOR or self.removed.get(_FLUSHED) != removed.get(_FLUSHED):
            return True
        return any(self._misses(now, self.removed.get(id)) for id, now in removed.items())

    def _misses(self, now: Removals, then: Removals | None) -> bool:
        """Return whether the removals of a queue since then may be of others than the counted jobs."""
        if then is not None and now.token != then.token:
            return True
        return now != then and now.before is not None and now.before > self.until


class Tally:
    """The numbers of jobs of one store."""

    def __init__(self, connection: Connection, portion: int = PORTION) -> None:
        self._connection = connection
        self._portion_size = portion
        self._lock = threading.Lock()
        self._base: _Count | None = None
        """The last count of all; later calls count the jobs that have ended since."""
        self._begun: _Count | None = None
        """A count of all that is under way: a call that takes too long leaves it to the next one."""
        self._reached: dict[int, datetime] = {}
        """Up to which end the jobs of each status are in that."""

    def read(self) -> Mapping[tuple[str, Status], int]:
        """Return how many records there are for each queue and status."""
        with self._lock:
            counts = self._ended_jobs()
        counts.update(self._waiting_jobs())
        counts.update(self._counted_by_queue({"status": {"$in": [int(Status.POSTPONED), int(Status.PROCESSING)]}}))
        return {key: number for key, number in counts.items() if number > 0}

    def note_removed(self, status: Status, queues: Iterable[object], before: datetime, now: datetime) -> None:
        """Note that jobs of this status that ended before this time were removed, each by its queue.

        One whose queue is damaged was not counted. Forget queues of which none was removed for long.
        """
        changes: list[UpdateOne | DeleteMany] = [
            UpdateOne(
                {"_id": f"{_REMOVED}{int(status)} {queue}"},
                {
                    "$inc": {"records": number},
                    "$max": {"before": before, "at": now},
                    "$setOnInsert": {"token": ObjectId()},
                },
                upsert=True,
            )
            for queue, number in Counter(queue for queue in queues if type(queue) is str).items()
        ]
        if changes:
            changes.append(DeleteMany({"_id": _REMOVED_OF_QUEUES, "at": {"$not": {"$gte": now - FORGOTTEN_AFTER}}}))
            self._connection.collections.facts.bulk_write(changes)

    def count_anew(self) -> None:
        """Have all stores count anew: other jobs were removed than those that were noted, or all."""
        self._connection.collections.facts.update_one({"_id": _FLUSHED}, {"$inc": {"records": 1}}, upsert=True)

    def _ended_jobs(self) -> Counts:
        """Return the ended ones, and keep the numbers of those that ended long enough ago."""
        removed, base = self._removals(), self._base
        if base is None or base.is_wrong(removed):
            self._base = None
            base = self._count_all(removed)
            if base is None:
                return self._counted_by_queue(_ended_after(None))
            self._base = base
        counts = base.counts.copy()
        counts.subtract(_removed_between(base.removed, removed))
        since = self._counted_by_queue(_ended_after(base.until))
        until = self._stable_until() if since.total() > FEW else None
        if until is not None and until > base.until:
            before, since = self._split_at(_ended_after(base.until), until)
            counts.update(before)
            self._base = _Count(until=until, counts=counts.copy(), removed=removed, counted_at=base.counted_at)
        counts.update(since)
        return counts

    def _count_all(self, removed: Removed) -> _Count | None:
        """Count all that ended long enough ago, the oldest first; None without any.

        If the call takes too long, its count is kept, and the next call goes on from there.
        """
        begun = self._begun
        if begun is None or begun.is_wrong(removed):
            until = self._stable_until()
            if until is None:
                return None
            begun = self._begun = _Count(until=until, counts=Counter(), removed=removed, counted_at=time.monotonic())
            self._reached.clear()
        for status in _ENDED:
            if status not in self._reached:
                begun.counts.update(self._counted_by_queue({"status": status, "ended_at": None}))
                self._reached[status] = EPOCH
            while (behind := self._reached[status]) < begun.until:
                end = self._end_of_portion(status, behind, begun.until)
                portion = {"status": status, "ended_at": {"$gt": behind, "$lte": end}}
                begun.counts.update(self._counted_by_queue(portion))
                self._reached[status] = end
        self._begun = None
        return begun

    def _end_of_portion(self, status: int, behind: datetime, until: datetime) -> datetime:
        """Return up to when those ended that are counted together."""
        ended: Document = {"status": status, "ended_at": {"$gt": behind, "$lte": until}}
        found = self._connection.collections.jobs.find(ended, {"_id": False, "ended_at": True}).hint(OUTCOMES)
        return next(
            (one["ended_at"] for one in found.sort("ended_at", ASCENDING).skip(self._portion_size).limit(1)), until
        )

    def _stable_until(self) -> datetime | None:
        """Return a time before which ends are counted once for all; None without any end."""
        jobs = self._connection.collections.jobs
        lasts = [
            one["ended_at"]
            for status in _ENDED
            for one in jobs.find({"status": status, "ended_at": {"$type": "date"}}, {"_id": False, "ended_at": True})
            .hint(OUTCOMES)
            .sort("ended_at", DESCENDING)
            .limit(1)
        ]
        last = max((one for one in lasts if isinstance(one, datetime)), default=None)
        if last is None:
            return None
        for lag in LAGS[:-1]:
            ended: Document = {"status": {"$in": _ENDED}, "ended_at": {"$gt": last - lag}}
            if jobs.count_documents(ended, hint=OUTCOMES, limit=FEW) < FEW:
                return last - lag
        return last - LAGS[-1]

    def _removals(self) -> Removed:
        facts = self._connection.collections.facts
        found = facts.find({"_id": {"$gte": _REMOVED, "$lt": f"{_REMOVED.rstrip()}!"}})
        return {one["_id"]: Removals(one["records"], one.get("before"), one.get("token")) for one in found}

    def _counted_by_queue(self, where: Document) -> Counts:
        before, later = self._split_at(where, None)
        return before + later

    def _split_at(self, where: Document, until: datetime | None) -> tuple[Counts, Counts]:
        """Return the numbers of these up to a time, and of those behind it, by one look at an index alone."""
        later = {"$gt": ["$ended_at", until]} if until is not None else {"$literal": False}
        groups = self._connection.collections.jobs.aggregate(
            [
                {"$match": where},
                {"$project": {"_id": False, "queue": True, "status": True, "ended_at": True}},
                {
                    "$group": {
                        "_id": {"queue": "$queue", "status": "$status", "later": later},
                        "records": {"$sum": 1},
                    }
                },
            ],
            hint=OUTCOMES,
        )
        found: tuple[Counts, Counts] = (Counter(), Counter())
        for key, is_later, number in readable(groups, _counted, "jobs of a status"):
            found[is_later][key] += number
        return found

    def _waiting_jobs(self) -> Counts:
        jobs, waiting = self._connection.collections.jobs, {"status": int(Status.WAITING)}
        counts: Counts = Counter()
        for queue in jobs.distinct("queue", waiting):
            if type(queue) is str:
                command = {"count": jobs.name, "query": {**waiting, "queue": queue}, "hint": WAITING_IN_QUEUE}
                command["readConcern"] = jobs.read_concern.document
                counts[queue, Status.WAITING] = jobs.database.command(command)["n"]  # half the time of an aggregation
        return counts


def _removed_between(before: Removed, now: Removed) -> Counts:
    """Return the numbers of jobs that were removed between two looks."""
    gone: Counts = Counter()
    for id, removals in now.items():
        status, _, queue = id.removeprefix(_REMOVED).partition(" ")
        if status.isdigit():
            gone[queue, Status(int(status))] += removals.records - (before[id].records if id in before else 0)
    return gone


def _ended_after(behind: datetime | None) -> Document:
    ended: Document = {"status": {"$in": _ENDED}}
    return ended if behind is None else {**ended, "ended_at": {"$gt": behind}}


def _counted(group: Document) -> tuple[tuple[str, Status], bool, int]:
    key = group["_id"]
    return (text(key.get("queue")), Status(key.get("status"))), bool(key["later"]), group["records"]
