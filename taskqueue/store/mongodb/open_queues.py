"""Finds the first waiting jobs of all queues that are not paused."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush, nsmallest
from typing import TypeAlias

from bson import ObjectId
from pymongo import ASCENDING

from taskqueue.model.controls import Controls
from taskqueue.model.record import Status
from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.bells import NewJobs, StreamBell
from taskqueue.store.mongodb.claim_candidates import candidate
from taskqueue.store.mongodb.claim_sizes import ANY_SIZE, Sized, read
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import RANKED, WAITING_IN_QUEUE
from taskqueue.store.selection import is_beyond

MERGED = 100
"""So many queues are read by one command: of up to 200 the server merges the ranges, those of more it walks whole."""

KNOWN_FOR = timedelta(seconds=1)
"""How long a new job of one of more queues may be overlooked, while the known ones fill each claim."""

Place: TypeAlias = tuple[float, ObjectId]
"""Rank and id: the place of a job among those that wait."""


def in_range(
    connection: Connection, index: str, where: Document, limit: int, demand: ClaimRequest, batches: int = 1
) -> list[Sized]:
    """Return the first of one index range, or those of a random one of the first batches while other nodes claim too.

    Where that batch is short, the first fill it: a node that has room takes all there is for it.
    """
    if limit <= 0:
        return []
    query = {"status": int(Status.WAITING), **where, **RANKED}
    demand = ANY_SIZE if where["forced"] else demand
    lowest = connection.collections.jobs.find_raw_batches(query).hint(index).limit(limit).batch_size(limit)
    lowest.sort([("rank", ASCENDING), ("_id", ASCENDING)])
    skip = random.randrange(batches) * limit
    found = read(lowest.clone().skip(skip), demand)
    if not skip or len(found) == limit or _are_beyond(found, demand):
        return found
    return list({one["_id"]: (one, size) for one, size in [*found, *read(lowest, demand)]}.values())[:limit]


class OpenQueues:
    """Finds the lowest (rank, id) of all queues that are not paused.

    Where these are many, it remembers for each a place before which none of its jobs waits. Every place is looked up
    before it is used: jobs that others have taken do no harm.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bell: StreamBell | None = None
        self._known: dict[bool, _Places] = {}

    def rely_on(self, bell: StreamBell) -> None:
        """Use this bell to learn of new jobs."""
        self._bell = bell

    def lowest(
        self, forced: bool, limit: int, demand: ClaimRequest, controls: Controls, batches: int, now: datetime
    ) -> list[Sized]:
        """Return the first of these queues, or others that follow soon while other nodes claim too."""
        if limit <= 0:
            return []
        changes = None if self._bell is None else self._bell.changes
        known = self._known.get(forced)
        if known is not None and known.hold(now, changes, controls):
            found = known.lowest(limit, demand, batches)
            if len(found) == limit or known.changes == changes or _are_beyond(found, demand):
                return found
        places = self._known[forced] = _Places(self._connection, forced, controls, changes, now)
        return places.lowest(limit, demand, batches)


