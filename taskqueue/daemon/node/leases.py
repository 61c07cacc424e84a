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
        self, store: Store, holder: Holder, ttl: timedelta, presence: NodeStatus, health: CircuitBreaker
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._presence = presence
        self._health = health
        self._seat = Seat(store, holder, ttl)
        self._election = Election(store, holder, ttl)
        self._name = holder.seat
        self._another: Lease | None = None

    @property
    def leads(self) -> bool:
        """Tell whether this node leads the cluster."""
        return self._election.leads

    @property
    def leads_for(self) -> float:
        """Return for how many seconds more the lead can be trusted; 0 without."""
        return max(0.0, self._election.trusted_until - boottime())

    def begin(self) -> bool:
        """Take the seat if it is free, and tell whether it is ours now; else say who has it."""
        another = self._another
        if another is not None and host.is_live(another, self._store.now()):
            return False
        answer = self._health.attempt(lambda: self._seat.sit(self._presence.about(), self._store.now()))
        if answer is None:
            return False
        if answer.value.is_ours:
            return True
        self._stand_by(answer.value.lease)
        return False

    def keep(self) -> bool:
        """Renew the seat and tell whether it is still ours, as far as the store answers."""
        answer = self._health.attempt(lambda: self._seat.renew(self._presence.about(), self._store.now()))
        if answer is None or answer.value.is_ours:
            return True
        log.error("seat %s was taken: %s", self._name, held_by(answer.value.lease))
        return False

    def lead(self) -> datetime | None:
        """Take or renew the lead; return when it becomes free if another has it and its end is near."""
        self._health.attempt(lambda: self._election.run(self._store.now()))
        until = self._election.others_until
        return until if until is not None and until - self._store.now() < self._ttl / 3 else None

    def forgo_lead(self) -> None:
        """Lead no longer, although nobody else does before ``end``."""
        self._election.forgo()

    def leave_lead(self) -> None:
        """Give up the lead to whoever else is there."""
        if self.leads:
            self._health.attempt(self._election.resign)

    def end(self) -> None:
        """Give up the lead and the seat."""
        self._health.attempt(self._election.resign)
        self._health.attempt(self._seat.resign)

    def _stand_by(self, lease: Lease) -> None:
        words = held_by(lease)
        if self._another is None:
            log.info("standing by: seat %s is %s; pass --name to work beside it", self._name, words)
        self._another = lease
        self._presence.phase = f"stands by: seat {self._name} is {words}"
        self._presence.show()
