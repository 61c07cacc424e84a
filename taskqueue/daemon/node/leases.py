"""A node's time in its seat: waiting for it, keeping it, leading the cluster from it, and giving it up."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.leader_election import Election
from taskqueue.daemon.node.seat import Seat, held_by
from taskqueue.daemon.node.status import NodeStatus
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.record import Holder
from taskqueue.scheduler import host
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)


class NodeLeases:
    """The leases of one incarnation: its seat, and the cluster lead when it has that."""

    def __init__(
        self, store: Store, holder: Holder, ttl: timedelta, status: NodeStatus, breaker: CircuitBreaker
    ) -> None:
        self._store = store
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
        """Return for how many seconds more the lead can be trusted; 0 without."""
        return max(0.0, self._election.trusted_until - boottime())

    def acquire_seat(self) -> bool:
        """Take the seat if it is free, and return whether it is ours now; else say who has it."""
        occupant = self._occupant
        if occupant is not None and host.is_live(occupant, self._store.now()):
            return False
        answer = self._breaker.call(lambda: self._seat.acquire(self._status.about(), self._store.now()))
        if answer is None:
            return False
        if answer.value.is_ours:
            return True
        self._log_standby(answer.value.lease)
        return False

    def renew_seat(self) -> bool:
        """Renew the seat and return whether it is still ours, as far as the store answers."""
        answer = self._breaker.call(lambda: self._seat.renew(self._status.about(), self._store.now()))
        if answer is None or answer.value.is_ours:
            return True
        log.error("seat %s was taken: %s", self._name, held_by(answer.value.lease))
        return False

    def renew_lead(self) -> datetime | None:
        """Take or renew the lead; return when it becomes free if another has it and its end is near."""
        self._breaker.call(lambda: self._election.run(self._store.now()))
        until = self._election.others_until
        return until if until is not None and until - self._store.now() < self._ttl / 3 else None

    def distrust_lead(self) -> None:
        """Lead no longer, although nobody else does before ``end``."""
        self._election.distrust()

    def resign_lead(self) -> None:
        """Give up the lead to whoever else is there."""
        if self.leads:
            self._breaker.call(self._election.resign)

    def resign(self) -> None:
        """Give up the lead and the seat."""
        self._breaker.call(self._election.resign)
        self._breaker.call(self._seat.resign)

    def _log_standby(self, lease: Lease) -> None:
        words = held_by(lease)
        if self._occupant is None:
            log.info("standing by: seat %s is %s; pass --name to work beside it", self._name, words)
        self._occupant = lease
        self._status.phase = f"stands by: seat {self._name} is {words}"
        self._status.show()