class _Places:
    """For each queue that is not paused a place before which none of its jobs of one kind waits."""

    def __init__(
        self, connection: Connection, forced: bool, controls: Controls, changes: NewJobs | None, at: datetime
    ) -> None:
        self.changes = changes
        self._connection = connection
        self._forced = forced
        self._controls = controls
        self._at = at
        self._begins = dict(self._firsts())
        self._heap = [(*place, queue) for queue, place in self._begins.items()]
        heapify(self._heap)

    def hold(self, now: datetime, changes: NewJobs | None, controls: Controls) -> bool:
        """Return whether they may still be used: there are many, and a bell tells whether jobs are new."""
        if changes is None or self.changes is None or len(self._begins) <= MERGED:
            return False
        return timedelta(0) <= now - self._at < KNOWN_FOR and controls.kept == self._controls.kept

    def lowest(self, limit: int, demand: ClaimRequest, batches: int) -> list[Sized]:
        """Return the first in order, or those of some of the next queues while other nodes claim too."""
        found: list[Sized] = []
        if batches > 1:
            ahead = nsmallest(MERGED * batches, self._begins, key=self._begins.__getitem__)
            found = self._of(random.sample(ahead, min(MERGED, len(ahead))), limit, demand, batches)
        merged = [(_place(one), one["queue"]) for one, _ in found]
        while len(found) < limit and self._heap and not _are_beyond(found, demand):
            some = self._pop_lowest()
            behind = self._heap[0][:2] if self._heap else None
            read_now = self._of(some, limit - len(found), demand, 1, found)
            is_all = len(read_now) < limit - len(found) and not _are_beyond(read_now, demand)
            in_order = [one for one in read_now if behind is None or _place(one[0]) <= behind]
            merged += [(_place(one), one["queue"]) for one, _ in in_order]
            self._begin_behind(some, read_now, len(in_order), is_all)
            found = [*found, *in_order]
        for place, queue in merged:  # those that this claim leaves are found again
            self._begin(queue, min(place, self._begins.get(queue, place)))
        return found

    def _firsts(self) -> Iterator[tuple[str, Place]]:
        """Return the place of the first job of each queue, by one look into the index for each."""
        in_order = {"queue": ASCENDING, "forced": ASCENDING, "rank": ASCENDING, "_id": ASCENDING}
        first = {name: {"$first": f"${name}"} for name in ("rank", "_id")}
        of_kind: Document = {"status": int(Status.WAITING), "forced": self._forced, **RANKED}
        group = {"_id": "$queue", "rank": first["rank"], "first": first["_id"]}
        steps: list[Document] = [{"$match": of_kind}, {"$sort": in_order}, {"$group": group}]
        for one in self._connection.collections.jobs.aggregate(steps, hint=WAITING_IN_QUEUE):
            if type(queue := one["_id"]) is str and self._controls.pause_of(queue) is None:
                yield queue, _place({"_id": one["first"], "rank": one["rank"]})

    def _pop_lowest(self) -> list[str]:
        """Remove the queues with the lowest places, and return them."""
        some: list[str] = []
        while self._heap and (len(some) < MERGED or not self._is_current(self._heap[0])):
            entry = heappop(self._heap)
            if self._is_current(entry):
                some.append(entry[2])
                del self._begins[entry[2]]
        return some

    def _is_current(self, entry: tuple[float, ObjectId, str]) -> bool:
        return self._begins.get(entry[2]) == entry[:2]

    def _begin_behind(self, queues: Iterable[str], found: Sequence[Sized], taken: int, is_all: bool) -> None:
        """Have these queues begin behind the first so many of those that were found; drop those that have no more."""
        begins = {} if is_all else dict.fromkeys(queues, _place(found[-1][0]))
        for one, _ in reversed(found[taken:]):
            begins[one["queue"]] = _place(one)
        for queue, place in begins.items():
            self._begin(queue, place)

    def _begin(self, queue: str, place: Place) -> None:
        if self._begins.get(queue) != place:
            self._begins[queue] = place
            heappush(self._heap, (*place, queue))

    def _of(
        self, queues: Sequence[str], limit: int, demand: ClaimRequest, batches: int, known: Iterable[Sized] = ()
    ) -> list[Sized]:
        """Return the first of these queues without the known ones."""
        where: Document = {"queue": {"$in": queues}, "forced": self._forced}
        if ids := [one["_id"] for one, _ in known]:
            where["_id"] = {"$nin": ids}
        return in_range(self._connection, WAITING_IN_QUEUE, where, limit, demand, batches)


def _place(kept: Document) -> Place:
    """Return the place of a document in the order of claims."""
    one = candidate(kept | {"claims": 0}, forced=False)
    return one.rank, one.id


def _are_beyond(found: Sequence[Sized], demand: ClaimRequest) -> bool:
    return is_beyond(sum(size for _, size in found), len(found), demand)
