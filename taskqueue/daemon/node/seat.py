"""A node's seat: a lease in the store that names its holder's processes, so that their death frees it at once."""

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
    """The store's answer: the present lease, and whether this node holds it."""

    lease: Lease
    is_ours: bool


class Seat:
    """The seat that one incarnation of a node holds or waits for."""

    def __init__(self, store: Store, holder: Holder, ttl: timedelta) -> None:
        self._store = store
        self._ttl = ttl
        self.holder = holder
        self.lease: Lease | None = None
        """The lease as last renewed; None if this node does not hold it."""

    @property
    def name(self) -> str:
        """Return the name of the lease."""
        return f"seat:{self.holder.seat}"

    def acquire(self, about: Mapping[str, object], now: datetime) -> LeaseAnswer:
        """Try to acquire the seat: it is free when its lease has ended, or its holder was on this host and is dead."""
        before = next((lease for lease in self._store.leases() if lease.name == self.name), None)
        answer = self.renew(about, now)
        if not answer.is_ours and host.is_gone(answer.lease):
            self._store.resign(self.name, answer.lease.holder)
            answer = self.renew(about, now)
        if answer.is_ours and before is not None and before.holder != self.holder:  # or our first answer was lost
            _end_manager(before)
        return answer

    def renew(self, about: Mapping[str, object], now: datetime) -> LeaseAnswer:
        """Acquire or extend the lease, unless another node holds it."""
        since = self.lease.since if self.lease is not None else now
        request = Lease(name=self.name, holder=self.holder, since=since, until=now + self._ttl, about=about)
        lease = self._store.acquire(request, now)
        is_ours = lease.holder == self.holder
        self.lease = lease if is_ours else None
        return LeaseAnswer(lease=lease, is_ours=is_ours)

    def resign(self) -> None:
        """Resign the seat."""
        self._store.resign(self.name, self.holder)
        self.lease = None


def _end_manager(before: Lease) -> None:
    """Kill the manager of the last holder on this host, which may be suspended."""
    for role, pidfd in (host.living(before) or {}).items():
        if role == "manager":
            log.warning("killing the manager that the last holder of %s left running", before.name)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def held_by(lease: Lease) -> str:
    """Return in words which process holds the seat."""
    about = lease.about
    where = f"{about.get('host', 'an unknown host')}, pid {about.get('pid', '?')}"
    return f"held by {where}, since {lease.since:%Y-%m-%d %H:%M:%S} UTC"
