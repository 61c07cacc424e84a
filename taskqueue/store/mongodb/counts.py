"""Counts jobs by queue and status: all ended jobs once, then only jobs that end or are removed.

The leading node stores its count of ended jobs when it tidies the history, so a process that starts need not count them
all.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeVar

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from taskqueue.model.ids import JobId
from taskqueue.model.reading import readable, text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import EPOCH
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document, needed_time_in
from taskqueue.store.mongodb.indexes import OUTCOMES, WAITING_IN_QUEUE

Counts: TypeAlias = "Counter[tuple[str, Status]]"

Result = TypeVar("Result")

OLDEST_WITH_SNAPSHOTS = 13
"""The wire version of server 5.0, the first with snapshot reads."""

_NO_SNAPSHOT = (239, 246)
"""Error codes of a server that no longer has that state, or cannot read it because an index was just created."""

ENDED = [int(status) for status in Status if status.is_final]

LAGS = (timedelta(minutes=10), timedelta(minutes=1), timedelta(seconds=10), timedelta(seconds=2))
"""How far before the last end a count may stop, as some ends are written late: the longest with few ends is used."""

FEW = 1_000
"""A number of jobs that can be counted within a few milliseconds."""

FEW_QUEUES = 16
"""Maximum number of queues whose waiting jobs are counted with one command per queue."""

PORTION = 50_000
"""How many jobs are counted in one step at first; this takes a fraction of a second."""

COUNTED_FOR = 3600.0
"""Seconds after which all jobs are counted again, since ends written later than the lag were missed."""

FORGOTTEN_AFTER = timedelta(days=1)
"""How long a queue's removals are kept without another one: by then the stored count and all others are newer."""

UNFINISHED_AFTER = timedelta(minutes=1)
"""The age at which the process of a noted removal must have died: its call would have given up by then."""

REMOVED = "removed "
"""The prefix of the facts that note removals."""

REMOVING = "removing "
"""The prefix of the facts that note removals before they are made."""

_REMOVED_OF_QUEUES = {"$gte": f"{REMOVED}0", "$lt": f"{REMOVED}:"}

_FLUSHED = f"{REMOVED}all"

_STORED = "ended"
"""The fact with the stored count of ended jobs."""

_ENDS = {"_id": False, "ended_at": True}


class Removals(NamedTuple):
    """How many jobs of one queue and status have been removed since removals were first counted."""

    records: int
    before: datetime | None
    """The last end of a removed job."""
    token: ObjectId | None
    """Identifies this count, which may be dropped and replaced by one that starts at zero."""


Removed: TypeAlias = Mapping[str, Removals]


class StateReader:
    """Makes reads see one state of the store if the server is in a replica set and is version 5.0 or later."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._shows_one_state = False

    def rely_on(self, hello: Document) -> None:
        """Use snapshot reads if the server's answer to ``hello`` allows them."""
        self._shows_one_state = "setName" in hello and hello["maxWireVersion"] >= OLDEST_WITH_SNAPSHOTS

    def read(self, reads: Callable[[CountReads], Result]) -> Result:
        """Return the result of ``reads``, which sees the store as of its first read, and may be called twice."""
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
        """Return how many jobs match, up to the limit."""
        most = {} if limit is None else {"limit": limit}
        return self._collections.jobs.count_documents(where, hint=index, session=self._session, **most)

    def removals(self) -> Removed:
        """Return the noted removals."""
        facts = self._collections.facts
        documents = facts.find({"_id": {"$gte": REMOVED, "$lt": f"{REMOVED.rstrip()}!"}}, session=self._session)
        return {
            document["_id"]: Removals(document["records"], document.get("before"), document.get("token"))
            for document in documents
        }

    def stored_count(self) -> _Count | None:
        """Return the count of ended jobs that the leading node has stored; None if there is none."""
        documents = self._collections.facts.find({"_id": _STORED}, session=self._session)
        return next(iter(readable(documents, _count_in, "the stored count of ended jobs")), None)

    def waiting_jobs(self) -> Counts:
        """Return how many jobs wait in each queue."""
        waiting: Document = {"status": int(Status.WAITING)}
        counts: Counts = Counter()
        jobs = self._collections.jobs
        queues = jobs.distinct("queue", waiting, session=self._session)
        if len(queues) > FEW_QUEUES:
            steps: list[Document] = [{"$match": waiting}, {"$project": {"_id": False, "queue": True}}]
            steps.append({"$group": {"_id": "$queue", "n": {"$sum": 1}}})
            groups = jobs.aggregate(steps, session=self._session, hint=WAITING_IN_QUEUE)
            return Counter(
                {(group["_id"], Status.WAITING): group["n"] for group in groups if type(group["_id"]) is str}
            )
        for queue in queues:
            if type(queue) is str:
                counts[queue, Status.WAITING] = self.count({**waiting, "queue": queue}, WAITING_IN_QUEUE)
        return counts

    def by_queue(self, where: Document) -> Counts:
        """Return how many jobs match, by queue and status."""
        before, later = self.split_at(where, None)
        return before + later

    def split_at(self, where: Document, until: datetime | None) -> tuple[Counts, Counts]:
        """Return how many of these jobs ended up to a time and how many later, from a single read of an index."""
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
        counts: tuple[Counts, Counts] = (Counter(), Counter())
        for key, is_later, number in readable(groups, _counted, "jobs of a status"):
            counts[is_later][key] += number
        return counts

    def stable_until(self) -> datetime | None:
        """Return a time up to which ends need to be counted only once; None if no job has ended."""
        jobs = self._collections.jobs
        lasts = [
            job["ended_at"]
            for status in ENDED
            for job in jobs.find({"status": status, "ended_at": {"$type": "date"}}, _ENDS, session=self._session)
            .hint(OUTCOMES)
            .sort("ended_at", DESCENDING)
            .limit(1)
        ]
        last = max((ended_at for ended_at in lasts if isinstance(ended_at, datetime)), default=None)
        if last is None:
            return None
        for lag in LAGS[:-1]:
            ended: Document = {"status": {"$in": ENDED}, "ended_at": {"$gt": last - lag}}
            if self.count(ended, OUTCOMES, limit=FEW) < FEW:
                return last - lag
        return last - LAGS[-1]

    def end_of_portion(self, status: int, since: datetime, until: datetime, size: int) -> datetime:
        """Return the time by which the next ``size`` of these jobs ended."""
        ended: Document = {"status": status, "ended_at": {"$gt": since, "$lte": until}}
        jobs = self._collections.jobs.find(ended, _ENDS, session=self._session).hint(OUTCOMES)
        return next((job["ended_at"] for job in jobs.sort("ended_at", ASCENDING).skip(size).limit(1)), until)


