"""Watches the other nodes and the callers that run jobs on this host; rescues the claims of a dead one at once."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from taskqueue.daemon.node.clocks import ClockWatch
from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.run_log import fields
from taskqueue.daemon.runtime import leftovers
from taskqueue.daemon.runtime.loop import every
from taskqueue.insight import host
from taskqueue.insight.nodes import LEAD, seats
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.record import Holder, Record
from taskqueue.model.wording import count
from taskqueue.store import Lease, Settlement

log = logging.getLogger(__name__)

BATCH = 200
"""Lost claims that one call settles."""


class Rescuer:
    """Settles claims of other holders as lost, so that their jobs run again or fail, as their options say."""

    def __init__(self, node: NodeContext, clock_watch: ClockWatch, wake: Callable[[str], None]) -> None:
        """``wake`` is called with the reason when a rescued job may be claimable."""
        self._node = node
        self._clock_watch = clock_watch
        self._wake = wake

    def rescue_expired(self) -> None:
        """Settle the claims of other nodes whose leases have ended, but not just after a jump of the clock."""
        self._clock_watch.look()
        if not self._clock_watch.trusts_ends:
            return

        def expired() -> list[Record]:
            return self._node.store.expired(self._node.store.now(), BATCH)

        self._node.breaker.call(lambda: self._rescue(expired, lambda record: record.ready_at))

    def rescue_from(self, dead: Holder) -> int | None:
        """Settle the claims of a dead node or caller, and return their number; None if that must be tried again."""
        return self._node.breaker.call(lambda: self._rescue(lambda: self._node.store.held(dead, BATCH)))

    def rescue_own_seat(self) -> int:
        """Settle the claims of earlier incarnations of this seat, and return their number."""
        seat, incarnation = self._node.holder.seat, self._node.holder.incarnation
        return (
            self._node.breaker.call(lambda: self._rescue(lambda: self._node.store.orphaned(seat, incarnation, BATCH)))
            or 0
        )

    def _rescue(
        self, find: Callable[[], list[Record]], lease_end: Callable[[Record], datetime | None] = lambda _: None
    ) -> int | None:
        rescued = 0
        kills_until = time.monotonic() + leftovers.KILL_TAKES_AT_MOST  # for all batches, since the loop waits
        while True:
            now = self._node.store.now()
            lost_claims = find()
            settled = self._settle(_losses(lost_claims, now, lease_end), now, kills_until)
            if settled is None:
                return None
            rescued += settled
            if len(lost_claims) < BATCH or not settled:
                return rescued

    def _settle(self, settlements: Sequence[Settlement], now: datetime, kills_until: float) -> int | None:
        if not settlements:
            return 0
        # Without this a job might run again beside processes that its last run started here.
        if leftovers.kill(max(0.0, kills_until - time.monotonic())) is None:
            return None
        accepted = self._node.store.settle(settlements, now)
        self._node.figures.rescued_claims += len(accepted)
        for settlement in settlements:
            if settlement.after.id in accepted:
                after = settlement.after
                log.warning("%s was rescued from node %s", after.job, settlement.holder.seat, extra=fields(after))
        self._wake("lost claims were rescued")
        return len(accepted)


def _losses(
    lost_claims: Iterable[Record], now: datetime, lease_end: Callable[[Record], datetime | None]
) -> list[Settlement]:
    """Return settlements as lost; a record with an unreadable holder has no fence to settle it by."""
    return [
        Settlement(
            claims=record.claims,
            holder=record.holder,
            after=lost(record, now),
            lease_end=lease_end(record),
            is_unseen=True,
        )
        for record in lost_claims
        if record.holder is not None
    ]


@dataclass(eq=False, kw_only=True)
class HostWatch:
    """Watches the processes that leases of other nodes and claims of callers name on this host, by pidfd."""

    node: NodeContext
    rescuer: Rescuer
    on_lead: Callable[[], None]
    """Called after the death of a node, which may have led."""
    on_leases: Callable[[Sequence[Lease]], None]
    """Called with all leases whenever they were read, even when a node ends while it is busy."""
    is_busy: Callable[[], object]

    def __post_init__(self) -> None:
        self._watched: dict[Holder, list[int]] = {}
        every(self.node.loop, self.node.settings.lease / 3, self.check)

    def check(self) -> None:
        """Watch the current nodes and callers of this host, and rescue the claims of dead ones."""
        if not self.node.status.is_seated and not self.is_busy():
            return
        leases = self.node.breaker.call(self.node.store.leases)
        if leases is None:
            return
        self.on_leases(leases)
        if not self.node.status.is_seated:
            return
        callers = self.node.breaker.call(lambda: self.node.store.holders(host.caller_seats()))
        if callers is None:
            return
        now = self.node.store.now()
        others: dict[Holder, Lease | None] = dict.fromkeys(callers)
        for lease in seats(leases):
            if lease.holder != self.node.holder and lease.until > now:
                others[lease.holder] = lease
        for holder in [holder for holder in self._watched if holder not in others]:
            self._forget(holder)
        for holder, seat in others.items():
            if holder not in self._watched:
                self._watch(holder, seat)

    def close(self) -> None:
        """Stop watching."""
        for holder in list(self._watched):
            self._forget(holder)

    def _watch(self, holder: Holder, seat: Lease | None) -> None:
        """Watch the processes of a node, or of a caller, which has no seat; rescue its claims if none is alive."""
        living = host.living_caller(holder) if seat is None else host.living(seat)
        if living == {}:
            self._rescue(holder, seat)
        elif living:
            self._watched[holder] = list(living.values())
            for pidfd in living.values():
                self.node.loop.watch(pidfd, partial(self._on_process_exit, holder))

    def _on_process_exit(self, holder: Holder) -> None:
        """Check the node again after one of its processes has ended."""
        self._forget(holder)
        self.check()

    def _forget(self, holder: Holder) -> None:
        for pidfd in self._watched.pop(holder, ()):
            self.node.loop.unwatch(pidfd)
            os.close(pidfd)

    def _rescue(self, dead: Holder, seat: Lease | None) -> None:
        """Rescue the claims of a dead holder, and end its leases; if that is impossible now, the next check does it."""
        rescued = self.rescuer.rescue_from(dead)
        if rescued is None:
            return
        if seat is None:
            log.warning("the process of %s died: rescued %s", dead.seat, count(rescued, "job"))
            return
        log.warning("node %s of this host died: rescued %s", dead.seat, count(rescued, "job"))
        now = self.node.store.now()
        self.node.breaker.call(lambda: self.node.store.resign(LEAD, dead))
        self.node.breaker.call(lambda: self.node.store.acquire(replace(seat, until=now), now))
        self.on_lead()
