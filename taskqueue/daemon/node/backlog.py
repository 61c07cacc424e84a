"""Reads how many jobs wait and for how long, in the node's loop, when another thread of the node asks for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.model.record import Status
from taskqueue.scheduler import host
from taskqueue.store import Lease, Store

READ_EVERY = 2.0
"""Seconds between two reads of the store, however often somebody asks."""

SHARE = 200
"""A read that took long is not repeated for so many times as long: the loop waits for it."""

READ_WITHIN = 0.1
"""Seconds that the asking thread waits for the loop; then the figures of the last read have to do."""

SEAT = "seat:"

LOST_FOR = timedelta(hours=1)
"""A node that is silent for longer is not expected any more."""


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The jobs of the store by queue and status, and since when the oldest waiting job of each queue could run."""

    jobs: Mapping[tuple[str, Status], int] = field(default_factory=dict)
    waiting_since: Mapping[str, float] = field(default_factory=dict)
    """In seconds of ``time.monotonic``, for each queue with waiting jobs."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """How many nodes are ``live``, and how many ``lost``: silent or killed, and not for longer than ``LOST_FOR``."""

    @property
    def waiting(self) -> int:
        """Return the number of waiting jobs of all queues."""
        return sum(count for (_, status), count in self.jobs.items() if status is Status.WAITING)

    @property
    def oldest(self) -> tuple[str, float] | None:
        """Return queue and age in seconds of the oldest waiting job; None without any."""
        if not self.waiting_since:
            return None
        queue, since = min(self.waiting_since.items(), key=lambda item: item[1])
        return queue, max(0.0, time.monotonic() - since)


class BacklogReader:
    """The latest backlog. Only the loop calls the store; other threads ask it by a descriptor."""

    def __init__(self, loop: Loop, store: Store, breaker: CircuitBreaker, is_seated: Callable[[], bool]) -> None:
        self._loop = loop
        self._store = store
        self._breaker = breaker
        self._is_seated = is_seated
        self._read_again_at = 0.0
        # Never closed: another thread may be about to write to it, and it ends with the process.
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._has_turned = threading.Event()
        self.latest: Backlog | None = None
        """The backlog as last read; None before the first read. Replaced as a whole, so any thread may look."""
        loop.watch(self._wake, self._on_wake)

    def refresh(self) -> Backlog | None:
        """Have the loop read the store, wait a moment for it, and return the latest backlog; for other threads."""
        self._has_turned.clear()
        os.eventfd_write(self._wake, 1)
        self._has_turned.wait(READ_WITHIN)
        return self.latest

    def _on_wake(self) -> None:
        os.eventfd_read(self._wake)
        if self._is_seated() and time.monotonic() >= self._read_again_at:
            began = time.monotonic()
            answer = self._breaker.call(lambda: read(self._store))
            took = time.monotonic() - began
            self._read_again_at = began + max(READ_EVERY, SHARE * took)
            self.latest = answer.value if answer is not None else self.latest
        self._loop.soon(self._has_turned.set)  # after the callbacks that wait already


def read(store: Store) -> Backlog:
    """Return the backlog of the store."""
    jobs = store.tally()
    now, clock = store.now(), time.monotonic()
    since = {queue: clock - (now - at).total_seconds() for queue, at in store.waiting_since().items()}
    return Backlog(jobs=jobs, waiting_since=since, nodes=_nodes(store.leases(), now))


def _nodes(leases: Sequence[Lease], now: datetime) -> Mapping[str, int]:
    seats = [lease for lease in leases if lease.name.startswith(SEAT)]
    live = sum(host.is_live(lease, now) for lease in seats)
    recent = sum(lease.until > now - LOST_FOR for lease in seats)
    return {"live": live, "lost": recent - live}
