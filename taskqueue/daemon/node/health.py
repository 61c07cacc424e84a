"""The health of a node, for probes and people: whether its loop turns (live), and whether it takes jobs (ready)."""

from __future__ import annotations

import os
import time
from typing import Any

from taskqueue.daemon.node.backlog import Backlog, BacklogReader
from taskqueue.daemon.node.status import WORKS, NodeStatus, version
from taskqueue.daemon.settings import Settings
from taskqueue.model.record import Holder

LIVE_WITHIN = 30.0
"""Seconds without a turn of the loop after which a node counts as hung: more than the calls of one turn to a slow store
can take, for an outage of the store is no death. An idle loop turns every second."""


class NodeHealth:
    """The health of one node. The loop notes its turns; other threads ask, and read values that are replaced whole."""

    def __init__(
        self, settings: Settings, holder: Holder, store_url: str, status: NodeStatus, backlog: BacklogReader
    ) -> None:
        self._settings = settings
        self._holder = holder
        self._store_url = store_url
        self._status = status
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
        status = self._status
        reason = self._not_ready() if is_live else f"its loop has not turned for {turned_for:.0f} s: restart the node"
        return {
            "node": self._holder.seat,
            "live": is_live,
            "ready": not reason,
            "reason": reason,
            "state": status.phase,
            "leads": status.leads,
            "pid": os.getpid(),
            "incarnation": self._holder.incarnation,
            "version": version(),
            "store": {"url": self._store_url, "answers": not status.degraded, "error": status.degraded},
            "pool": {
                "mode": self._settings.pm.value,
                "busy": status.pool.busy,
                "idle": status.pool.idle,
                "forced": status.pool.forced,
                "concurrent": status.pool.concurrent,
                "slots": self._settings.slots,
            },
            "backlog": _backlog(backlog),
            "loop_turned": round(turned_for, 3),
        }

    def _not_ready(self) -> str:
        """Return why the node takes no jobs now; empty if it does."""
        status = self._status
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
