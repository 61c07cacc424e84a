"""The cluster lead: a lease that one seated node holds, trusted only as long as our own clock says it lasts."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from taskqueue.daemon.process import boottime
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)

LEAD = "lead"

MARGIN = 1.0
"""Seconds before its end at which a lead is no longer trusted."""


class Election:
    """One node's part in finding the one that does what needs one doer."""

    def __init__(self, store: Store, holder: Holder, ttl: timedelta) -> None:
        self._store = store
        self._holder = holder
        self._ttl = ttl
        self._since: datetime | None = None
        self._trusted_until = 0.0
        self.others_until: datetime | None = None
        """When the lead of another node ends, if another has it."""

    @property
    def leads(self) -> bool:
        """Tell whether this node has the lead, by a clock that also counts while the host is suspended."""
        return boottime() < self._trusted_until

    def run(self, now: datetime) -> None:
        """Take the lead if it is free, or renew it if it is ours."""
        asked_at = boottime()
        led = self.leads
        wish = Lease(name=LEAD, holder=self._holder, since=self._since or now, until=now + self._ttl)
        lease = self._store.acquire(wish, now)
        if lease.holder != self._holder:
            self._since, self._trusted_until, self.others_until = None, 0.0, lease.until
            return
        self._since, self.others_until = lease.since, None
        self._trusted_until = asked_at + self._ttl.total_seconds() - MARGIN
        if not led:
            log.info("node %s leads the cluster", self._holder.seat)

    def resign(self) -> None:
        """Give up the lead."""
        self._trusted_until = 0.0
        self._since = None
        self._store.resign(LEAD, self._holder)
