"""A node's seat: a lease in the store, which names the processes of its holder so that their end frees it here."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from taskqueue.model.record import Holder
from taskqueue.scheduler import host
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LeaseAnswer:
    """The answer to a wish for the seat: the lease as it is now, and whether it is ours."""

    lease: Lease
    is_ours: bool


class Seat:
    """The place that one incarnation of a node holds, or waits for."""

    def __init__(self, store: Store, holder: Holder, ttl: timedelta) -> None:
        self._store = store
        self._ttl = ttl
        self.holder = holder
        self.lease: Lease | None = None
        """Our lease as last renewed; None without."""

    @property
    def name(self) -> str:
        """Return the name of the lease."""
        return f"seat:{self.holder.seat}"

    def acquire(self, about: Mapping[str, object], now: datetime) -> LeaseAnswer:
        """Try to take the seat: free when its lease is over, or when its holder was of this host and is gone."""
        before = next((lease for lease in self._store.leases() if lease.name == self.name), None)
        answer = self.renew(about, now)
        if not answer.is_ours and host.is_gone(answer.lease):
            self._store.resign(self.name, answer.lease.holder)
            answer = self.renew(about, now)
        if answer.is_ours and before is not None and before.holder != self.holder:  # or our first answer was lost
            _end_manager(before)
        return answer

    def renew(self, about: Mapping[str, object], now: datetime) -> LeaseAnswer:
        """Take or extend the lease; another may have it."""
        since = self.lease.since if self.lease is not None else now
        request = Lease(name=self.name, holder=self.holder, since=since, until=now + self._ttl, about=about)
        lease = self._store.acquire(request, now)
        is_ours = lease.holder == self.holder
        self.lease = lease if is_ours else None
        return LeaseAnswer(lease=lease, is_ours=is_ours)

    def resign(self) -> None:
        """Give up the seat."""
        self._store.resign(self.name, self.holder)
        self.lease = None


def _end_manager(before: Lease) -> None:
    """End the manager of whoever held the seat on this host and let its lease run out: it may be stopped."""
    for role, pidfd in (host.living(before) or {}).items():
        if role == "manager":
            log.warning("ending the manager that the last holder of %s has left running", before.name)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def held_by(lease: Lease) -> str:
    """Return in words who holds the seat."""
    about = lease.about
    where = f"{about.get('host', 'an unknown host')}, pid {about.get('pid', '?')}"
    return f"held by {where}, since {lease.since:%Y-%m-%d %H:%M:%S} UTC"
