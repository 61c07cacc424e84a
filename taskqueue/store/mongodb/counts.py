"""Counts jobs by queue and status: ended jobs once, then the jobs that ended or were removed since."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeVar

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, DeleteMany, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from taskqueue.model.ids import JobId
from taskqueue.model.reading import text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import EPOCH
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import OUTCOMES, WAITING_IN_QUEUE
from taskqueue.store.reading import readable

Counts: TypeAlias = "Counter[tuple[str, Status]]"

Found = TypeVar("Found")


class Removals(NamedTuple):
    """How many jobs of one queue and status were removed since these are counted."""

    records: int
    before: datetime | None
    """The last end of one of them."""
    token: ObjectId | None
    """The name of this count: it may be forgotten, and another one begin with zero."""


Removed: TypeAlias = Mapping[str, Removals]

OLDEST_WITH_SNAPSHOTS = 13
"""The wire version of a server 5.0, the first that shows many reads one state."""

_NO_SNAPSHOT = (239, 246)
"""The codes of a server whose state of that time is gone, or not to be read as an index was just made."""

ENDED = [int(status) for status in Status if status.is_final]

LAGS = (timedelta(minutes=10), timedelta(minutes=1), timedelta(seconds=10), timedelta(seconds=2))
"""How long before the last end a count may stop: the longest time with few ends, as some are written late."""

FEW = 1_000
"""So many jobs are counted within a few milliseconds."""

FEW_QUEUES = 16
"""The waiting jobs of up to this many queues are counted by a command for each."""

REMOVED = "removed "
"""How the names of facts begin that note removals."""

_ENDS = {"_id": False, "ended_at": True}


class StateReader:
    """Lets reads see one state of the store, if its server is a member of a replica set and not older than 5.0."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._shows_one_state = False

    def rely_on(self, hello: Document) -> None:
        """Use what the server can do by its answer to ``hello``."""
        self._shows_one_state = "setName" in hello and hello["maxWireVersion"] >= OLDEST_WITH_SNAPSHOTS

    def read(self, reads: Callable[[CountReads], Found]) -> Found:
        """Return the result of ``reads``, which sees no concurrent writes; it may be called twice.

        The state is that of its first read.
        """
        if self._shows_one_state:
            try:
                with self._connection.database.client.start_session(snapshot=True) as session:
                    return reads(CountReads(self._connection, session))
            except OperationFailure as error:
                if error.code not in _NO_SNAPSHOT:
                    raise
        return reads(CountReads(self._connection, None))


class CountReads:
    """Reads in one session."""

    def __init__(self, connection: Connection, session: ClientSession | None) -> None:
        self._collections = connection.collections
        self._session = session

    def count(self, where: Document, index: str, limit: int | None = None) -> int:
        """Return how many jobs there are of these, at most the limit."""
        most = {} if limit is None else {"limit": limit}
        return self._collections.jobs.count_documents(where, hint=index, session=self._session, **most)

    def removals(self) -> Removed:
        """Return the removals that are noted."""
        facts = self._collections.facts
        found = facts.find({"_id": {"$gte": REMOVED, "$lt": f"{REMOVED.rstrip()}!"}}, session=self._session)
        return {one["_id"]: Removals(one["records"], one.get("before"), one.get("token")) for one in found}

    def waiting_jobs(self) -> Counts:
        """Return the numbers of jobs that wait."""
        waiting: Document = {"status": int(Status.WAITING)}
        counts: Counts = Counter()
        jobs = self._collections.jobs
        queues = jobs.distinct("queue", waiting, session=self._session)
        if len(queues) > FEW_QUEUES:
            steps: list[Document] = [{"$match": waiting}, {"$project": {"_id": False, "queue": True}}]
            steps.append({"$group": {"_id": "$queue", "n": {"$sum": 1}}})
            groups = jobs.aggregate(steps, session=self._session, hint=WAITING_IN_QUEUE)
            return Counter({(one["_id"], Status.WAITING): one["n"] for one in groups if type(one["_id"]) is str})
        for queue in queues:
            if type(queue) is str:
                counts[queue, Status.WAITING] = self.count({**waiting, "queue": queue}, WAITING_IN_QUEUE)
        return counts

    def by_queue(self, where: Document) -> Counts:
        """Return the numbers of these jobs."""
        before, later = self.split_at(where, None)
        return before + later

    def split_at(self, where: Document, until: datetime | None) -> tuple[Counts, Counts]:
        """Return the numbers of these up to a time and after it, from one read of an index alone."""
        later = {"$gt": ["$ended_at", until]} if until is not None else {"$literal": False}
        groups = self._collections.jobs.aggregate(
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
            session=self._session,
            hint=OUTCOMES,
        )
        found: tuple[Counts, Counts] = (Counter(), Counter())
        for key, is_later, number in readable(groups, _counted, "jobs of a status"):
            found[is_later][key] += number
        return found

    def stable_until(self) -> datetime | None:
        """Return a time before which ends are counted once for all; None without any end."""
        jobs = self._collections.jobs
        lasts = [
            one["ended_at"]
            for status in ENDED
            for one in jobs.find({"status": status, "ended_at": {"$type": "date"}}, _ENDS, session=self._session)
            .hint(OUTCOMES)
            .sort("ended_at", DESCENDING)
            .limit(1)
        ]
        last = max((one for one in lasts if isinstance(one, datetime)), default=None)
        if last is None:
            return None
        for lag in LAGS[:-1]:
            ended: Document = {"status": {"$in": ENDED}, "ended_at": {"$gt": last - lag}}
            if self.count(ended, OUTCOMES, limit=FEW) < FEW:
                return last - lag
        return last - LAGS[-1]

    def end_of_portion(self, status: int, behind: datetime, until: datetime, size: int) -> datetime:
        """Return up to when the next ``size`` of those ended."""
        ended: Document = {"status": status, "ended_at": {"$gt": behind, "$lte": until}}
        found = self._collections.jobs.find(ended, _ENDS, session=self._session).hint(OUTCOMES)
        return next((one["ended_at"] for one in found.sort("ended_at", ASCENDING).skip(size).limit(1)), until)


def _counted(group: Document) -> tuple[tuple[str, Status], bool, int]:
    key = group["_id"]
    return (text(key.get("queue")), Status(key.get("status"))), bool(key["later"]), group["records"]


PORTION = 50_000
"""So many are counted together at first, within a fraction of a second."""

COUNTED_FOR = 3600.0
"""Seconds after which all are counted again: an end that was written later than the lag was missed."""

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
    """How many jobs had ended up to ``until``, by queue and status; jobs removed later must be subtracted."""

    until: datetime
    counts: Counts
    removed: Removed
    """The removals that were known when these were counted: the numbers are without them."""
    counted_at: float

    def is_wrong(self, removed: Removed) -> bool:
        """Return whether all must be counted again: it is old, or jobs that were not counted may have been removed.

        Only the numbers of removals are known, and the last end: one after ``until`` may be of an uncounted job.
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
        """Make all stores count again: jobs were removed that were not noted, or all."""
        self._connection.collections.facts.update_one({"_id": _FLUSHED}, {"$inc": {"records": 1}}, upsert=True)

    def _ended_jobs(self, reads: CountReads) -> Counts:
        """Return the ended jobs, and keep the numbers of jobs that ended long enough ago."""
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

        If the call takes too long, its count is kept, and the next call continues from there.
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
