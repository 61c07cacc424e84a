"""Fires due schedules on the leading node, and reports when the next one is due."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.errors import StoreContended
from taskqueue.model.ids import JobId
from taskqueue.model.query import PENDING, And, Compare, Operator, Query
from taskqueue.model.record import Record
from taskqueue.model.schedules.fire import Firing, brought_forward, fire, reconciled
from taskqueue.model.schedules.schedule import NamedSchedule, Overlap, Stage, set_aside
from taskqueue.store import Store

log = logging.getLogger(__name__)

BATCH = 100
"""Schedules fired in one turn of the node's loop."""

RETRY_AFTER = timedelta(seconds=1)
"""Time until the next try for a schedule that is changed by others all the time, or can be neither read nor paused."""

ALL = And(())


class ScheduleRunner:
    """Fires schedules. Two nodes may do so at once: a change applies to one version, and each time starts one job."""

    def __init__(self, store: Store, breaker: CircuitBreaker) -> None:
        self._store = store
        self._breaker = breaker

    def fire_due(self) -> datetime | None:
        """Fire due schedules, and return when the next one is due, which may be in the past."""
        return self._breaker.call(self._fire_due)

    def reconcile(self) -> None:
        """Repair schedules that await a job whose end they missed or that was removed, or whose clock was set back.

        Also cancel the jobs that a leader did not live to cancel when it had started the next ones.
        """
        self._breaker.call(self._reconcile)

    def _fire_due(self) -> datetime | None:
        now = self._store.now()
        due, soonest = self._store.due(now, BATCH)
        if not due:
            return soonest
        put_off = {plan.name for plan in due if plan.damage}
        for plan in due:
            try:
                self._fire(plan, now)
            except StoreContended as error:  # it must not hold up the others
                put_off.add(plan.name)
                log.warning("schedule %s starts its next job a moment later: %s", plan.name, error)
        still_due, soonest = self._store.due(now, len(put_off) + 1)
        return now + RETRY_AFTER if still_due and all(plan.name in put_off for plan in still_due) else soonest

    def _fire(self, plan: NamedSchedule, now: datetime) -> None:
        """Fire one schedule, unless another node has done it."""
        if plan.damage:
            self._set_aside(plan, now)
            return
        firing = fire(plan, self._known(plan), now)
        if firing is None:
            return
        if not self._store.replace_schedule(plan, firing.after, firing.jobs, now):
            return  # it was paused, or fired by another node
        _log(plan, firing)
        self._cancel(plan, firing.give_way, now)

    def _cancel(self, plan: NamedSchedule, give_way: Iterable[JobId], now: datetime) -> None:
        """Cancel jobs of the schedule that its next job waits for."""
        for id in give_way:
            self._store.cancel(id, f"schedule {plan.name} starts its next job", now)

    def _set_aside(self, plan: NamedSchedule, now: datetime) -> None:
        """Pause a schedule that cannot be read, so that it does not block others."""
        if self._store.replace_schedule(plan, set_aside(plan), [], now):
            log.error("schedule %s is paused: it %s", plan.name, plan.damage)

    def _known(self, plan: NamedSchedule) -> dict[JobId, Record]:
        """Return the pending jobs among the schedule's recent ones, if its overlap rule needs them."""
        return {} if plan.overlap is Overlap.ALLOW else self._records(plan.recent, PENDING)

    def _reconcile(self) -> None:
        now = self._store.now()
        plans = self._store.schedules()
        awaited = self._records(tuple(plan.awaits for plan in plans if plan.awaits is not None))
        contended: StoreContended | None = None
        for plan in plans:
            try:
                self._reconcile_one(plan, awaited.get(plan.awaits) if plan.awaits else None, now)
            except StoreContended as error:  # it must not hold up the others
                contended = error
        if contended is not None:
            raise contended

    def _reconcile_one(self, plan: NamedSchedule, awaited: Record | None, now: datetime) -> None:
        if plan.overlap is Overlap.CANCEL_PREVIOUS:  # even if it has ended: its last job waits as well
            known = self._known(plan)
            previous = {id for job in known.values() for id in job.waiting_for if id in known}
            self._cancel(plan, {id for id in previous if known[id].cancel is None}, now)
        if plan.stage is not Stage.ACTIVE:
            return
        sooner = brought_forward(plan, now)
        if sooner is not None:
            if self._store.replace_schedule(plan, sooner, [], now):
                log.warning("schedule %s is due sooner, as the clock was set back: %s", plan.name, sooner.next_run_at)
            return
        after = None if plan.awaits is None else reconciled(plan, awaited, now)
        if after is not None and self._store.replace_schedule(plan, *after, now):
            log.warning("schedule %s was waiting for a job that has ended or was removed: %s", plan.name, plan.awaits)

    def _records(self, ids: tuple[JobId, ...], which: Query = ALL) -> dict[JobId, Record]:
        if not ids:
            return {}
        query = And((Compare("id", Operator.IN, tuple(map(str, ids))), which))
        return {record.id: record for record in self._store.find(query, limit=len(ids))}


def _log(before: NamedSchedule, firing: Firing) -> None:
    after = firing.after
    for job in firing.jobs:
        log.debug("schedule %s started job %s", after.name, job.id)
    if after.missed > before.missed:
        log.info("schedule %s missed a time: %s", after.name, after.misses[-1].reason)
    if after.stage is Stage.ENDED:
        log.info("schedule %s has ended: %s", after.name, after.reason)
