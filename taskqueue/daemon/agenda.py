"""The schedules of the cluster in the eyes of the node that leads: what is due is fired, and when the next one is."""

from __future__ import annotations

import logging
from datetime import datetime

from taskqueue.daemon.health import Health
from taskqueue.model.firing import Firing, fire, reconciled
from taskqueue.model.plan import Overlap, Plan, Stage
from taskqueue.model.query import Compare, Operator
from taskqueue.model.record import JobId, Record
from taskqueue.model.schedule import LATEST
from taskqueue.store import Store

log = logging.getLogger(__name__)

AT_ONCE = 100
"""Schedules that are fired in one turn of the node's loop."""


class Agenda:
    """Fires schedules. Two nodes may do so at once: each change applies to one version, and each slot has one job."""

    def __init__(self, store: Store, health: Health) -> None:
        self._store = store
        self._health = health

    def look(self) -> datetime | None:
        """Fire what is due and return when the next schedule is; that may have been before now."""
        answer = self._health.attempt(self._look)
        return None if answer is None else answer.value

    def reconcile(self) -> None:
        """Give those schedules their next time whose awaited job ended, or vanished, without their being told."""
        self._health.attempt(self._reconcile)

    def _look(self) -> datetime | None:
        now = self._store.now()
        upcoming: list[datetime] = []
        fired = 0
        for plan in sorted(self._store.plans(), key=_due):
            if plan.stage is not Stage.ACTIVE or plan.next_run_at is None:
                continue
            if plan.next_run_at > now or fired == AT_ONCE:
                upcoming.append(plan.next_run_at)
                continue
            fired += 1
            after = self._fire(plan, now)
            if after is not None and after.next_run_at is not None:
                upcoming.append(after.next_run_at)
        return min(upcoming, default=None)

    def _fire(self, plan: Plan, now: datetime) -> Plan | None:
        """Fire one schedule and return what became of it, None if another node was at it."""
        firing = fire(plan, self._known(plan), now)
        if firing is None:
            return None
        for id in firing.give_way:
            self._store.cancel(id, f"schedule {plan.name} starts its next job", now)
        if not self._store.plan(plan, firing.after, firing.jobs, now):
            return None
        _tell(plan, firing)
        return firing.after

    def _known(self, plan: Plan) -> dict[JobId, Record]:
        """Return the recent jobs of the schedule that still exist, where they matter."""
        if plan.overlap is Overlap.ALLOW and plan.stop_after_failures is None:
            return {}
        return self._records(plan.recent)

    def _reconcile(self) -> None:
        now = self._store.now()
        waiting = [plan for plan in self._store.plans() if plan.awaits is not None and plan.stage is Stage.ACTIVE]
        awaited = self._records(tuple(plan.awaits for plan in waiting if plan.awaits is not None))
        for plan in waiting:
            after = reconciled(plan, awaited.get(plan.awaits) if plan.awaits else None, now)
            if after is not None and self._store.plan(plan, after, [], now):
                log.warning("schedule %s awaited a job that has ended or is gone: %s", plan.name, plan.awaits)

    def _records(self, ids: tuple[JobId, ...]) -> dict[JobId, Record]:
        if not ids:
            return {}
        wanted = Compare("id", Operator.IN, tuple(map(str, ids)))
        return {record.id: record for record in self._store.find(wanted, limit=len(ids))}


def _due(plan: Plan) -> datetime:
    return plan.next_run_at or LATEST


def _tell(before: Plan, firing: Firing) -> None:
    after = firing.after
    for job in firing.jobs:
        log.debug("schedule %s started job %s", after.name, job.id)
    if after.missed > before.missed:
        log.info("schedule %s missed a slot: %s", after.name, after.misses[-1].reason)
    if after.stage is Stage.ENDED:
        log.info("schedule %s has ended: %s", after.name, after.reason)
