"""Counts jobs by queue and status: ended ones once, and from then on those that ended since and those removed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bson import ObjectId
from pymongo import DeleteMany, UpdateOne

from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.model.timestamps import EPOCH
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.count_reads import ENDED, FEW, REMOVED, CountReads, Counts, Removals, Removed
from taskqueue.store.mongodb.documents import Document

PORTION = 50_000
"""So many are counted together at first, within a fraction of a second."""

COUNTED_FOR = 3600.0
"""Seconds after which all are counted anew: an end that was written later than the lag was left out."""

FORGOTTEN_AFTER = timedelta(days=1)
"""How long a queue's removals are kept without another one: no count is as old that has to leave them out."""

UNFINISHED_AFTER = timedelta(minutes=1)
"""The age of the note of a removal whose process has died: every call of a living one has given up by then."""

REMOVING = "removing "
"""How the names of facts begin that note removals before they are made."""

_REMOVED_OF_QUEUES = {"$gte": f"{REMOVED}0", "$lt": f"{REMOVED}:"}
_FLUSHED = f"{REMOVED}all"


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

    def read(self, reads: CountReads) -> Mapping[tuple[str, Status], int]:
        """Return how many records there are for each queue and status; to be read before anything else.

        What is kept of the ended ones must not be newer than the state that is read.
        """
        with self._lock:
            counts = self._ended_jobs(reads)
        counts.update(reads.waiting_jobs())
        counts.update(reads.by_queue({"status": {"$in": [int(Status.POSTPONED), int(Status.PROCESSING)]}}))
        return {key: number for key, number in counts.items() if number > 0}

    def begin_removal(self, now: datetime, ids: Sequence[JobId] = (), name: str | None = None) -> str:
        """Note that these jobs, or all, are about to be removed, until ``end_removal`` of the name that is returned."""
        name = name or f"{REMOVING}{ObjectId()}"
        change = {"$set": {"at": now, "jobs": list(ids)}}
        self._connection.collections.facts.update_one({"_id": name}, change, upsert=True)
        return name

    def end_removal(self, name: str) -> None:
        """Note that the removal is counted."""
        self._connection.collections.facts.delete_one({"_id": name})

    def unfinished_removals(self, now: datetime) -> list[tuple[str, list[JobId]]]:
        """Return the removals whose processes have died, each with its jobs."""
        where = {"_id": {"$gte": REMOVING, "$lt": f"{REMOVING}~"}, "at": {"$lt": now - UNFINISHED_AFTER}}
        return [(one["_id"], one["jobs"]) for one in self._connection.collections.facts.find(where)]

    def note_removed(self, status: Status, queues: Iterable[object], before: datetime, now: datetime) -> None:
        """Note that jobs of this status that ended before this time were removed, each by its queue.

        One whose queue is damaged was not counted. Forget queues of which none was removed for long.
        """
        changes: list[UpdateOne | DeleteMany] = [
            UpdateOne(
                {"_id": f"{REMOVED}{int(status)} {queue}"},
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

    def _ended_jobs(self, reads: CountReads) -> Counts:
        """Return the ended ones, and keep the numbers of those that ended long enough ago."""
        removed, base = reads.removals(), self._base
        if base is None or base.is_wrong(removed):
            self._base = None
            base = self._count_all(removed, reads)
            if base is None:
                return reads.by_queue(_ended_after(None))
            self._base = base
        counts = base.counts.copy()
        counts.subtract(_removed_between(base.removed, removed))
        since = reads.by_queue(_ended_after(base.until))
        until = reads.stable_until() if since.total() > FEW else None
        if until is not None and until > base.until:
            before, since = reads.split_at(_ended_after(base.until), until)
            counts.update(before)
            self._base = _Count(until=until, counts=counts.copy(), removed=removed, counted_at=base.counted_at)
        counts.update(since)
        return counts

    def _count_all(self, removed: Removed, reads: CountReads) -> _Count | None:
        """Count all that ended long enough ago, the oldest first; None without any.

        If the call takes too long, its count is kept, and the next call goes on from there.
        """
        begun = self._begun
        if begun is None or begun.is_wrong(removed):
            until = reads.stable_until()
            if until is None:
                return None
            begun = self._begun = _Count(until=until, counts=Counter(), removed=removed, counted_at=time.monotonic())
            self._reached.clear()
        for status in ENDED:
            if status not in self._reached:
                begun.counts.update(reads.by_queue({"status": status, "ended_at": None}))
                self._reached[status] = EPOCH
            while (behind := self._reached[status]) < begun.until:
                end = reads.end_of_portion(status, behind, begun.until, self._portion_size)
                portion = {"status": status, "ended_at": {"$gt": behind, "$lte": end}}
                begun.counts.update(reads.by_queue(portion))
                self._reached[status] = end
        self._begun = None
        return begun


def _removed_between(before: Removed, now: Removed) -> Counts:
    """Return the numbers of jobs that were removed between two looks."""
    gone: Counts = Counter()
    for id, removals in now.items():
        status, _, queue = id.removeprefix(REMOVED).partition(" ")
        if status.isdigit():
            gone[queue, Status(int(status))] += removals.records - (before[id].records if id in before else 0)
    return gone


def _ended_after(behind: datetime | None) -> Document:
    ended: Document = {"status": {"$in": ENDED}}
    return ended if behind is None else {**ended, "ended_at": {"$gt": behind}}
