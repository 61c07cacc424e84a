"""The health of a node, for probes and people: whether it is live and ready, and its backlog."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.status import WORKS
from taskqueue.insight.nodes import live_and_lost
from taskqueue.model.controls import NONE, Controls
from taskqueue.model.record import Status
from taskqueue.model.version import VERSION
from taskqueue.store import Store

READ_EVERY = 2.0
"""Seconds between two reads of the store, however often health is asked for."""

SHARE, SELDOM = 200, 30.0
"""A slow read is not repeated for this many times its duration, because the loop waits for it, but for ``SELDOM``
seconds at most: a read may be slow only once."""

READ_WITHIN = 0.1
"""Seconds that the asking thread waits for the loop; then the figures of the last read have to do."""


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The jobs of the store by queue and status, and since when the oldest waiting job of each queue could run."""

    jobs: Mapping[tuple[str, Status], int] = field(default_factory=dict)
    waiting_since: Mapping[str, float] = field(default_factory=dict)
    """In seconds of ``time.monotonic``, for each queue with waiting jobs."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """How many nodes are ``live``, and how many ``lost``: silent or killed, within the last hour."""
    controls: Controls = NONE

    @property
    def waiting(self) -> int:
        """Return the number of waiting jobs in all queues."""
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

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._read_again_at = 0.0
        # Never closed: another thread may be about to write to it, and it ends with the process.
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._has_turned = threading.Event()
        self.latest: Backlog | None = None
        """The backlog as last read; None before the first read. Replaced as a whole, so any thread may look."""
        node.loop.watch(self._wake, self._on_wake)

    def refresh(self) -> Backlog | None:
        """Make the loop read the store, wait a moment for it, and return the latest backlog; for other threads."""
        self._has_turned.clear()
        os.eventfd_write(self._wake, 1)
        self._has_turned.wait(READ_WITHIN)
        return self.latest

    def _on_wake(self) -> None:
        os.eventfd_read(self._wake)
        if self._node.status.is_seated and time.monotonic() >= self._read_again_at:
            began = time.monotonic()
            backlog = self._node.breaker.call(lambda: read(self._node.store))
            self._read_again_at = began + pause_after(time.monotonic() - began)
            self.latest = backlog or self.latest
        self._node.loop.soon(self._has_turned.set)  # after the callbacks that wait already


def pause_after(took: float) -> float:
    """Return the seconds from the beginning of a read that took this long to the next one."""
    return min(max(READ_EVERY, SHARE * took), SELDOM)


def read(store: Store) -> Backlog:
    """Return the backlog of the store."""
    jobs = store.tally()
    now, clock = store.now(), time.monotonic()
    since = {queue: clock - (now - at).total_seconds() for queue, at in store.waiting_since().items()}
    return Backlog(jobs=jobs, waiting_since=since, nodes=live_and_lost(store.leases(), now), controls=store.controls())


LIVE_WITHIN = 30.0
"""Seconds without a turn of the loop after which a node counts as hung: more than the calls of one turn to a slow store
can take, since an outage of the store must not count as a hang. An idle loop turns every second."""


class NodeHealth:
    """The health of one node. The loop notes its turns; other threads ask, and read values that are replaced whole."""

    def __init__(self, node: NodeContext, backlog: BacklogReader) -> None:
        self._node = node
        self._backlog = backlog
        self._turned_at = time.monotonic()

    def note_turn(self, at: float | None = None) -> None:
        """Note that the loop has turned, now or at a time of ``time.monotonic``."""
        self._turned_at = time.monotonic() if at is None else at

    def document(self) -> dict[str, Any]:
        """Return the health in plain JSON values."""
        backlog = self._backlog.refresh()
        turned_for = max(0.0, time.monotonic() - self._turned_at)
        is_live = turned_for <= LIVE_WITHIN
        status = self._node.status
        reason = self._not_ready() if is_live else f"its loop has been stuck for {turned_for:.0f} s: restart the node"
        return {
            "node": self._node.holder.seat,
            "live": is_live,
            "ready": not reason,
            "reason": reason,
            "state": status.phase,
            "leads": status.leads,
            "pid": os.getpid(),
            "incarnation": self._node.holder.incarnation,
            "version": VERSION,
            "store": {"url": self._node.store.url, "answers": not status.degraded, "error": status.degraded},
            "pool": {
                "mode": self._node.settings.pm.value,
                "busy": status.pool.busy,
                "idle": status.pool.idle,
                "forced": status.pool.forced,
                "concurrent": status.pool.concurrent,
                "slots": self._node.settings.slots,
            },
            "backlog": _backlog(backlog),
            "loop_turned": round(turned_for, 3),
        }

    def _not_ready(self) -> str:
        """Return why the node takes no jobs now; empty if it does."""
        status = self._node.status
        if status.degraded:
            return f"its store does not answer: {status.degraded}"
        if status.phase != WORKS:
            return f"it {status.phase}"
        if status.shortage:
            return status.shortage
        if status.awaits_workers:
            return "none of its workers has started yet"
        return ""


def _backlog(backlog: Backlog | None) -> dict[str, Any] | None:
    if backlog is None:
        return None
    oldest = backlog.oldest
    return {
        "waiting": backlog.waiting,
        "oldest": None if oldest is None else {"queue": oldest[0], "age": round(oldest[1], 3)},
    }
