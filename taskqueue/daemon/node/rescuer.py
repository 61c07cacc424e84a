"""Rescues lost claims: those of dead nodes, and those whose lease has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from taskqueue.daemon.node.clocks import ClockWatch
from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.run_log import fields
from taskqueue.daemon.runtime import leftovers
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.record import Holder, Record
from taskqueue.store import Settlement

log = logging.getLogger(__name__)

BATCH = 200
"""Lost claims that one call settles."""


class Rescuer:
    """Settles claims of other holders as lost, so that their jobs run again or fail, as their options say."""

    def __init__(self, node: NodeContext, clock_watch: ClockWatch, wake: Callable[[str], None]) -> None:
        """``wake`` is called with the reason when a rescued job may be claimable."""
        self._store = node.store
        self._holder = node.holder
        self._breaker = node.breaker
        self._clock_watch = clock_watch
        self._wake = wake
        self._figures = node.figures

    def rescue_expired(self) -> None:
        """Settle the claims of other nodes whose leases have ended, but not just after a jump of the clock."""
        self._clock_watch.look()
        if not self._clock_watch.trusts_ends:
            return

        def expired() -> list[Record]:
            return self._store.expired(self._store.now(), BATCH)

        self._breaker.call(lambda: self._rescue(expired, lambda record: record.ready_at))

    def rescue_from(self, dead: Holder) -> int | None:
        """Settle the claims of a dead node or caller, and return their number; None in an outage."""
        answer = self._breaker.call(lambda: self._rescue(lambda: self._store.held(dead, BATCH)))
        return None if answer is None else answer.value

    def rescue_own_seat(self) -> int:
        """Settle the claims of earlier incarnations of this seat, and return their number."""
        seat, incarnation = self._holder.seat, self._holder.incarnation
        answer = self._breaker.call(lambda: self._rescue(lambda: self._store.orphaned(seat, incarnation, BATCH)))
        return answer.value if answer is not None else 0

    def _rescue(
        self, find: Callable[[], list[Record]], lease_end: Callable[[Record], datetime | None] = lambda _: None
    ) -> int:
        rescued = 0
        kills_until = time.monotonic() + leftovers.KILL_TAKES_AT_MOST  # for all batches: the loop waits for it
        while True:
            now = self._store.now()
            lost_claims = find()
            settled = self._settle(_losses(lost_claims, now, lease_end), now, kills_until)
            rescued += settled
            if len(lost_claims) < BATCH or not settled:
                return rescued

    def _settle(self, settlements: Sequence[Settlement], now: datetime, kills_until: float) -> int:
        if not settlements:
            return 0
        # Without this a job might run again beside processes that its last run started here.
        leftovers.kill(max(0.0, kills_until - time.monotonic()))
        accepted = self._store.settle(settlements, now)
        self._figures.rescued_claims += len(accepted)
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
