"""Finds claimable jobs: the first of each open queue, and with limits the lowest of each lane with free room.

It never walks a full lane, and reads waiting records no further than their bytes may go.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple, TypeAlias

from bson import ObjectId, decode_all
from pymongo import ASCENDING

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.bells import NewJobs, StreamBell
from taskqueue.store.mongodb.claim_cache import ClaimCache
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import CODEC, Document
from taskqueue.store.mongodb.indexes import LIMITED, RANKED, WAITING_IN_QUEUE
from taskqueue.store.mongodb.limits import LimitRoom, LimitUse, UseRequest
from taskqueue.store.queue_shares import First, in_turn
from taskqueue.store.selection import Budget, bounds, is_beyond

Sized: TypeAlias = tuple[Document, int]
"""A document and its length in bytes."""

ANY_SIZE = ClaimRequest(pooled=0)
"""The demand where bytes do not matter."""


def read(batches: Iterable[bytes], demand: ClaimRequest) -> list[Sized]:
    """Return the documents up to the first that goes beyond the demand for the pool, with that one."""
    found: list[Sized] = []
    total = 0
    for batch in batches:
        sizes: list[int] = []
        for size in _sizes(batch):
            sizes.append(size)
            total += size
            if is_beyond(total, len(found) + len(sizes), demand):
                return [*found, *zip(decode_all(batch[: sum(sizes)], CODEC), sizes, strict=True)]
        found += zip(decode_all(batch, CODEC), sizes, strict=True)
    return found


def _sizes(batch: bytes) -> Iterator[int]:
    """Return the length of each document, which its first four bytes say."""
    position = 0
    while position < len(batch):
        size = int.from_bytes(batch[position : position + 4], "little")
        yield size
        position += size


LANES_AT_ONCE = 50
"""The most open lanes that one claim considers; of more, a random choice."""

LANES_READ = 10 * LANES_AT_ONCE
"""The most lanes whose room is read at first: of more, a random choice, and all of them if too few of it are open."""

UNKNOWN = ObjectId(b"\0" * 12)
"""The id of a candidate without an id or a fence."""


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """A waiting job, in the order of claims."""

    rank: float
    id: JobId
    forced: bool
    queue: str = ""
    claims: int = 0
    lane: str = ""
    kept: Document = field(compare=False, repr=False)
    """The document as it was read."""
    size: int = field(default=0, compare=False)
    """The bytes of the document."""

    @property
    def is_whole(self) -> bool:
        """Return whether it has an id and a fence, as a claim needs."""
        return self.id is not UNKNOWN

    @property
    def use_request(self) -> UseRequest:
        """Return the limits that a claim of it uses."""
        return UseRequest(id=self.id, claims=self.claims + 1, lane=self.lane)


class Chosen(NamedTuple):
    """The candidates that a claim tries to take, and whether its bytes kept it from more."""

    candidates: list[Candidate]
    has_more: bool


class Offer(NamedTuple):
    """The candidates of some lanes, the free room of all, and whether lanes with room were left out."""

    candidates: list[Candidate]
    room: LimitRoom
    is_cut: bool


def within(found: Iterable[Candidate], demand: ClaimRequest, room: LimitRoom | None) -> Chosen:
    """Return the candidates that fit into the demand, of those in order; between queues their shares decide."""
    budget = Budget(demand, bounds(demand), room)

    def takes(one: Candidate) -> bool:
        return budget.take(one.queue, one.lane, forced=one.forced, size=one.size)

    if not demand.shares.is_fair:
        return Chosen([one for one in found if takes(one)], budget.has_more)
    waiting: dict[str, list[Candidate]] = {}
    for one in found:
        waiting.setdefault(one.queue, []).append(one)
    return Chosen(list(in_turn(waiting, _first_of, demand.shares, takes)), budget.has_more)


def _first_of(one: Candidate) -> First:
    return First(one.kept.get("priority"), one.rank, one.id)


class LimitedCandidates:
    """Finds jobs with limits."""

    def __init__(self, connection: Connection, limit_use: LimitUse) -> None:
        self._connection = connection
        self._limit_use = limit_use

    def lanes(self) -> list[str]:
        """Return every queue and lane, as one text, that has waiting jobs: one step in the index for each."""
        waiting = {"status": int(Status.WAITING), "lane": {"$gt": ""}}
        return [str(lane) for lane in self._connection.collections.latest.distinct("lane", waiting)]

    def offer(self, cache: ClaimCache, demand: ClaimRequest, controls: Controls, batches: int, now: datetime) -> Offer:
        """Return candidates of the lanes, and the free room; more batches look further ahead."""
        own = [queued.partition(" ") for queued in cache.lanes]
        own = [(queue, space, lane) for queue, space, lane in own if not demand.queues or queue in demand.queues]
        own = [(queue, space, lane) for queue, space, lane in own if controls.pause_of(queue) is None]
        some = random.sample(own, min(LANES_READ, len(own)))
        room = self._limit_use.room({lane for _, _, lane in some}, controls, now, demand.rooms)
        open_lanes = _open(some, room, cache, demand)
        if len(open_lanes) <= LANES_AT_ONCE and len(some) < len(own):
            room = self._limit_use.room({lane for _, _, lane in own}, controls, now, demand.rooms)
            open_lanes = _open(own, room, cache, demand)
        is_cut = len(open_lanes) > LANES_AT_ONCE
        if is_cut:
            open_lanes = random.sample(open_lanes, LANES_AT_ONCE)
        found = [
            one
            for queue, lane in open_lanes
            for one in self._lowest(queue, lane, cache, demand, room.free(lane), batches)
        ]
        return Offer(found, room, is_cut)

    def _lowest(
        self, queue: str, lane: str, cache: ClaimCache, demand: ClaimRequest, free: int, batches: int
    ) -> Iterator[Candidate]:
        for forced, limit in ((False, demand.pooled), (True, demand.forced)):
            most = min(limit, free)
            if most <= 0 or cache.is_empty(forced, queue, lane):
                continue
            within = ANY_SIZE if forced else demand
            where = {"status": int(Status.WAITING), "lane": f"{queue} {lane}", "forced": 2 + forced, **RANKED}
            jobs = self._connection.collections.jobs
            lowest = jobs.find_raw_batches(where).hint(LIMITED).limit(most)
            lowest.sort([("rank", ASCENDING), ("_id", ASCENDING)])
            skip = random.randrange(batches) * most
            found = read(lowest.clone().skip(skip), within) or (read(lowest, within) if skip else [])
            if not found:
                cache.note_empty(forced, queue, lane)
            for one, size in found:
                yield candidate(one, size, forced=forced, queue=queue, lane=lane)


def _open(
    lanes: Iterable[tuple[str, str, str]], room: LimitRoom, cache: ClaimCache, demand: ClaimRequest
) -> list[tuple[str, str]]:
    """Return the queues and lanes that have room, and may have jobs that the demand asks for."""
    asked = [forced for forced, limit in ((False, demand.pooled), (True, demand.forced)) if limit > 0]
    return [
        (queue, lane)
        for queue, _, lane in lanes
        if room.free(lane) > 0 and not all(cache.is_empty(forced, queue, lane) for forced in asked)
    ]


def candidate(kept: Document, size: int = 0, *, forced: bool, queue: str = "", lane: str = "") -> Candidate:
    """Return the candidate of a document."""
    id, rank, claims = kept["_id"], kept["rank"], kept.get("claims")
    if type(id) is not ObjectId or not isinstance(claims, int):
        id, claims = UNKNOWN, 0
    return Candidate(
        rank=rank if isinstance(rank, (int, float)) else 0,  # a Decimal128 compares with no other number
        id=id,
        forced=forced,
        queue=queue,
        claims=claims,
        lane=lane,
        kept=kept,
        size=size,
    )


def queue_of(kept: Document) -> str:
    """Return the queue of a document; a damaged one is empty."""
    queue = kept.get("queue")
    return queue if isinstance(queue, str) else ""


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
    if not skip or len(found) == limit or are_beyond(found, demand):
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
            if len(found) == limit or known.changes == changes or are_beyond(found, demand):
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
        merged = [(place_of(one), one["queue"]) for one, _ in found]
        while len(found) < limit and self._heap and not are_beyond(found, demand):
            some = self._pop_lowest()
            behind = self._heap[0][:2] if self._heap else None
            read_now = self._of(some, limit - len(found), demand, 1, found)
            is_all = len(read_now) < limit - len(found) and not are_beyond(read_now, demand)
            in_order = [one for one in read_now if behind is None or place_of(one[0]) <= behind]
            merged += [(place_of(one), one["queue"]) for one, _ in in_order]
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
                yield queue, place_of({"_id": one["first"], "rank": one["rank"]})

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
        begins = {} if is_all else dict.fromkeys(queues, place_of(found[-1][0]))
        for one, _ in reversed(found[taken:]):
            begins[one["queue"]] = place_of(one)
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


def place_of(kept: Document) -> Place:
    """Return the place of a document in the order of claims."""
    one = candidate(kept | {"claims": 0}, forced=False)
    return one.rank, one.id


def are_beyond(found: Sequence[Sized], demand: ClaimRequest) -> bool:
    """Return whether these jobs have more bytes than the demand."""
    return is_beyond(sum(size for _, size in found), len(found), demand)
