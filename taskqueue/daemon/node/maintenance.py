"""Periodic tasks of a node for the whole store: repair, schedules, and the removal of old jobs and events."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from taskqueue.daemon.node.clocks import RetentionClock
from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.figures import Figures
from taskqueue.daemon.node.leases import NodeLeases
from taskqueue.daemon.node.schedules import ScheduleRunner
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.daemon.runtime.loop import every
from taskqueue.daemon.settings import Settings
from taskqueue.model.query import FINAL
from taskqueue.model.record import Status
from taskqueue.store import Store

log = logging.getLogger(__name__)

REPAIR_EVERY = 15.0
"""Seconds between two repairs of changes that dead nodes left half done; usually a look into an empty index."""

MAINTAIN_EVERY = 60.0
"""Seconds between two rounds of all tasks."""

TIDY_EVERY = 15.0
"""Seconds between two times that the leader adds up the history."""

FIRST_REPAIR_AFTER = 6.0
"""Seconds from acquiring the seat to the first repair: by then changes of its last holder count as half done."""

PRUNE_BATCH = 1000
"""Jobs that one call removes."""

EVENTS_KEPT = timedelta(days=1)


class Maintenance:
    """Every task is safe to run on two nodes at once; only the leader runs schedules and pruning.

    Tasks that are due together run in turns of their own: in one turn they would delay a renewal of leases.
    """

    def __init__(self, node: NodeContext, leases: NodeLeases) -> None:
        self._node = node
        self._leases = leases
        self._queued: deque[Callable[[], None]] = deque()
        self._retention = Retention(node.store, node.settings, node.figures)
        self._schedules = ScheduleRunner(node.store, node.breaker)
        self._next_fire_timer = node.timer(self.fire_schedules)
        self._first_timer = node.timer(self.maintain)
        self._outage_timer = node.timer(self.repair)
        every(node.loop, REPAIR_EVERY, self.repair)
        every(node.loop, MAINTAIN_EVERY, self.maintain)
        every(node.loop, TIDY_EVERY, self.tidy_history)

    def start(self) -> None:
        """Run all tasks soon after the seat was acquired."""
        self._node.breaker.call(self._retention.begin)
        self._first_timer.after(FIRST_REPAIR_AFTER)

    def after_outage(self) -> None:
        """Repair soon after an outage of the store."""
        self._outage_timer.after(FIRST_REPAIR_AFTER)

    @property
    def has_tasks(self) -> bool:
        """Whether tasks wait for their turns, due schedules among them."""
        return bool(self._queued)

    def repair(self) -> None:
        """Complete the changes that dead nodes left half done."""
        self._enqueue(self._repair)

    def maintain(self) -> None:
        """Repair, prune, and check the schedules."""
        self._enqueue(self._repair, self._prune)
        self.resume_schedules()

    def tidy_history(self) -> None:
        """Add up the history and remove its old figures; after hours without a leader that takes many turns."""
        self._enqueue(self._tidy_some_history)

    def resume_schedules(self) -> None:
        """Fire due schedules, and schedules that missed the end of a job they wait for."""
        self._enqueue(self._reconcile, self.fire_schedules)

    def fire_schedules(self) -> None:
        """Fire due schedules on the leader, and set the timer for the next one."""
        self._next_fire_timer.cancel()
        if not self._leads:
            return
        next_at = self._schedules.fire_due()
        if next_at is not None:
            self._next_fire_timer.at(next_at)

    def _enqueue(self, *tasks: Callable[[], None]) -> None:
        """Run these tasks, each in a turn of the loop in which timers that are due come first."""
        if not self._queued:
            self._node.loop.soon(self._run_next)
        self._queued.extend(task for task in tasks if task not in self._queued)

    def _run_next(self) -> None:
        task = self._queued.popleft()
        if self._queued:
            self._node.loop.soon(self._run_next)
        task()

    def _repair(self) -> None:
        if self._node.status.is_seated:
            self._node.breaker.call(self._retention.repair)

    def _prune(self) -> None:
        if self._leads:
            self._node.breaker.call(self._retention.prune)

    def _tidy_some_history(self) -> None:
        if self._leads and self._node.breaker.call(self._retention.tidy_history):
            self.tidy_history()

    def _reconcile(self) -> None:
        if self._leads:
            self._schedules.reconcile()

    @property
    def _leads(self) -> bool:
        return self._node.status.is_seated and self._leases.leads


class Retention:
    """Repairs and prunes the store."""

    def __init__(
        self, store: Store, settings: Settings, figures: Figures, elapsed: Callable[[], float] = boottime
    ) -> None:
        """``elapsed`` is in seconds, and no one can set it."""
        self._store = store
        self._figures = figures
        self._clock = RetentionClock(store.now, elapsed)
        self._keep = {
            Status.DONE: timedelta(seconds=settings.keep_done),
            Status.FAILED: timedelta(seconds=settings.keep_failed),
            Status.CANCELED: timedelta(seconds=settings.keep_failed),
            Status.TIMEOUT: timedelta(seconds=settings.keep_failed),
        }

    def begin(self) -> None:
        """Count the age of jobs from the newest end on: the clock may have been set since, while no node ran."""
        newest = self._store.find(FINAL, order="-ended_at", limit=1)
        if newest and newest[0].ended_at is not None:
            self._clock.begin_at(newest[0].ended_at)

    def repair(self) -> None:
        """Complete the changes that dead nodes left half done."""
        repaired = self._store.repair(self._store.now())
        self._figures.repairs += repaired
        if repaired:
            log.warning("completed %d changes that dead nodes had left unfinished", repaired)

    def tidy_history(self) -> bool:
        """Add up some of the history, or remove figures whose retention has ended; return whether more work is left."""
        return self._store.tidy_history(self._store.now(), PRUNE_BATCH)

    def prune(self) -> None:
        """Remove jobs and events whose retention has ended."""
        now = self._clock.now()
        before = {status: now - retention for status, retention in self._keep.items()}
        removed = self._store.prune(before, now - EVENTS_KEPT, PRUNE_BATCH)
        if removed:
            log.info("removed %d old jobs", removed)
