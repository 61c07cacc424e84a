"""Finds the first jobs queue by queue: in the order of claims if some queues are paused, or in the order of turns.

What is known of the queues is cached while a bell reports new jobs; each claim reads the jobs themselves.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush, nsmallest
from typing import ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, cast

from bson import ObjectId
from pymongo import ASCENDING

from taskqueue.model.controls import Controls
from taskqueue.model.record import Status
from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.bells import StreamBell
from taskqueue.store.mongodb.claim_candidates import (
    ANY_SIZE,
    SizedJob,
    are_beyond,
    candidate_of,
    in_range,
    queue_of,
    read,
)
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import RANKED, WAITING, WAITING_IN_QUEUE
from taskqueue.store.queue_shares import First, QueueShares, Turns

MERGED = 100
"""Maximum number of queues that one command reads: the server merges up to 200 ranges; with more, it walks them all."""

KNOWN_FOR = timedelta(seconds=1)
"""If there are more than ``MERGED`` queues: how long a queue's only job may be overlooked while others fill each claim.

In the order of turns none is overlooked: the bell names the queues of new jobs, and the jobs that wait again.
"""

Place: TypeAlias = tuple[float, ObjectId]
"""Rank and id: the place of a job among the waiting jobs."""

_IN_ORDER = {"queue": ASCENDING, "forced": ASCENDING, "rank": ASCENDING, "_id": ASCENDING}


class Search(NamedTuple):
    """What a claim looks for: the first jobs of queues that are not paused, for the pool or beside it (``forced``)."""

    forced: bool
    limit: int
    demand: ClaimRequest
    controls: Controls
    batches: int
    """The number of batches to choose from at random while other nodes claim too."""
    now: datetime


class _Queues(ABC):
    """What is known of the queues that are not paused and have waiting jobs of one kind."""

    _FIRST_FIELDS: ClassVar[Sequence[str]] = ("rank",)
    """The fields to read of each queue's first job."""

    def __init__(self, connection: Connection, search: Search, version: object) -> None:
        self.version = version
        self._connection = connection
        self._forced = search.forced
        self._controls = search.controls
        self._at = search.now

    @abstractmethod
    def lowest(self, search: Search) -> list[SizedJob]:
        """Return the first ``limit`` jobs in order; while other nodes claim, maybe others that follow soon."""

    @property
    @abstractmethod
    def queues(self) -> Sized:
        """The known queues."""

    def hold(self, search: Search, version: object) -> bool:
        """Return whether a claim may reuse them: there are many, and they were read a moment ago."""
        is_recent = timedelta(0) <= search.now - self._at < KNOWN_FOR
        return self._is_comparable(search, version) and is_recent and len(self.queues) > MERGED

    def _is_comparable(self, search: Search, version: object) -> bool:
        """Return whether a bell reports what has changed, and the same queues are paused."""
        return version is not None and self.version is not None and search.controls.kept == self._controls.kept

    def _firsts(self, where: Document) -> Iterator[tuple[str, Document]]:
        """Yield each of these queues with fields of its first job, by one index lookup per queue."""
        first = {name: {"$first": f"${name}"} for name in self._FIRST_FIELDS}
        group = {"_id": "$queue", **first, "first": {"$first": "$_id"}}
        of_kind = {"status": int(Status.WAITING), "forced": self._forced, **RANKED, **where}
        steps: list[Document] = [{"$match": of_kind}, {"$sort": _IN_ORDER}, {"$group": group}]
        for document in self._connection.collections.jobs.aggregate(steps, hint=WAITING_IN_QUEUE):
            queue = document["_id"]
            if type(queue) is str and self._controls.pause_of(queue) is None:
                yield queue, {**document, "_id": document["first"]}


Known = TypeVar("Known", bound=_Queues)


