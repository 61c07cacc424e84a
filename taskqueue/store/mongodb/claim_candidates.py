"""Which jobs with limits a node may claim: the lowest of each lane that has free places; no full lane is walked."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

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
from taskqueue.store.mongodb.limits import Free, LimitSlots, Wish

LANES_AT_ONCE = 50
"""At how many open lanes one claim looks; where there are more, at some of them by chance."""


NOBODY = ObjectId(b"\0" * 12)
"""The id of a candidate that has none, or no fence."""


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """A waiting job, in the order of claims."""

    rank: int
    id: JobId
    forced: bool
    queue: str = ""
    claims: int = 0
    lane: str = ""
    kept: Document = field(compare=False, repr=False)
    """The record as it was read."""
    size: int = field(default=0, compare=False)
    """The bytes of the document."""

    @property
    def is_whole(self) -> bool:
        """Tell whether it has an id and a fence, without which it cannot be claimed."""
        return self.id is not NOBODY

    @property
    def wish(self) -> Wish:
        """Return the places that a claim of it needs."""
        return Wish(id=self.id, claims=self.claims + 1, lane=self.lane)


class LimitedCandidates:
    """Finds jobs with limits."""

    def __init__(self, connection: Connection, slots: LimitSlots) -> None:
        self._connection = connection
        self._slots = slots

    def lanes(self) -> list[str]:
        """Return every queue and lane, as one text, that has waiting jobs: one step in the index for each."""
        waiting = {"status": int(Status.WAITING), "lane": {"$gt": ""}}
        return [str(lane) for lane in self._connection.collections.latest.distinct("lane", waiting)]

    def offer(
        self, looked: ClaimCache, wanted: ClaimRequest, controls: Controls, batches: int, now: datetime
    ) -> tuple[list[Candidate], Free]:
        """Return what could be claimed of the lanes, and what is free; the more batches, the further ahead."""
        own = [queued.partition(" ") for queued in looked.lanes]
        own = [(queue, space, lane) for queue, space, lane in own if not wanted.queues or queue in wanted.queues]
        own = [(queue, space, lane) for queue, space, lane in own if controls.pause_of(queue) is None]
        free = self._slots.free({lane for _, _, lane in own}, controls, now)
        open_lanes = [(queue, lane) for queue, _, lane in own if free.of(lane) > 0]
        if len(open_lanes) > LANES_AT_ONCE:
            open_lanes = random.sample(open_lanes, LANES_AT_ONCE)
        found = [
            one
            for queue, lane in open_lanes
            for one in self._lowest(queue, lane, looked, wanted, free.of(lane), batches)
        ]
        return found, free

    def _lowest(
        self, queue: str, lane: str, looked: ClaimCache, wanted: ClaimRequest, free: int, batches: int
    ) -> Iterator[Candidate]:
        for forced, limit in ((False, wanted.pooled), (True, wanted.forced)):
            most = min(limit, free)
            if most <= 0 or looked.is_empty(forced, queue, lane):
                continue
            within = ANY_SIZE if forced else wanted
            where = {"status": int(Status.WAITING), "lane": f"{queue} {lane}", "forced": 2 + forced, **RANKED}
            jobs = self._connection.collections.jobs
            lowest = jobs.find_raw_batches(where).hint(LIMITED).limit(most)
            lowest.sort([("rank", ASCENDING), ("_id", ASCENDING)])
            skip = random.randrange(batches) * most
            found = read(lowest.clone().skip(skip), within) or (read(lowest, within) if skip else [])
            if not found:
                looked.note_empty(forced, queue, lane)
            for one, size in found:
                yield candidate(one, size, forced=forced, queue=queue, lane=lane)


def candidate(kept: Document, size: int = 0, *, forced: bool, queue: str = "", lane: str = "") -> Candidate:
    """Return the candidate that a document is."""
    id, claims = kept["_id"], kept.get("claims")
    if type(id) is not ObjectId or not isinstance(claims, int):
        id, claims = NOBODY, 0
    return Candidate(
        rank=kept["rank"],
        id=id,
        forced=forced,
        queue=queue,
        claims=claims,
        lane=lane,
        kept=kept,
        size=size,
    )
