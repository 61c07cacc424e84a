"""The leases of a node: the lead of the cluster, and its seat, which the death of its processes frees."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from taskqueue.daemon.node.clocks import ClockWatch
from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.controls import ControlsView
from taskqueue.daemon.node.event_buffer import EventBuffer
from taskqueue.daemon.node.node_hooks import NodeHooks
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.daemon.settings import Lead
from taskqueue.insight import host
from taskqueue.insight.nodes import LEAD, SEAT
from taskqueue.model.record import Holder
from taskqueue.model.timestamps import host_time
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)


MARGIN = 1.0
"""Seconds before its end at which a lead is no longer trusted."""

ABSTAINS_FOR = 0.6
"""Part of the lease for which a node whose lead was resigned abstains; other nodes try every third of a lease."""


class HeldLease:
    """A lease that one incarnation of a node holds or waits for."""

    def __init__(self, store: Store, name: str, holder: Holder, ttl: timedelta) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._ttl = ttl
        self.lease: Lease | None = None
        """The lease as last renewed; None if this node does not hold one."""

    @property
    def is_ours(self) -> bool:
        """Return whether this node held the lease when it asked last."""
        return self.lease is not None

    def resign(self) -> None:
        """Resign the lease."""
        self.lease = None
        self._store.resign(self._name, self._holder)

    def _ask(self, since: datetime, now: datetime, about: Mapping[str, object]) -> Lease:
        """Acquire or extend the lease, unless another node holds it; return the current lease."""
        request = Lease(name=self._name, holder=self._holder, since=since, until=now + self._ttl, about=about)
        lease = self._store.acquire(request, now)
        self.lease = lease if lease.holder == self._holder else None
        return lease


class Seat(HeldLease):
    """The seat of a node."""

    def __init__(self, store: Store, holder: Holder, ttl: timedelta) -> None:
        super().__init__(store, f"{SEAT}{holder.seat}", holder, ttl)

    def acquire(self, about: Mapping[str, object], now: datetime) -> Lease:
        """Try to acquire the seat: it is free when its lease has ended, or its holder was on this host and is dead."""
        before = next((lease for lease in self._store.leases() if lease.name == self._name), None)
        lease = self.renew(about, now)
        if not self.is_ours and host.is_gone(lease):
            self._store.resign(self._name, lease.holder)
            lease = self.renew(about, now)
        if self.is_ours and before is not None and before.holder != self._holder:  # or our first answer was lost
            _end_manager(before)
        return lease

    def renew(self, about: Mapping[str, object], now: datetime) -> Lease:
        """Acquire or extend the lease, unless another node holds it; return the current lease."""
        return self._ask(now if self.lease is None else self.lease.since, now, about)


class Election(HeldLease):
    """One node's part in the election of the leader. It trusts its lead only as long as its own clock says it lasts."""

    def __init__(self, store: Store, holder: Holder, ttl: timedelta) -> None:
        super().__init__(store, LEAD, holder, ttl)
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
        before = self.lease
        lease = self._ask(now, now, {})
        if not self.is_ours and lease.holder.seat == self._holder.seat:  # an earlier incarnation of this seat
            self._store.resign(self._name, lease.holder)
            lease = self._ask(now, now, {})
        if not self.is_ours:
            self.trusted_until, self.others_until = 0.0, lease.until
            return
        self.others_until = None
        if before is not None and before.since != lease.since:  # an operator resigned it, so another node should lead
            self._abstains_until = asked_at + self._ttl.total_seconds() * ABSTAINS_FOR
            self.resign()
            return
        self.trusted_until = asked_at + self._ttl.total_seconds() - MARGIN

    def resign(self) -> None:
        """Resign the lead."""
        self.trusted_until = 0.0
        super().resign()


def _end_manager(before: Lease) -> None:
    """Kill the manager of the last holder on this host, which may be suspended."""
    for role, pidfd in (host.living(before) or {}).items():
        if role == "manager":
            log.warning("killing the manager that the last holder of %s left running", before.name)
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it may belong to another user
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def held_by(lease: Lease) -> str:
    """Return in words which process holds the seat."""
    about = lease.about
    where = f"{about.get('host', 'an unknown host')}, pid {about.get('pid', '?')}"
    return f"held by {where}, since {lease.since:%Y-%m-%d %H:%M:%S} UTC"