class _QueueCandidates(ABC, Generic[Known]):
    """Finds the first jobs of all queues; caches what it knows about each kind of job: for the pool, and beside it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bell: StreamBell | None = None
        self._known: dict[bool, Known] = {}

    def rely_on(self, bell: StreamBell) -> None:
        """Use this bell to learn of new jobs."""
        self._bell = bell

    def lowest(self, search: Search) -> list[SizedJob]:
        """Return the first ``limit`` jobs in order; while other nodes claim, maybe others that follow soon."""
        if search.limit <= 0:
            return []
        version = self._version()
        known = self._known.get(search.forced)
        if known is None or not known.hold(search, version):
            jobs = self._without_look(search, known)
            if jobs is not None:
                return jobs
            known = self._look(search, version)
        jobs = known.lowest(search)
        if len(jobs) >= search.limit or known.version == version or are_beyond(jobs, search.demand):
            return jobs
        return self._look(search, version).lowest(search)

    def _look(self, search: Search, version: object) -> Known:
        known = self._known[search.forced] = self._read(search, version)
        return known

    def _without_look(self, search: Search, known: Known | None) -> list[SizedJob] | None:  # noqa: ARG002
        """Return the first jobs if they can be found without looking into each queue."""
        return None

    @abstractmethod
    def _version(self) -> object:
        """Return a value that changes when the bell reports a job that may be in a new queue; None without a bell."""

    @abstractmethod
    def _read(self, search: Search, version: object) -> Known:
        """Look into each queue."""


class OpenQueues(_QueueCandidates["_Places"]):
    """Finds the lowest (rank, id) of all queues that are not paused.

    If there are many, it remembers for each a place before which none of its jobs waits. Every place is looked up
    before it is used, so that jobs taken by others do no harm.
    """

    def _version(self) -> object:
        return None if self._bell is None else self._bell.changes

    def _read(self, search: Search, version: object) -> _Places:
        return _Places(self._connection, search, version)


class _Places(_Queues):
    """For each queue a place before which none of its jobs of one kind waits."""

    def __init__(self, connection: Connection, search: Search, version: object) -> None:
        super().__init__(connection, search, version)
        self._places = {queue: place_of(first) for queue, first in self._firsts({})}
        self._heap = [(*place, queue) for queue, place in self._places.items()]
        heapify(self._heap)

    @property
    def queues(self) -> Sized:
        return self._places

    def lowest(self, search: Search) -> list[SizedJob]:
        jobs: list[SizedJob] = []
        if search.batches > 1:
            ahead = nsmallest(MERGED * search.batches, self._places, key=self._places.__getitem__)
            jobs = self._of(random.sample(ahead, min(MERGED, len(ahead))), search)
        places = [(place_of(document), document["queue"]) for document, _ in jobs]
        while len(jobs) < search.limit and self._heap and not are_beyond(jobs, search.demand):
            queues = self._pop_lowest()
            next_place = self._heap[0][:2] if self._heap else None
            rest = search._replace(limit=search.limit - len(jobs), batches=1)
            read_now = self._of(queues, rest, jobs)
            is_all = len(read_now) < rest.limit and not are_beyond(read_now, search.demand)
            in_order = [job for job in read_now if next_place is None or place_of(job[0]) <= next_place]
            places += [(place_of(document), document["queue"]) for document, _ in in_order]
            self._move(queues, read_now, len(in_order), is_all)
            jobs = [*jobs, *in_order]
        for place, queue in places:  # so that jobs this claim does not take are found again
            self._put(queue, min(place, self._places.get(queue, place)))
        return jobs

    def _pop_lowest(self) -> list[str]:
        """Remove the queues with the lowest places, and return them."""
        queues: list[str] = []
        while self._heap and (len(queues) < MERGED or not self._is_current(self._heap[0])):
            entry = heappop(self._heap)
            if self._is_current(entry):
                queues.append(entry[2])
                del self._places[entry[2]]
        return queues

    def _is_current(self, entry: tuple[float, ObjectId, str]) -> bool:
        return self._places.get(entry[2]) == entry[:2]

    def _move(self, queues: Iterable[str], jobs: Sequence[SizedJob], taken: int, is_all: bool) -> None:
        """Move the places of these queues past the first ``taken`` jobs; drop the queues that have no more jobs."""
        places = {} if is_all else dict.fromkeys(queues, place_of(jobs[-1][0]))
        for document, _ in reversed(jobs[taken:]):
            places[document["queue"]] = place_of(document)
        for queue, place in places.items():
            self._put(queue, place)

    def _put(self, queue: str, place: Place) -> None:
        if self._places.get(queue) != place:
            self._places[queue] = place
            heappush(self._heap, (*place, queue))

    def _of(self, queues: Sequence[str], search: Search, known: Iterable[SizedJob] = ()) -> list[SizedJob]:
        """Return the first jobs of these queues, except the known ones."""
        where: Document = {"queue": {"$in": queues}, "forced": self._forced}
        if ids := [document["_id"] for document, _ in known]:
            where["_id"] = {"$nin": ids}
        return in_range(self._connection, WAITING_IN_QUEUE, where, search.limit, search.demand, search.batches)


class FairCandidates(_QueueCandidates["_WaitingQueues"]):
    """Finds the first jobs of queues in the order of their turns.

    It knows the first job of each queue, and looks into a queue again after reading its jobs or after new ones.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._unnamed = 0
        """How many jobs whose queue was not looked up wait again."""

    def _version(self) -> object:
        new = None if self._bell is None else self._bell.take_new_queues()
        if new is None:
            return None
        names = set(new.queues)
        if new.again and any(len(known.queues) > MERGED for known in self._known.values()):
            jobs = self._connection.collections.jobs.find({"_id": {"$in": list(new.again)}}, {"queue": True})
            names |= {queue_of(document) for document in jobs.hint([("_id", ASCENDING)])}
        else:
            self._unnamed += len(new.again)
        for known in self._known.values():
            known.note(names)
        return new.unnamed + self._unnamed

    def _read(self, search: Search, version: object) -> _WaitingQueues:
        return _WaitingQueues(self._connection, search, version)

    def _without_look(self, search: Search, known: _WaitingQueues | None) -> list[SizedJob] | None:
        """Return all waiting jobs if there are no more than the limit, so that turns do not matter."""
        if search.controls.pauses_any or (known is not None and not known.is_one_queue):
            return None
        jobs = _in_all_queues(self._connection, search, search.limit + 1)
        return jobs if len(jobs) <= search.limit and not are_beyond(jobs, search.demand) else None


