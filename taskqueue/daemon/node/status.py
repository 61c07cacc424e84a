"""The status of a node, as shown by its supervisor, `taskqueue nodes`, the dashboard and the process list."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from taskqueue.daemon.protocol.messages import PoolStatus
from taskqueue.daemon.runtime import child_process, systemd
from taskqueue.daemon.settings import Lead, Settings
from taskqueue.insight import host
from taskqueue.model.version import VERSION
from taskqueue.store import Store

UNSEATED = "waits for its seat"
"""The phase of a node that has not requested its seat yet."""

WORKS = "works"
"""The phase of a node that takes jobs."""


class NodeStage(Enum):
    """The stages in the life of a node; the values are shown to users."""

    STANDBY = UNSEATED
    SEATED = WORKS
    DRAINING = "is stopping"
    LEAVING = "leaves"


MEASURED_FOR = 1.0
"""Seconds over which the use of processors is measured at least: the kernel counts it in hundredths."""


class NodeUse:
    """Measures the memory and the processors that a node, its manager and its workers use.

    Processes that jobs have started count only for the time of a processor, once a worker has waited for them.
    """

    def __init__(self, manager: int, *, has_preloaded: bool) -> None:
        self._manager = manager
        self._has_preloaded = has_preloaded
        self._measured_at = time.monotonic()
        self._seconds: Mapping[str, float] = {}
        self._shares: Mapping[str, float] = {}
        self._document: Mapping[str, Any] = {"memory": {}, "cpu": {}, "code_age": None}
        self.memory: Mapping[str, int] = {}
        """The memory as last measured, in bytes. Replaced as a whole, so any thread may look."""

    def document(self) -> Mapping[str, Any]:
        """Return the use as plain values: bytes, the share of one processor since the last call, and an age in seconds.

        The age is that of the oldest process that workers may have their code from: a worker, or with ``--preload``
        the manager. A share that is not known yet is left out.
        """
        with suppress(OSError):  # without a free descriptor the use is that of the last call
            self._document = self._measured(child_process.children(self._manager))
        return self._document

    def _measured(self, children: Sequence[int]) -> dict[str, Any]:
        uses = {"node": child_process.use_of(os.getpid()), "manager": child_process.use_of(self._manager)}
        workers = [use for pid in children if (use := child_process.use_of(pid))]
        memory = {role: use.memory for role, use in uses.items() if use}
        seconds = {role: use.cpu for role, use in uses.items() if use}
        if (manager := uses["manager"]) is not None:
            memory["workers"] = sum(use.memory for use in workers)
            seconds["workers"] = manager.of_children + sum(use.cpu + use.of_children for use in workers)
        self.memory = memory
        self._measure(seconds)
        loaders = [manager] if manager is not None and self._has_preloaded else workers
        ages = [use.age for use in loaders]
        return {"memory": memory, "cpu": dict(self._shares), "code_age": round(max(ages), 3) if ages else None}

    def _measure(self, seconds: Mapping[str, float]) -> None:
        passed = time.monotonic() - self._measured_at
        if self._seconds and passed < MEASURED_FOR:
            return
        before, self._seconds = self._seconds, seconds
        self._measured_at += passed
        shares = {role: (now - before[role]) / passed for role, now in seconds.items() if role in before}
        self._shares = {role: round(max(0.0, share), 4) for role, share in shares.items()}


class NodeStatus:
    """The current status of one node."""

    def __init__(self, settings: Settings, manager: int = 0) -> None:
        """Create the status; ``manager`` is the pid of the worker manager, 0 if there is none."""
        self._settings = settings
        self.manager = manager
        self._processes = host.named({"node": os.getpid(), **({"manager": manager} if manager else {})})
        self.pool = PoolStatus(idle=0, busy=0, forced=0, concurrent=0)
        self.use = NodeUse(manager, has_preloaded=bool(settings.preload))
        self.running = 0
        self.failed: Callable[[], int] = int
        """Returns how many attempts have failed here in the last hour, since the start of the node."""
        self.waits: Callable[[], list[Any]] = list
        """Returns which runs wait for other jobs (``model.blocked_run``)."""
        self.unwritten: Callable[[], list[Any]] = list
        """Returns the runs whose start or end the store does not have yet; any thread may call it."""
        self.pids: Callable[[], dict[str, int]] = dict
        """Returns the pid of the worker of each job that runs; any thread may call it."""
        self.problems: Callable[[], list[str]] = list
        """Returns mistakes in the options that only the application's code shows; any thread may call it."""
        self.leads = False
        self.degraded = ""
        self.phase = UNSEATED
        """What the node does, in words: its stage, or why it takes no jobs."""
        self.stage = NodeStage.STANDBY
        self.metrics = ""
        """The URL of the metrics server; empty if there is none."""
        self._shown = ""
        self._is_announced = False

    @property
    def is_seated(self) -> bool:
        """Return whether the node has its seat, and is not about to leave."""
        return self.stage is NodeStage.SEATED

    @property
    def awaits_workers(self) -> bool:
        """Return whether the node works and its first worker has not started yet."""
        return self._settings.floor > 0 and self.phase == WORKS and not self._has_workers

    @property
    def shortage(self) -> str:
        """Return why no job can run here, because no worker can be started; empty if one can or there are others."""
        return "" if self._has_workers else self.pool.shortage

    @property
    def _has_workers(self) -> bool:
        pool = self.pool
        return bool(pool.idle or pool.busy or pool.forced or pool.concurrent)

    def banner(self, store: Store) -> list[str]:
        """Return the lines that describe the node, its store and the store's guarantee."""
        settings = self._settings
        queues = [f"{name}{'' if bound is None else f' (at most {bound})'}" for name, bound in settings.queues.items()]
        lines = [
            f"taskqueue {VERSION}: node {settings.name}",
            f"store      {store.url}",
            f"guarantee  {store.guarantee}",
            f"pool       {settings.pm.value}, {settings.min_children} to {settings.max_children} workers",
            f"queues     {', '.join(queues) or 'all'}",
        ]
        if self.metrics:
            lines.append(f"metrics    {self.metrics}/metrics, /live and /ready")
        if settings.schedules:
            lines.append(f"schedules  {settings.schedules}")
        if settings.outbox:
            lines.append(f"outbox     {', '.join(settings.outbox)}")
        if settings.notify:
            from taskqueue.notifications import receiver_of  # few nodes send notifications

            lines.append(f"notify     {', '.join(receiver_of(text).name for text in settings.notify)}")
        if settings.lead is Lead.CLUSTER:
            lines.append("lead       works only while it leads the cluster")
        if settings.allow:
            lines.append(f"allowed    {', '.join(settings.allow)}")
        return lines

    def about(self) -> Mapping[str, object]:
        """Return the facts that the node stores with its lease."""
        settings = self._settings
        return {
            "host": socket.gethostname(),
            "machine": host.machine(),
            "pid": os.getpid(),
            "processes": self._processes,
            "version": VERSION,
            "lead": settings.lead.value,
            "lease": settings.lease,
            "pm": settings.pm.value,
            "min_children": settings.min_children,
            "max_children": settings.max_children,
            "queues": dict(settings.queues),
            "order": settings.order.value,
            "idle": self.pool.idle,
            "busy": self.pool.busy,
            "forced": self.pool.forced,
            "concurrent": self.pool.concurrent,
            "running": self.running,
            "waits": self.waits(),
            "leads": self.leads,
            "degraded": self.degraded or self.pool.shortage,
            "phase": self.phase,
            "failed_in_hour": self.failed(),
            "use": self.use.document(),
        }

    def summary(self) -> str:
        """Return the status as one line for a supervisor."""
        parts = [self.phase, f"{self.pool.busy} busy, {self.pool.idle} idle"]
        if self.leads:
            parts.append("leads the cluster")
        if self.degraded:
            parts.append(f"degraded: {self.degraded}")
        if self.pool.shortage:
            parts.append(self.pool.shortage)
        return "; ".join(parts)

    def show(self) -> None:
        """Update the supervisor's text and the process title, if the status has changed.

        The start is complete when the first worker is up, or when the node stands by or its store is down: then it
        waits for nothing of its own.
        """
        status = self.summary()
        if status == self._shown:
            return
        self._shown = status
        if self._is_announced or (self.phase == UNSEATED and not self.degraded) or self.awaits_workers:
            systemd.show_status(status)
        else:
            self._is_announced = True
            systemd.ready(status)
        child_process.title(f"node {self._settings.name}{' (leader)' if self.leads else ''}")
