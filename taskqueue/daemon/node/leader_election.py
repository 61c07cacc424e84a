"""Leader election: the lead is a lease, which its holder trusts only as long as its own clock says it lasts."""

from __future__ import annotations

from datetime import datetime, timedelta

from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store

LEAD = "lead"

MARGIN = 1.0
"""Seconds before its end at which a lead is no longer trusted."""

ABSTAINS_FOR = 0.6
"""Part of the lease for which a node whose lead was resigned abstains; other nodes try every third of a lease."""


class Election:
    """One node's part in the election."""

    def __init__(self, store: Store, holder: Holder, ttl: timedelta) -> None:
        self._store = store
        self._holder = holder
        self._ttl = ttl
        self._since: datetime | None = None
        self._abstains_until = 0.0
        self.trusted_until = 0.0
        """Time of ``boottime`` at which this node stops leading unless it renews."""
        self.others_until: datetime | None = None
        """When the lease of another leader ends, if there is one."""

    @property
    def leads(self) -> bool:
        """Return whether this node leads, by a clock that also counts while the host is suspended."""
        return boottime() < self.trusted_until

    def run(self, now: datetime) -> None:
        """Acquire the lead if it is free, or renew it."""
        asked_at = boottime()
        if asked_at < self._abstains_until:
            return
        request = Lease(name=LEAD, holder=self._holder, since=now, until=now + self._ttl)
        lease = self._store.acquire(request, now)
        if (
            lease.holder.seat == self._holder.seat and lease.holder != self._holder
        ):  # an earlier incarnation of this seat
            self._store.resign(LEAD, lease.holder)
            lease = self._store.acquire(request, now)
        if lease.holder != self._holder:
            self._since, self.trusted_until, self.others_until = None, 0.0, lease.until
            return
        self.others_until = None
        if self._since not in (None, lease.since):  # an operator resigned it: another node should lead
            self._abstains_until = asked_at + self._ttl.total_seconds() * ABSTAINS_FOR
            self.resign()
            return
        self._since = lease.since
        self.trusted_until = asked_at + self._ttl.total_seconds() - MARGIN

    def distrust(self) -> None:
        """Stop leading; the lease stays until it is resigned or ends."""
        self.trusted_until = 0.0

    def resign(self) -> None:
        """Resign the lead."""
        self.distrust()
        self._since = None
        self._store.resign(LEAD, self._holder)
