"""The leases of a node: its seat, and the lead of the cluster."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.clock_watch import ClockWatch
from taskqueue.daemon.node.leader_election import Election
from taskqueue.daemon.node.seat import Seat, held_by
from taskqueue.daemon.node.status import NodeStatus
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.record import Holder
from taskqueue.scheduler import host
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)


class NodeLeases:
    """Acquires, renews and resigns the leases of one incarnation."""

    def __init__(
        self,
        store: Store,
        holder: Holder,
        ttl: timedelta,
        status: NodeStatus,
        breaker: CircuitBreaker,
        clock_watch: ClockWatch,
    ) -> None:
        self._store = store
        self._clock_watch = clock_watch
        self._ttl = ttl
        self._status = status
        self._breaker = breaker
        self._seat = Seat(store, holder, ttl)
        self._election = Election(store, holder, ttl)
        self._name = holder.seat
        self._occupant: Lease | None = None

    @property
    def leads(self) -> bool:
        """Return whether this node leads the cluster."""
        return self._election.leads

    @property
    def lead_trusted_for(self) -> float:
        """Return the seconds for which this node still leads without a renewal; 0 if it does not lead."""
        return max(0.0, self._election.trusted_until - boottime())

    def acquire_seat(self) -> bool:
        """Acquire the seat if it is free; return whether this node has it, else log its holder."""
        occupant = self._occupant
        self._clock_watch.look()
        if occupant is not None and not host.is_gone(occupant):
            is_over = occupant.until <= self._store.now()
            if not is_over or not self._clock_watch.trusts_ends:
                return False
        answer = self._breaker.call(lambda: self._seat.acquire(self._status.about(), self._store.now()), writes=True)
        if answer is None:
            return False
        if answer.value.is_ours:
            return True
        self._log_standby(answer.value.lease)
        return False

    def renew_seat(self) -> bool:
        """Renew the seat; return False if another node has it, True also in an outage."""
        answer = self._breaker.call(lambda: self._seat.renew(self._status.about(), self._store.now()), writes=True)
        if answer is None or answer.value.is_ours:
            return True
        log.error("seat %s was taken: %s", self._name, held_by(answer.value.lease))
        return False

    def renew_lead(self) -> datetime | None:
        """Acquire or renew the lead; return when the lease of another leader ends, if that is soon."""
        self._clock_watch.look()
        if not self._clock_watch.trusts_ends and not self.leads:
            return None  # another node leads, whose lease may only look ended
        self._breaker.call(lambda: self._election.run(self._store.now()))
        until = self._election.others_until
        return until if until is not None and until - self._store.now() < self._ttl / 3 else None

    def distrust_lead(self) -> None:
        """Stop leading; the lease stays until ``resign``, so that no other node leads meanwhile."""
        self._election.distrust()

    def resign_lead(self) -> None:
        """Resign the lead, so that another node can take it."""
        if self.leads:
            self._breaker.call(self._election.resign)

    def resign(self) -> None:
        """Resign the lead and the seat."""
        self._breaker.call(self._election.resign)
        self._breaker.call(self._seat.resign)

    def _log_standby(self, lease: Lease) -> None:
        words = held_by(lease)
        if self._occupant is None:
            log.info("standing by: seat %s is %s; pass --name to work beside it", self._name, words)
        self._occupant = lease
        self._status.phase = f"stands by: seat {self._name} is {words}"
        self._status.show()
