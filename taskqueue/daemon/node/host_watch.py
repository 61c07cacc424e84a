"""Watches the other nodes of this host, and rescues the claims of a dead one at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.leader_election import LEAD
from taskqueue.daemon.node.rescuer import Rescuer
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.runtime.timers import every
from taskqueue.model.record import Holder
from taskqueue.model.wording import count
from taskqueue.scheduler import host
from taskqueue.store import Lease, Store

log = logging.getLogger(__name__)

SEAT = "seat:"


class HostWatch:
    """Watches the processes named in the leases of other nodes of this host, by pidfd."""

    def __init__(
        self,
        *,
        loop: Loop,
        store: Store,
        holder: Holder,
        breaker: CircuitBreaker,
        rescuer: Rescuer,
        is_seated: Callable[[], bool],
        on_lead: Callable[[], None],
        on_leases: Callable[[Sequence[Lease]], None],
        is_busy: Callable[[], object],
        interval: float,
    ) -> None:
        """``on_lead`` is called after the death of a node, which may have led; ``interval`` is in seconds.

        ``on_leases`` is called with all leases whenever they were read, also at the end of a node while it is busy.
        """
        self._loop = loop
        self._store = store
        self._holder = holder
        self._breaker = breaker
        self._rescuer = rescuer
        self._is_seated = is_seated
        self._on_lead = on_lead
        self._on_leases = on_leases
        self._is_busy = is_busy
        self._watched: dict[Holder, list[int]] = {}
        every(loop, interval, self.check)

    def check(self) -> None:
        """Watch the present nodes of this host, and rescue the claims of dead ones."""
        if not self._is_seated() and not self._is_busy():
            return
        answer = self._breaker.call(self._store.leases)
        if answer is None:
            return
        self._on_leases(answer.value)
        if not self._is_seated():
            return
        now = self._store.now()
        others = {
            lease.holder: lease
            for lease in answer.value
            if lease.name.startswith(SEAT) and lease.holder != self._holder and lease.until > now
        }
        for holder in [holder for holder in self._watched if holder not in others]:
            self._forget(holder)
        for holder, lease in others.items():
            if holder not in self._watched:
                self._watch(lease)

    def close(self) -> None:
        """Stop watching."""
        for holder in list(self._watched):
            self._forget(holder)

    def _watch(self, lease: Lease) -> None:
        """Watch the processes of the node, or rescue its claims if none is alive."""
        living = host.living(lease)
        if living == {}:
            self._rescue(lease)
        elif living:
            self._watched[lease.holder] = list(living.values())
            for pidfd in living.values():
                self._loop.watch(pidfd, partial(self._on_process_exit, lease.holder))

    def _on_process_exit(self, holder: Holder) -> None:
        """Check the node again after one of its processes has ended."""
        self._forget(holder)
        self.check()

    def _forget(self, holder: Holder) -> None:
        for pidfd in self._watched.pop(holder, ()):
            self._loop.unwatch(pidfd)
            os.close(pidfd)

    def _rescue(self, lease: Lease) -> None:
        """Rescue the claims of a dead node, and end its leases; in an outage the next check does it."""
        dead = lease.holder
        rescued = self._rescuer.rescue_from(dead)
        if rescued is None:
            return
        log.warning("node %s of this host died: rescued %s", dead.seat, count(rescued, "job"))
        now = self._store.now()
        self._breaker.call(lambda: self._store.resign(LEAD, dead))
        self._breaker.call(lambda: self._store.acquire(replace(lease, until=now), now))
        self._on_lead()