class NodeLeases:
    """Acquires, renews and resigns the leases of one incarnation."""

    def __init__(self, node: NodeContext, clock_watch: ClockWatch) -> None:
        self._node = node
        self._clock_watch = clock_watch
        self._ttl = node.lease
        self._seat = Seat(node.store, node.holder, node.lease)
        self._election = Election(node.store, node.holder, node.lease)
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
            has_ended = occupant.until <= self._node.store.now()
            if not has_ended or not self._clock_watch.trusts_ends:
                return False
        lease = self._node.breaker.call(lambda: self._seat.acquire(*self._about()), writes=True)
        if lease is not None and not self._seat.is_ours:
            self._log_standby(lease)
        return self._seat.is_ours

    def renew_seat(self) -> bool:
        """Renew the seat; return False if another node has it, True also in an outage."""
        lease = self._node.breaker.call(lambda: self._seat.renew(*self._about()), writes=True)
        if lease is None or self._seat.is_ours:
            return True
        log.error("seat %s was taken: %s", self._node.holder.seat, held_by(lease))
        return False

    def _about(self) -> tuple[Mapping[str, object], datetime]:
        """Return the facts about the node, with ``skew``, how many seconds its clock is ahead, and the store's time."""
        before, now, after = host_time(), self._node.store.now(), host_time()
        skew = (max(before - now, timedelta(0)) or min(after - now, timedelta(0))).total_seconds()
        return {**self._node.status.about(), "skew": skew}, now

    def renew_lead(self) -> datetime | None:
        """Acquire or renew the lead; return when the lease of another leader ends, if that is soon."""
        self._clock_watch.look()
        if not self._clock_watch.trusts_ends and not self.leads:
            return None  # another node leads, whose lease may only look ended
        self._node.breaker.call(lambda: self._election.run(self._node.store.now()))
        until = self._election.others_until
        return until if until is not None and until - self._node.store.now() < self._ttl / 3 else None

    def distrust_lead(self) -> None:
        """Stop leading; the lease stays until ``resign``, so that no other node becomes the leader until then."""
        self._election.trusted_until = 0.0

    def resign_lead(self) -> None:
        """Resign the lead, so that another node can take it."""
        if self.leads:
            self._node.breaker.call(self._election.resign)

    def resign(self) -> None:
        """Resign the lead and the seat."""
        self._node.breaker.call(self._election.resign)
        self._node.breaker.call(self._seat.resign)

    def _log_standby(self, lease: Lease) -> None:
        words = held_by(lease)
        if self._occupant is None:
            log.info("standing by: seat %s is %s; pass --name to work beside it", self._node.holder.seat, words)
        self._occupant = lease
        self._node.status.phase = f"stands by: seat {self._node.holder.seat} is {words}"
        self._node.status.show()


LEASE_SLACK = 0.1
"""Seconds after the end of a lease at which the store surely sees it as ended."""

EXPIRY_SLACK = 0.01
"""Seconds after the trusted time of the lead at which this node surely no longer leads."""


@dataclass(eq=False, kw_only=True)
class Leadership:
    """The lead of one node."""

    node: NodeContext
    leases: NodeLeases
    controls: ControlsView
    hooks: NodeHooks
    events: EventBuffer
    on_change: Callable[[bool], None]
    """Called with whether this node leads now."""
    on_applied: Callable[[], None]
    """Called after each look at the lead."""

    def __post_init__(self) -> None:
        self._expiry_timer = self.node.timer(self.apply)
        self._retry_timer = self.node.timer(self.renew)

    def renew(self) -> None:
        """Acquire or renew the lead, and set the timer for its end or for the next try."""
        if not self.node.status.is_seated:
            return
        if self.controls.drain is not None and self.node.settings.lead is Lead.CLUSTER:
            self.leases.resign_lead()  # the leader does the work
            self.apply()
            return
        free_at = self.leases.renew_lead()
        self.apply()
        self._expiry_timer.cancel()
        self._retry_timer.cancel()
        if self.leases.leads:
            self._expiry_timer.after(self.leases.lead_trusted_for + EXPIRY_SLACK)
        elif free_at is not None:
            self._retry_timer.at(free_at, LEASE_SLACK)

    def distrust(self) -> None:
        """Stop leading, but keep the lease for the rest of the shutdown."""
        self.leases.distrust_lead()
        self.apply()

    def apply(self) -> None:
        """Act on a change of leadership, if there is one."""
        leads = self.leases.leads
        if leads is not self.hooks.leads:
            self.on_change(leads)
            self.events.leadership_changed(leads)
        self.hooks.leadership_changed(leads)
        self.on_applied()
