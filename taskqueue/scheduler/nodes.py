"""The nodes of a store as an operator sees them: their leases, the jobs they hold, and their states in words."""

from __future__ import annotations

from collections.abc import Mapping

from taskqueue.model.controls import Control
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.scheduler import host, node_states
from taskqueue.store import Lease, Store


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node that works on the store, or did until its seat is taken again."""

    lease: Lease
    """The lease of its seat, with the facts that it published with its last renewal."""
    jobs: int
    """How many jobs it holds now."""
    is_leader: bool
    is_live: bool
    drain: Control | None
    """Its drain; None if it is not drained."""
    state: str
    """What it does, in words: ``works``, ``drains, by ann@web``, ``silent for 4 min``."""

    @property
    def name(self) -> str:
        """Return its name."""
        return node_states.name_of(self.lease)

    @property
    def about(self) -> Mapping[str, object]:
        """Return the facts that it published with its last renewal."""
        return self.lease.about


def nodes(store: Store) -> list[Node]:
    """Return the nodes, by name."""
    now, leases, controls = store.now(), store.leases(), store.controls()
    leader = node_states.leader(leases, now)
    found = []
    for seat in node_states.seats(leases):
        jobs = store.count(parse({"seat": seat.holder.seat, "status": int(Status.PROCESSING)}))
        node = Node(
            lease=seat,
            jobs=jobs,
            is_leader=node_states.leads(seat, leader),
            is_live=host.is_live(seat, now),
            drain=controls.drain_of(node_states.name_of(seat)),
            state=node_states.state(seat, controls, now, jobs),
        )
        found.append(node)
    return found
