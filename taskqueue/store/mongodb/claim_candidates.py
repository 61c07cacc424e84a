"""Finds claimable jobs in order: the first of an index range and, with limits, the lowest of each lane with free room.

It never walks a full lane, and stops reading waiting records when their bytes exceed the demand. A cache keeps the
last scan for the next claims.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from bson import ObjectId, decode_all
from pymongo import ASCENDING

from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.bells import NewJobs
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.documents import CODEC, Document
from taskqueue.store.mongodb.indexes import LIMITED, RANKED
from taskqueue.store.mongodb.limits import LimitRoom, LimitUse, UseRequest
from taskqueue.store.queue_shares import First, in_turn
from taskqueue.store.selection import Budget, bounds, is_beyond

SizedJob: TypeAlias = tuple[Document, int]
"""The document of a job and its length in bytes."""

ANY_SIZE = ClaimRequest(pooled=0)
"""A demand without a bound on bytes."""

LANES_AT_ONCE = 50
"""Maximum number of open lanes that one claim considers; if there are more, it considers a random sample."""

LANES_READ = 10 * LANES_AT_ONCE
"""Maximum number of lanes whose room is read at first: a random sample, then all lanes if too few of it are open."""

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
    document: Document = field(compare=False, repr=False)
    """The document as it was read."""
    size: int = field(default=0, compare=False)
    """The bytes of the document."""

    @property
    def is_whole(self) -> bool:
        """Return whether it has the id and the fence that a claim needs."""
        return self.id is not UNKNOWN

    @property
    def use_request(self) -> UseRequest:
        """Return the limits under which a claim of it takes room."""
        return UseRequest(id=self.id, claims=self.claims + 1, lane=self.lane)


class Chosen(NamedTuple):
    """The candidates that a claim tries to take, and whether their bytes kept it from taking more."""

    candidates: list[Candidate]
    has_more: bool


class Offer(NamedTuple):
    """The candidates of some lanes, the free room of all, and whether lanes with room were left out."""

    candidates: list[Candidate]
    room: LimitRoom
    is_cut: bool


def within(candidates: Iterable[Candidate], demand: ClaimRequest, room: LimitRoom | None) -> Chosen:
    """Return the first of these ordered candidates that fit the demand; shares decide between queues."""
    budget = Budget(demand, bounds(demand), room)

    def takes(candidate: Candidate) -> bool:
        return budget.take(candidate.queue, candidate.lane, forced=candidate.forced, size=candidate.size)

    if not demand.shares.is_fair:
        return Chosen([candidate for candidate in candidates if takes(candidate)], budget.has_more)
    waiting: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        waiting.setdefault(candidate.queue, []).append(candidate)
    return Chosen(list(in_turn(waiting, _first_of, demand.shares, takes)), budget.has_more)


class LimitedCandidates:
    """Finds jobs with limits."""

    def __init__(self, connection: Connection, limit_use: LimitUse) -> None:
        self._connection = connection
        self._limit_use = limit_use

    def lanes(self) -> list[str]:
        """Return every queue and lane that has waiting jobs, each as one text, with one step in the index for each."""
        waiting = {"status": int(Status.WAITING), "lane": {"$gt": ""}}
        return [str(lane) for lane in self._connection.collections.latest.distinct("lane", waiting)]

    def offer(self, cache: ClaimCache, demand: ClaimRequest, controls: Controls, batches: int, now: datetime) -> Offer:
        """Return candidates of the lanes, and the free room; more batches look further ahead."""
        lanes = [queued.partition(" ") for queued in cache.lanes]
        lanes = [(queue, space, lane) for queue, space, lane in lanes if not demand.queues or queue in demand.queues]
        lanes = [(queue, space, lane) for queue, space, lane in lanes if controls.pause_of(queue) is None]
        sample = random.sample(lanes, min(LANES_READ, len(lanes)))
        room = self._limit_use.room({lane for _, _, lane in sample}, controls, now, demand.rooms)
        open_lanes = _open(sample, room, cache, demand)
        if len(open_lanes) <= LANES_AT_ONCE and len(sample) < len(lanes):
            room = self._limit_use.room({lane for _, _, lane in lanes}, controls, now, demand.rooms)
            open_lanes = _open(lanes, room, cache, demand)
        is_cut = len(open_lanes) > LANES_AT_ONCE
        if is_cut:
            open_lanes = random.sample(open_lanes, LANES_AT_ONCE)
        candidates = [
            candidate
            for queue, lane in open_lanes
            for candidate in self._lowest(queue, lane, cache, demand, room.free(lane), batches)
        ]
        return Offer(candidates, room, is_cut)

    def _lowest(
        self, queue: str, lane: str, cache: ClaimCache, demand: ClaimRequest, free: int, batches: int
    ) -> Iterator[Candidate]:
        for forced, limit in ((False, demand.pooled), (True, demand.forced)):
            most = min(limit, free)
            if most <= 0 or cache.is_empty(forced, queue, lane):
                continue
            within = ANY_SIZE if forced else demand
            where = {"status": int(Status.WAITING), "lane": f"{queue} {lane}", "forced": 2 + forced, **RANKED}
            lowest = self._connection.collections.jobs.find_raw_batches(where).hint(LIMITED).limit(most)
            lowest.sort([("rank", ASCENDING), ("_id", ASCENDING)])
            skip = random.randrange(batches) * most
            jobs = read(lowest.clone().skip(skip), within) or (read(lowest, within) if skip else [])
            if not jobs:
                cache.note_empty(forced, queue, lane)
            for document, size in jobs:
                yield candidate_of(document, size, forced=forced, queue=queue, lane=lane)


def candidate_of(document: Document, size: int = 0, *, forced: bool, queue: str = "", lane: str = "") -> Candidate:
    """Return the candidate of a document."""
    id, rank, claims = document["_id"], document["rank"], document.get("claims")
    if type(id) is not ObjectId or not isinstance(claims, int):
        id, claims = UNKNOWN, 0
    return Candidate(
        rank=rank if isinstance(rank, (int, float)) else 0,  # a Decimal128 compares with no other number
        id=id,
        forced=forced,
        queue=queue,
        claims=claims,
        lane=lane,
        document=document,
        size=size,
    )


def queue_of(document: Document) -> str:
    """Return the queue of a document; empty if it is damaged."""
    queue = document.get("queue")
    return queue if isinstance(queue, str) else ""


def in_range(
    connection: Connection, index: str, where: Document, limit: int, demand: ClaimRequest, batches: int = 1
) -> list[SizedJob]:
    """Return the first jobs of an index range, or a random one of its first batches while other nodes claim too.

    If that batch is short, the first jobs fill it: a node with room takes all jobs that wait for it.
    """
    if limit <= 0:
        return []
    query = {"status": int(Status.WAITING), **where, **RANKED}
    demand = ANY_SIZE if where["forced"] else demand
    lowest = connection.collections.jobs.find_raw_batches(query).hint(index).limit(limit).batch_size(limit)
    lowest.sort([("rank", ASCENDING), ("_id", ASCENDING)])
    skip = random.randrange(batches) * limit
    jobs = read(lowest.clone().skip(skip), demand)
    if not skip or len(jobs) == limit or are_beyond(jobs, demand):
        return jobs
    return list({job[0]["_id"]: job for job in [*jobs, *read(lowest, demand)]}.values())[:limit]


def read(batches: Iterable[bytes], demand: ClaimRequest) -> list[SizedJob]:
    """Return the documents up to and including the first that exceeds the demand for the pool."""
    jobs: list[SizedJob] = []
    total = 0
    for batch in batches:
        sizes: list[int] = []
        for size in _sizes(batch):
            sizes.append(size)
            total += size
            if is_beyond(total, len(jobs) + len(sizes), demand):
                return [*jobs, *zip(decode_all(batch[: sum(sizes)], CODEC), sizes, strict=True)]
        jobs += zip(decode_all(batch, CODEC), sizes, strict=True)
    return jobs


def are_beyond(jobs: Sequence[SizedJob], demand: ClaimRequest) -> bool:
    """Return whether the bytes of these jobs exceed the demand."""
    return is_beyond(sum(size for _, size in jobs), len(jobs), demand)


def _first_of(candidate: Candidate) -> First:
    return First(candidate.document.get("priority"), candidate.rank, candidate.id)


def _open(
    lanes: Iterable[tuple[str, str, str]], room: LimitRoom, cache: ClaimCache, demand: ClaimRequest
) -> list[tuple[str, str]]:
    """Return the queues and lanes that have room and may have jobs the demand asks for."""
    asked = [forced for forced, limit in ((False, demand.pooled), (True, demand.forced)) if limit > 0]
    return [
        (queue, lane)
        for queue, _, lane in lanes
        if room.free(lane) > 0 and not all(cache.is_empty(forced, queue, lane) for forced in asked)
    ]


def _sizes(batch: bytes) -> Iterator[int]:
    """Yield the length of each document, read from its first four bytes."""
    position = 0
    while position < len(batch):
        size = int.from_bytes(batch[position : position + 4], "little")
        yield size
        position += size


FRESH_FOR = timedelta(milliseconds=100)
"""How long a scan stays valid for a node that gets all the jobs it asks for."""

SURE_FOR = timedelta(seconds=1)
"""How long a scan stays valid while the bell reports no new jobs."""

SCAN_WITHIN = timedelta(milliseconds=20)
"""How long a node may claim newly rung jobs before the next scan: a short job has ended within that time."""


class ClaimCache:
    """The time of the last scan, the next due time, and the ranges found empty since."""

    def __init__(
        self, *, at: datetime, changes: NewJobs | None, next_at: datetime | None, lanes: Sequence[str]
    ) -> None:
        self._at = at
        self._changes = changes
        self._due_at = next_at
        self._owed_at: datetime | None = None
        self.lanes = lanes
        """The queues and lanes that have waiting jobs with limits."""
        self.was_full = False
        """Whether the last claim filled the demand."""
        self._empty: set[tuple[bool, str, str]] = set()

    def refresh_by(self, by: datetime) -> None:
        """Require a new scan by this time: newer jobs may be due, or in an unknown lane."""
        self._owed_at = by if self._owed_at is None else min(self._owed_at, by)

    def note_early_claim(self, next_at: datetime | None) -> None:
        """Note the next due time, after the previous next job was claimed early."""
        self._due_at = next_at

    @property
    def next_at(self) -> datetime | None:
        """Return when a new scan is required: when the next job is due, or as ``refresh_by`` asked."""
        return min((moment for moment in (self._due_at, self._owed_at) if moment is not None), default=None)

    def is_sure(self, changes: NewJobs | None) -> bool:
        """Return whether the bell reports no new jobs since."""
        return changes is not None and changes == self._changes

    def has_only_plain(self, demand: ClaimRequest, changes: NewJobs | None) -> bool:
        """Return whether all jobs added since are plain and no others can be claimed; then no new scan is needed."""
        if changes is None or self._changes is None or self._changes.all == changes.all:
            return False
        is_plain = changes.all - self._changes.all == changes.plain - self._changes.plain
        return is_plain and not self.lanes and (not demand.forced or self.is_empty(True))

    def has_one_new(self, demand: ClaimRequest, now: datetime, changes: NewJobs | None) -> bool:
        """Return whether one plain job is all that can be claimed, and the demand allows any plain job."""
        if changes is None or self._changes is None or changes.all != self._changes.all + 1:
            return False
        if not demand.pooled or demand.queues or (demand.data is not None and not demand.free):
            return False
        is_due = self.next_at is not None and self.next_at <= now
        return not is_due and self.is_empty(False) and self.has_only_plain(demand, changes)

    def claimed_plain(self, now: datetime, changes: NewJobs | None) -> datetime:
        """Note that a claim followed these plain jobs, so that the last scan stays valid; return until when."""
        self._changes = changes
        self.refresh_by(now + SURE_FOR)
        return now + SURE_FOR

    def may_claim_before_scan(self, now: datetime, changes: NewJobs | None) -> bool:
        """Return whether newly rung jobs may be claimed before the next scan."""
        if changes is None or self._changes is None or (self.next_at is not None and self.next_at <= now):
            return False
        return changes != self._changes and self._at <= now

    def holds(self, now: datetime, changes: NewJobs | None) -> bool:
        """Return whether the last scan is still valid."""
        if self.next_at is not None and self.next_at <= now:
            return False
        relied_on_for = SURE_FOR if self.is_sure(changes) else FRESH_FOR if self.was_full else timedelta(0)
        return timedelta(0) <= now - self._at < relied_on_for

    def is_empty(self, forced: bool, queue: str = "", lane: str = "") -> bool:
        """Return whether the range was empty at its last scan, and the bell reports no new jobs since."""
        return (forced, queue, lane) in self._empty

    def note_empty(self, forced: bool, queue: str = "", lane: str = "") -> None:
        """Note that the range is empty; without a bell the note would not stay valid."""
        if self._changes is not None:
            self._empty.add((forced, queue, lane))

    def forget_empty(self, *, only_pool: bool) -> None:
        """Forget the empty ranges, or only the range of jobs without limits for the pool: new jobs may wait."""
        if only_pool:
            self._empty.discard((False, "", ""))
        else:
            self._empty.clear()
