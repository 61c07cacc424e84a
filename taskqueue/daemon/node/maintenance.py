"""What a node that has its seat does for the whole store besides its jobs: it mends, fires schedules and tidies up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.leases import NodeLeases
from taskqueue.daemon.node.schedules import ScheduleRunner
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.runtime.timers import ResettableTimer, every
from taskqueue.daemon.settings import Settings
from taskqueue.model.record import Status
from taskqueue.store import Store

REPAIR_EVERY = 15.0
"""Seconds between two looks for what nodes that died have left half done: as a rule looks into an empty index."""

MAINTAIN_EVERY = 60.0

FIRST_REPAIR_AFTER = 6.0
"""Seconds from taking a seat to the first mending: by then a store takes what its last holder began for left over."""


class Maintenance:
    """Each of them is harmless if two nodes are at it; schedules and the removal of old jobs are the leader's."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        settings: Settings,
        leases: NodeLeases,
        breaker: CircuitBreaker,
        is_seated: Callable[[], bool],
    ) -> None:
        self._leases = leases
        self._breaker = breaker
        self._is_seated = is_seated
        self._retention = Retention(store, settings)
        self._schedules = ScheduleRunner(store, breaker)
        self._next_fire_timer = ResettableTimer(loop, store.now, self.fire_schedules)
        self._first_timer = ResettableTimer(loop, store.now, self.maintain)
        self._outage_timer = ResettableTimer(loop, store.now, self.repair)
        every(loop, REPAIR_EVERY, self.repair)
        every(loop, MAINTAIN_EVERY, self.maintain)

    def start(self) -> None:
        """Look soon after the seat was taken."""
        self._first_timer.after(FIRST_REPAIR_AFTER)

    def after_outage(self) -> None:
        """Look soon after the store has come back."""
        self._outage_timer.after(FIRST_REPAIR_AFTER)

    def repair(self) -> None:
        """Complete what others have left half done."""
        if self._is_seated():
            self._breaker.call(self._retention.repair)

    def maintain(self) -> None:
        """Mend, remove what has been kept long enough, and look after the schedules."""
        self.repair()
        if self._leads:
            self._breaker.call(self._retention.prune)
        self.resume_schedules()

    def resume_schedules(self) -> None:
        """Fire what is due, also where the end of a job was missed."""
        if self._leads:
            self._schedules.reconcile()
            self.fire_schedules()

    def fire_schedules(self) -> None:
        """Fire the schedules that are due, as the leader, and wake up for the next one."""
        self._next_fire_timer.cancel()
        if not self._leads:
            return
        next_at = self._schedules.fire_due()
        if next_at is not None:
            self._next_fire_timer.at(next_at)

    @property
    def _leads(self) -> bool:
        return self._is_seated() and self._leases.leads


log = logging.getLogger(__name__)

PRUNE_BATCH = 1000
"""Records that one call removes."""

EVENTS_KEPT = timedelta(days=1)


class Retention:
    """What one node does for the store besides its jobs."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._keep = {
            Status.DONE: timedelta(seconds=settings.keep_done),
            Status.FAILED: timedelta(seconds=settings.keep_failed),
            Status.CANCELED: timedelta(seconds=settings.keep_failed),
            Status.TIMEOUT: timedelta(seconds=settings.keep_failed),
        }

    def repair(self) -> None:
        """Complete what others left half done."""
        repaired = self._store.repair(self._store.now())
        if repaired:
            log.warning("completed %d outcomes that their nodes left half done", repaired)

    def prune(self) -> None:
        """Remove what has been kept long enough, as the leader."""
        now = self._store.now()
        before = {status: now - kept for status, kept in self._keep.items()}
        removed = self._store.prune(before, now - EVENTS_KEPT, PRUNE_BATCH)
        if removed:
            log.info("removed %d jobs that ended long ago", removed)
