"""The values that all parts of a node share: loop, store behind the circuit breaker, settings, status and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.figures import Figures
from taskqueue.daemon.node.status import NodeStatus
from taskqueue.daemon.runtime.loop import Loop, ResettableTimer
from taskqueue.daemon.settings import Settings
from taskqueue.model.record import Holder
from taskqueue.store import Store


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """One incarnation of a node."""

    loop: Loop
    store: Store
    holder: Holder
    settings: Settings
    status: NodeStatus
    breaker: CircuitBreaker
    """Calls to the store go through it, unless the caller must see an outage."""
    figures: Figures = field(default_factory=Figures)

    def timer(self, callback: Callable[[], None]) -> ResettableTimer:
        """Return a timer by the clock of the store."""
        return ResettableTimer(self.loop, self.store.now, callback)

    @property
    def lease(self) -> timedelta:
        """How long claims and leases are held without a renewal."""
        return timedelta(seconds=self.settings.lease)
