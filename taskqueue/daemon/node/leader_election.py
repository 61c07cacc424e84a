"""The cluster lead: a lease that one seated node holds, trusted only as long as our own clock says it lasts."""

from __future__ import annotations

from datetime import datetime, timedelta

from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store

LEAD = "lead"

MARGIN = 1.0
"""Seconds before its end at which a lead is no longer trusted."""

ABSTAINS_FOR = 0.6
"""How long a node that the lead was taken from leaves it to others, as a part of the lease; they look every third."""


class Election:
    """One node's part in finding the one that does what needs one doer."""

    def __init__(self, store: Store, holder: Holder, ttl: timedelta) -> None:
        self._store = store
        self._holder = holder
        self._ttl = ttl
        self._since: datetime | None = None
        self._abstains_until = 0.0
        self.trusted_until = 0.0
        """When this node leads no longer unless it renews, by ``boottime``."""
        self.others_until: datetime | None = None
        """When the lead of another node ends, if another has it."""

    @property
    def leads(self) -> bool:
        """Return whether this node has the lead, by a clock that also counts while the host is suspended."""
        return boottime() < self.trusted_until

    def run(self, now: datetime) -> None:
        """Take the lead if it is free, or renew it if it is ours."""
        asked_at = boottime()
        if asked_at < self._abstains_until:
            return
        request = Lease(name=LEAD, holder=self._holder, since=now, until=now + self._ttl)
        lease = self._store.acquire(request, now)
        if lease.holder.seat == self._holder.seat and lease.holder != self._holder:  # whose seat is ours by now
            self._store.resign(LEAD, lease.holder)
            lease = self._store.acquire(request, now)
        if lease.holder != self._holder:
            self._since, self.trusted_until, self.others_until = None, 0.0, lease.until
            return
        self.others_until = None
        if self._since not in (None, lease.since):  # it was resigned for us: whoever else is there should have it
            self._abstains_until = asked_at + self._ttl.total_seconds() * ABSTAINS_FOR
            self.resign()
            return
        self._since = lease.since
        self.trusted_until = asked_at + self._ttl.total_seconds() - MARGIN

    def distrust(self) -> None:
        """Lead no longer; the lease stays ours until it is resigned or over."""
        self.trusted_until = 0.0

    def resign(self) -> None:
        """Give up the lead."""
        self.distrust()
        self._since = None
        self._store.resign(LEAD, self._holder)
