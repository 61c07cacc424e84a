"""Decides which waiting jobs a claim takes: in order, while the rest of its demand has room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from taskqueue.model.limits import COUNT_LIMIT, concurrency_of
from taskqueue.model.record import Record
from taskqueue.store import ClaimRequest

OTHER_LANES_AFTER = timedelta(seconds=0.5)
"""When to repeat a claim that found no job in the lanes it looked at and left other lanes out."""


class Room(Protocol):
    """The free room under limits."""

    def reserve(self, lane: str) -> bool:
        """Count one job of the lane as claimed, and return whether there was room for it."""


def bounds(demand: ClaimRequest, present: Iterable[str] = ()) -> dict[str, int]:
    """Return the most records to take from each queue of the demand, or of the queues with jobs if it names none."""
    everything = demand.pooled + demand.forced
    chosen: Mapping[str, int | None] = demand.queues or dict.fromkeys(present)
    return {queue: everything if bound is None else bound for queue, bound in chosen.items()}


def is_beyond(total: int, count: int, demand: ClaimRequest) -> bool:
    """Return whether this many bytes in this many records for the pool exceed the demand."""
    return demand.data is not None and total > demand.data and count > demand.free


def other_lanes_at(taken: Sequence[Record], demand: ClaimRequest, now: datetime) -> datetime | None:
    """Return when to claim from the lanes that a claim has left out; None if its pool is full or asks again by itself.

    No event may come that has the node claim again: jobs of other lanes can wait while those of full ones run.
    """
    if 0 < demand.pooled <= sum(not record.options.is_beside_pool for record in taken):
        return None
    return now if taken else now + OTHER_LANES_AFTER


class ConcurrencyRoom:
    """The room that a node's workers have for the jobs of classes with ``concurrency``."""

    def __init__(self, rooms: Mapping[str, int]) -> None:
        self._rooms = rooms
        self._used: Counter[str] = Counter()

    def free(self, lane: str) -> int:
        """Return how many more jobs of the lane there is room for."""
        job, at_once = concurrency_of(lane)
        return self._rooms.get(job, at_once) - self._used[job] if job else COUNT_LIMIT

    def reserve(self, lane: str) -> None:
        """Count one job of the lane as claimed."""
        job, _ = concurrency_of(lane)
        if job:
            self._used[job] += 1


class Budget:
    """The rest of a demand, as the candidates of a claim use it up one by one; without room, none with limits fits."""

    def __init__(self, demand: ClaimRequest, queues: Mapping[str, int], room: Room | None) -> None:
        self.has_more = False
        """Whether the bytes of the demand kept a job for the pool out."""
        self.left = demand.pooled + demand.forced
        """How many further candidates can fit."""
        self._demand = demand
        self._left = [demand.pooled, demand.forced]
        self._queues = dict(queues)
        self._room = room
        self._bytes = 0

    def take(self, queue: str, lane: str, *, forced: int, size: int = 0) -> bool:
        """Return whether a candidate fits, and count it if so; a queue without a bound has room for all."""
        left, at_once = self._left, self._queues.get(queue)
        if left[forced] <= 0 or (at_once is not None and at_once <= 0):
            return False
        if size and not forced and is_beyond(self._bytes + size, self._demand.pooled - left[0] + 1, self._demand):
            self.has_more = True
            self.left, left[0] = left[1], 0  # a later one must not go before this one
            return False
        if lane and (self._room is None or not self._room.reserve(lane)):
            return False
        if not forced:
            self._bytes += size
        left[forced] -= 1
        self.left -= 1
        if at_once is not None:
            self._queues[queue] = at_once - 1
        return True
