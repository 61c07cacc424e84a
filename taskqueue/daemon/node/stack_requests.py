"""Answers requests for stacks of this node's runs: each request is a lease, and so is its answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.in_flight import InFlight
from taskqueue.daemon.protocol.messages import StackTaken, TakeStack
from taskqueue.model.stack import ANSWER, REQUEST
from taskqueue.store import Lease

KEPT_FOR = timedelta(seconds=10)
"""How long an unread answer is kept."""


class StackRequests:
    """The requests that one node knows of."""

    def __init__(self, node: NodeContext, in_flight: InFlight) -> None:
        self._store = node.store
        self._holder = node.holder
        self._in_flight = in_flight
        self._breaker = node.breaker
        self._asked: set[str] = set()

    def look(self, leases: Sequence[Lease]) -> list[TakeStack]:
        """Return the new requests for runs of this node, and remove files of askers that were killed."""
        new: list[TakeStack] = []
        asked = self._asked & {lease.name for lease in leases}
        for lease in leases:
            if not lease.name.startswith((REQUEST, ANSWER)):
                continue
            if lease.until <= self._store.now():
                self._resign(lease)
            elif lease.name.startswith(REQUEST) and lease.name not in asked:
                id, claims = lease.about.get("job"), lease.about.get("claims")
                if isinstance(id, str) and isinstance(claims, int) and self._in_flight.find(id, claims) is not None:
                    asked.add(lease.name)
                    new.append(TakeStack(id=id, claims=claims, request=lease.name.removeprefix(REQUEST)))
        self._asked = asked
        return new

    def on_taken(self, message: StackTaken) -> None:
        """Answer a request with the report of the manager."""
        now = self._store.now()
        answer = Lease(
            name=f"{ANSWER}{message.request}",
            holder=self._holder,
            since=now,
            until=now + KEPT_FOR,
            about={"stack": message.stack, "why_not": message.why_not},
        )
        self._breaker.call(lambda: self._store.acquire(answer, now))

    def _resign(self, lease: Lease) -> None:
        self._breaker.call(lambda: self._store.resign(lease.name, lease.holder))
