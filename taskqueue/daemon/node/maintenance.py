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

MEND_EVERY = 15.0
"""Seconds between two looks for what nodes that died have left half done: as a rule looks into an empty index."""

KEEP_HOUSE_EVERY = 60.0

MEND_FIRST_AFTER = 6.0
"""Seconds from taking a seat to the first mending: by then a store takes what its last holder began for left over."""


class Maintenance:
    """Each of them is harmless if two nodes are at it; schedules and the removal of old jobs are the leader's."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        settings: Settings,
        tenure: NodeLeases,
        health: CircuitBreaker,
        is_seated: Callable[[], bool],
    ) -> None:
        self._tenure = tenure
        self._health = health
        self._is_seated = is_seated
        self._retention = Retention(store, settings)
        self._agenda = ScheduleRunner(store, health)
        self._next_firing = ResettableTimer(loop, store.now, self.fire)
        self._first_look = ResettableTimer(loop, store.now, self.keep_house)
        self._look_after_outage = ResettableTimer(loop, store.now, self.mend)
        every(loop, MEND_EVERY, self.mend)
        every(loop, KEEP_HOUSE_EVERY, self.keep_house)

    def begin(self) -> None:
        """Look soon after the seat was taken."""
        self._first_look.after(MEND_FIRST_AFTER)

    def resume(self) -> None:
        """Look soon after the store has come back."""
        self._look_after_outage.after(MEND_FIRST_AFTER)

    def mend(self) -> None:
        """Complete what others have left half done."""
        if self._is_seated():
            self._health.attempt(self._retention.mend)

    def keep_house(self) -> None:
        """Mend, remove what has been kept long enough, and look after the schedules."""
        self.mend()
        if self._leads:
            self._health.attempt(self._retention.prune)
        self.take_up_schedules()

    def take_up_schedules(self) -> None:
        """Fire what is due, also where the end of a job was missed."""
        if self._leads:
            self._agenda.reconcile()
            self.fire()

    def fire(self) -> None:
        """Fire the schedules that are due, as the leader, and wake up for the next one."""
        self._next_firing.off()
        if not self._leads:
            return
        next_at = self._agenda.look()
        if next_at is not None:
            self._next_firing.at(next_at)

    @property
    def _leads(self) -> bool:
        return self._is_seated() and self._tenure.leads


log = logging.getLogger(__name__)

AT_ONCE = 1000
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

    def mend(self) -> None:
        """Complete what others left half done."""
        repaired = self._store.mend(self._store.now())
        if repaired:
            log.warning("completed %d outcomes that their nodes left half done", repaired)

    def prune(self) -> None:
        """Remove what has been kept long enough, as the leader."""
        now = self._store.now()
        before = {status: now - kept for status, kept in self._keep.items()}
        removed = self._store.prune(before, now - EVENTS_KEPT, AT_ONCE)
        if removed:
            log.info("removed %d jobs that ended long ago", removed)