@dataclass(frozen=True, kw_only=True)
class _Count:
    """How many jobs had ended by ``until``, by queue and status; jobs removed later must be subtracted."""

    until: datetime
    counts: Counts
    removed: Removed
    """The removals that were known at the count; the counts do not include these jobs."""
    counted_at: float
    """When all jobs were counted, in seconds since 1970 by the clock of the host that counted."""

    @property
    def is_old(self) -> bool:
        """Whether all jobs should be counted again."""
        return abs(time.time() - self.counted_at) > COUNTED_FOR

    def is_wrong(self, removed: Removed) -> bool:
        """Return whether the count cannot be used any more, because uncounted jobs may have been removed.

        Of removed jobs, only their number and last end are known; an end after ``until`` may be of an uncounted job.
        """
        if self.removed.get(_FLUSHED) != removed.get(_FLUSHED):
            return True
        return any(self._misses(now, self.removed.get(id)) for id, now in removed.items())

    def _misses(self, now: Removals, then: Removals | None) -> bool:
        """Return whether the removals of a queue since then may include jobs that were not counted."""
        if then is not None and now.token != then.token:
            return True
        return now != then and now.before is not None and now.before > self.until


class Tally:
    """Counts the jobs of one store."""

    def __init__(self, connection: Connection, portion: int = PORTION) -> None:
        self._connection = connection
        self._portion_size = portion
        self._lock = threading.Lock()
        self._base: _Count | None = None
        """The last full count; later calls count the jobs that have ended since."""
        self._begun: _Count | None = None
        """A full count in progress: a call that takes too long leaves it to the next call."""
        self._reached: dict[int, datetime] = {}
        """For each status, the end up to which that count includes the jobs."""

    def read(self, reads: CountReads) -> Mapping[tuple[str, Status], int]:
        """Return how many records there are for each queue and status; call this before any other read of ``reads``.

        The cached counts of ended jobs must not be newer than the state that is read.
        """
        with self._lock:
            counts = self._ended_jobs(reads)
        counts.update(reads.waiting_jobs())
        counts.update(reads.by_queue({"status": {"$in": [int(Status.POSTPONED), int(Status.PROCESSING)]}}))
        return {key: number for key, number in counts.items() if number > 0}

    def begin_removal(self, now: datetime, ids: Sequence[JobId] = (), name: str | None = None) -> str:
        """Note that these jobs, or all, are about to be removed; return the name to pass to ``end_removal``."""
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
        return [(fact["_id"], fact["jobs"]) for fact in self._connection.collections.facts.find(where)]

    def note_removed(self, status: Status, queues: Iterable[object], before: datetime, now: datetime) -> None:
        """Note, for each queue, how many of its jobs with this status, ended before this time, were removed.

        A job whose queue is damaged was never counted.
        """
        changes = [
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
            self._connection.collections.facts.bulk_write(changes)

    def count_again(self) -> None:
        """Make all clients count again after jobs were removed without a note, or all jobs were removed."""
        self._connection.collections.facts.update_one({"_id": _FLUSHED}, {"$inc": {"records": 1}}, upsert=True)

    def store_count(self, reads: CountReads, now: datetime) -> bool:
        """Store the count of ended jobs for processes that start later; return whether jobs are still to be counted.

        Each call counts one portion. Removals that the stored count includes are forgotten after a long time.
        """
        with self._lock:
            removed = reads.removals()
            base = self._base_for(removed, reads)
            if base is None and not self._count_portion(removed, reads):
                return True
            base = base or self._base
            if base is None:
                return False
            self._advance(base, removed, reads)
            base = self._base or base
        counts = base.counts.copy()
        counts.subtract(_removed_between(base.removed, removed))
        stored = _Count(until=base.until, counts=counts, removed=removed, counted_at=base.counted_at)
        facts = self._connection.collections.facts
        facts.replace_one({"_id": _STORED}, _document(stored), upsert=True)
        facts.delete_many({"_id": _REMOVED_OF_QUEUES, "at": {"$not": {"$gte": now - FORGOTTEN_AFTER}}})
        return self._begun is not None

    def _ended_jobs(self, reads: CountReads) -> Counts:
        """Return the counts of ended jobs, and cache the part for jobs that ended long enough ago."""
        removed = reads.removals()
        base = self._base_for(removed, reads)
        while base is None and not self._count_portion(removed, reads):
            pass
        base = base or self._base
        return reads.by_queue(_ended_after(None)) if base is None else self._advance(base, removed, reads)

    def _base_for(self, removed: Removed, reads: CountReads) -> _Count | None:
        """Return the count to start from, the stored one if it is better; an old one is renewed portion by portion."""
        base = self._base
        if base is not None and base.is_wrong(removed):
            base = None
        if base is None or base.is_old:
            stored = reads.stored_count()
            if stored is not None and (base is None or stored.counted_at >= base.counted_at):
                base = None if stored.is_wrong(removed) else stored
        self._base = base
        if base is not None and base.is_old:
            self._count_portion(removed, reads)
        return self._base

    def _advance(self, base: _Count, removed: Removed, reads: CountReads) -> Counts:
        """Return the counts of ended jobs, and include jobs in the base that ended long enough ago."""
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

    def _count_portion(self, removed: Removed, reads: CountReads) -> bool:
        """Count the next portion of all jobs that ended long enough ago, oldest first; return whether none is left.

        The count becomes the base once it is complete. A call that takes too long leaves it to the next call.
        """
        begun = self._begun
        if begun is None or begun.is_wrong(removed):
            self._begun = None
            until = reads.stable_until()
            if until is None:
                return True
            begun = self._begun = _Count(until=until, counts=Counter(), removed=removed, counted_at=time.time())
            self._reached.clear()
        for status in ENDED:
            if status not in self._reached:
                begun.counts.update(reads.by_queue({"status": status, "ended_at": None}))
                self._reached[status] = EPOCH
            if (since := self._reached[status]) < begun.until:
                end = reads.end_of_portion(status, since, begun.until, self._portion_size)
                portion = {"status": status, "ended_at": {"$gt": since, "$lte": end}}
                begun.counts.update(reads.by_queue(portion))
                self._reached[status] = end
                return False
        self._base, self._begun = begun, None
        return True


def _document(count: _Count) -> Document:
    return {
        "until": count.until,
        "counted_at": count.counted_at,
        "counts": [[queue, int(status), number] for (queue, status), number in count.counts.items() if number],
        "removed": [[id, *removals] for id, removals in count.removed.items()],
    }


def _count_in(document: Document) -> _Count:
    return _Count(
        until=needed_time_in(document["until"]),
        counts=Counter({(text(queue), Status(status)): int(number) for queue, status, number in document["counts"]}),
        removed={text(id): Removals(*removals) for id, *removals in document["removed"]},
        counted_at=float(document["counted_at"]),
    )


def _counted(group: Document) -> tuple[tuple[str, Status], bool, int]:
    key = group["_id"]
    return (text(key.get("queue")), Status(key.get("status"))), bool(key["later"]), group["records"]


def _removed_between(before: Removed, now: Removed) -> Counts:
    """Return how many jobs were removed between two reads."""
    gone: Counts = Counter()
    for id, removals in now.items():
        status, _, queue = id.removeprefix(REMOVED).partition(" ")
        if status.isdigit():
            gone[queue, Status(int(status))] += removals.records - (before[id].records if id in before else 0)
    return gone


def _ended_after(since: datetime | None) -> Document:
    ended: Document = {"status": {"$in": ENDED}}
    return ended if since is None else {**ended, "ended_at": {"$gt": since}}
