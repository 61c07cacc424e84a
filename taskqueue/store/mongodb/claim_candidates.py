"""Finds claimable jobs with limits: the lowest of each lane with free room; never walks a full lane."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from bson import ObjectId
from pymongo import ASCENDING

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.claim_cache import ClaimCache
from taskqueue.store.mongodb.claim_sizes import ANY_SIZE, read
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import LIMITED, RANKED
from taskqueue.store.mongodb.limits import LimitRoom, LimitUse, UseRequest
from taskqueue.store.selection import Budget, bounds

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
    """Return the candidates that fit into the demand, of those in order."""
    budget = Budget(demand, bounds(demand), room)
    chosen = [one for one in found if budget.take(one.queue, one.lane, forced=one.forced, size=one.size)]
    return Chosen(chosen, budget.has_more)


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
