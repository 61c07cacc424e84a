"""Reads numbers of jobs, all of one state of the store where the server can show that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeVar

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from taskqueue.model.reading import text
from taskqueue.model.record import Status
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
"""The waiting jobs of so many queues are counted by a command for each."""

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
        """Return what ``reads`` finds, which does not see what others write meanwhile; it may be called twice.

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
        """Return the numbers of these up to a time, and of those behind it, by one look at an index alone."""
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