class _WaitingQueues(_Queues):
    """The queues, each with its first job."""

    _FIRST_FIELDS = ("rank", "priority")

    def __init__(self, connection: Connection, search: Search, version: object) -> None:
        super().__init__(connection, search, version)
        self._unsure: set[str] = set()
        """The queues whose first job may have changed."""
        self._turns = Turns()
        self._shares = search.demand.shares
        self._note_firsts({})

    @property
    def queues(self) -> Sized:
        return self._turns.queues

    def note(self, queues: Collection[str]) -> None:
        """Look at these queues again before the next claim."""
        self._unsure.update(queues)

    def hold(self, search: Search, version: object) -> bool:
        """Return whether no other queue can have waiting jobs, or one of many queues may be overlooked for a moment."""
        if search.demand.shares is not self._shares:
            return False
        is_all = self._is_comparable(search, version) and version == self.version
        return is_all or super().hold(search, version)

    @property
    def is_one_queue(self) -> bool:
        """Return whether all waiting jobs are in one queue."""
        return len(self._turns.queues | self._unsure) == 1

    def lowest(self, search: Search) -> list[SizedJob]:
        """Return the jobs of the next turns, those of each queue in order; there may be more than ``limit``."""
        if self.is_one_queue and not search.controls.pauses_any:
            return _in_all_queues(self._connection, search, search.limit)
        if self._unsure:
            unsure, self._unsure = self._unsure, set()
            for queue in unsure:
                self._turns.drop(queue)
            self._note_firsts({"queue": {"$in": list(unsure)}})
        shares = search.demand.shares.trial()
        jobs: dict[object, SizedJob] = {}
        skips: Counter[str] = Counter()
        while len(jobs) < search.limit:
            plan = shares.trial()
            planned = self._plan(plan, search.limit - len(jobs))
            if not planned:
                break
            read_now = self._of_batch(planned, skips, search)
            is_beyond = are_beyond([*jobs.values(), *read_now], search.demand)
            accepted, others = (read_now, {}) if is_beyond or search.batches > 1 else self._alike(read_now)
            jobs.update({job[0]["_id"]: job for job in accepted})
            if is_beyond:
                break
            by_queue = Counter(document["queue"] for document, _ in accepted)
            skips += by_queue
            for queue, turns in planned.items():
                if queue in others:
                    self._turns.put(queue, others[queue], self._shares)
                elif by_queue[queue] < turns:
                    self._turns.drop(queue)
            if not others:
                shares = plan
                continue
            for document, _ in accepted:
                shares.charge(document["queue"], _first_of(document))
        return list(jobs.values())

    def _alike(self, jobs: Sequence[SizedJob]) -> tuple[list[SizedJob], dict[str, First]]:
        """Return the jobs before the first one of their queue with another priority than was planned, and that one."""
        alike: list[SizedJob] = []
        others: dict[str, First] = {}
        for job in jobs:
            document = job[0]
            expected = self._turns.first(document["queue"])
            if document["queue"] in others:
                continue
            if expected is None or document.get("priority") == expected.priority:
                alike.append(job)
            else:
                others[document["queue"]] = _first_of(document)
        return alike, others

    def _plan(self, shares: QueueShares, limit: int) -> Counter[str]:
        """Return how many of the next turns each queue gets if each has enough jobs; at most ``MERGED`` queues."""
        planned: Counter[str] = Counter()
        for _ in range(limit):
            turn = self._turns.pop(shares)
            if turn is None:
                break
            queue, first = turn
            self._turns.put(queue, first, shares)
            if queue not in planned and len(planned) == MERGED:
                break
            planned[queue] += 1
            shares.charge(queue, first)
        self._unsure |= planned.keys()
        return planned

    def _note_firsts(self, where: Document) -> None:
        """Note the first job of each of these queues."""
        for queue, first in self._firsts(where):
            self._turns.put(queue, _first_of(first), self._shares)

    def _of_batch(self, planned: Mapping[str, int], skips: Mapping[str, int], search: Search) -> list[SizedJob]:
        """Return the jobs of these turns; while other nodes claim too, those of a batch chosen at random."""
        ahead = random.randrange(search.batches)
        later = {queue: skips[queue] + ahead * turns for queue, turns in planned.items()}
        jobs = self._of(planned, later, search.demand)
        if not ahead or len(jobs) == sum(planned.values()) or are_beyond(jobs, search.demand):
            return jobs
        return [*jobs, *self._of(planned, skips, search.demand)]

    def _of(self, planned: Mapping[str, int], skips: Mapping[str, int], demand: ClaimRequest) -> list[SizedJob]:
        """Return jobs of each queue in order, after its skipped jobs, with one command."""
        jobs = self._connection.collections.jobs
        first, *others = (self._steps(queue, skips[queue], turns) for queue, turns in planned.items())
        steps = [*first, *({"$unionWith": {"coll": jobs.name, "pipeline": other}} for other in others)]
        batches = jobs.aggregate_raw_batches(steps, hint=WAITING_IN_QUEUE, batchSize=sum(planned.values()))
        return read(cast("Iterable[bytes]", batches), ANY_SIZE if self._forced else demand)

    def _steps(self, queue: str, skip: int, limit: int) -> list[Document]:
        where = {"status": int(Status.WAITING), "queue": queue, "forced": self._forced, **RANKED}
        skipped: list[Document] = [{"$skip": skip}] if skip else []
        return [{"$match": where}, {"$sort": {"rank": ASCENDING, "_id": ASCENDING}}, *skipped, {"$limit": limit}]


def place_of(document: Document) -> Place:
    """Return the place of a document in the order of claims."""
    job = candidate_of(document | {"claims": 0}, forced=False)
    return job.rank, job.id


def _first_of(document: Document) -> First:
    return First(document.get("priority"), *place_of(document))


def _in_all_queues(connection: Connection, search: Search, limit: int) -> list[SizedJob]:
    return in_range(connection, WAITING, {"forced": search.forced}, limit, search.demand, search.batches)
