"""Watches the other nodes and the callers that run jobs on this host; rescues the claims of a dead one at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.leader_election import LEAD
from taskqueue.daemon.node.rescuer import Rescuer
from taskqueue.daemon.runtime.timers import every
from taskqueue.insight import host
from taskqueue.model.record import Holder
from taskqueue.model.wording import count
from taskqueue.store import Lease

log = logging.getLogger(__name__)

SEAT = "seat:"


class HostWatch:
    """Watches the processes that leases of other nodes and claims of callers name on this host, by pidfd."""

    def __init__(
        self,
        *,
        node: NodeContext,
        rescuer: Rescuer,
        is_seated: Callable[[], bool],
        on_lead: Callable[[], None],
        on_leases: Callable[[Sequence[Lease]], None],
        is_busy: Callable[[], object],
    ) -> None:
        """``on_lead`` is called after the death of a node, which may have led.

        ``on_leases`` is called with all leases whenever they were read, also at the end of a node while it is busy.
        """
        self._loop = node.loop
        self._store = node.store
        self._holder = node.holder
        self._breaker = node.breaker
        self._rescuer = rescuer
        self._is_seated = is_seated
        self._on_lead = on_lead
        self._on_leases = on_leases
        self._is_busy = is_busy
        self._watched: dict[Holder, list[int]] = {}
        every(node.loop, node.settings.lease / 3, self.check)

    def check(self) -> None:
        """Watch the present nodes and callers of this host, and rescue the claims of dead ones."""
        if not self._is_seated() and not self._is_busy():
            return
        answer = self._breaker.call(self._store.leases)
        if answer is None:
            return
        self._on_leases(answer.value)
        if not self._is_seated():
            return
        callers = self._breaker.call(lambda: self._store.holders(host.caller_seats()))
        if callers is None:
            return
        now = self._store.now()
        others: dict[Holder, Lease | None] = dict.fromkeys(callers.value)
        for lease in answer.value:
            if lease.name.startswith(SEAT) and lease.holder != self._holder and lease.until > now:
                others[lease.holder] = lease
        for holder in [holder for holder in self._watched if holder not in others]:
            self._forget(holder)
        for holder, seat in others.items():
            if holder not in self._watched:
                self._watch(holder, seat)

    def close(self) -> None:
        """Stop watching."""
        for holder in list(self._watched):
            self._forget(holder)

    def _watch(self, holder: Holder, seat: Lease | None) -> None:
        """Watch the processes of a node, or of a caller, which has no seat; rescue its claims if none is alive."""
        living = host.living_caller(holder) if seat is None else host.living(seat)
        if living == {}:
            self._rescue(holder, seat)
        elif living:
            self._watched[holder] = list(living.values())
            for pidfd in living.values():
                self._loop.watch(pidfd, partial(self._on_process_exit, holder))

    def _on_process_exit(self, holder: Holder) -> None:
        """Check the node again after one of its processes has ended."""
        self._forget(holder)
        self.check()

    def _forget(self, holder: Holder) -> None:
        for pidfd in self._watched.pop(holder, ()):
            self._loop.unwatch(pidfd)
            os.close(pidfd)

    def _rescue(self, dead: Holder, seat: Lease | None) -> None:
        """Rescue the claims of a dead holder, and end its leases; in an outage the next check does it."""
        rescued = self._rescuer.rescue_from(dead)
        if rescued is None:
            return
        if seat is None:
            log.warning("the process of %s died: rescued %s", dead.seat, count(rescued, "job"))
            return
        log.warning("node %s of this host died: rescued %s", dead.seat, count(rescued, "job"))
        now = self._store.now()
        self._breaker.call(lambda: self._store.resign(LEAD, dead))
        self._breaker.call(lambda: self._store.acquire(replace(seat, until=now), now))
        self._on_lead()
