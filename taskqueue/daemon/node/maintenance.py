"""What a node that has its seat does for the whole store besides its jobs: it mends, fires schedules and tidies up."""

from __future__ import annotations

from collections.abc import Callable

from taskqueue.daemon.node.circuit_breaker import Health
from taskqueue.daemon.node.leases import Tenure
from taskqueue.daemon.node.retention import Retention
from taskqueue.daemon.node.schedules import Agenda
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.runtime.timers import Alarm, every
from taskqueue.daemon.settings import Settings
from taskqueue.store import Store

MEND_EVERY = 15.0
"""Seconds between two looks for what nodes that died have left half done: as a rule looks into an empty index."""

KEEP_HOUSE_EVERY = 60.0

MEND_FIRST_AFTER = 6.0
"""Seconds from taking a seat to the first mending: by then a store takes what its last holder began for left over."""


class Duties:
    """Each of them is harmless if two nodes are at it; schedules and the removal of old jobs are the leader's."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        settings: Settings,
        tenure: Tenure,
        health: Health,
        is_seated: Callable[[], bool],
    ) -> None:
        self._tenure = tenure
        self._health = health
        self._is_seated = is_seated
        self._retention = Retention(store, settings)
        self._agenda = Agenda(store, health)
        self._next_firing = Alarm(loop, store.now, self.fire)
        self._first_look = Alarm(loop, store.now, self.keep_house)
        self._look_after_outage = Alarm(loop, store.now, self.mend)
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
