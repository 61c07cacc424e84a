"""The nodes of a store as an operator sees them: their leases, the jobs they hold, and their states in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from taskqueue.insight import host, node_states
from taskqueue.model.controls import Control, Controls
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.store import Lease, Store


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that works on the store, or did so until its seat is taken again."""

    lease: Lease
    """The lease of its seat, with the facts published in its last renewal."""
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
    def pool(self) -> str:
        """Return its workers in words: how many are busy, how many it may have, and those beside the pool."""
        words = f"{self.about.get('busy', '?')} of {self.about.get('max_children', '?')} busy"
        forced, concurrent = self.about.get("forced"), self.about.get("concurrent")
        return words + (f", {forced} forced" if forced else "") + (f", {concurrent} concurrent" if concurrent else "")

    @property
    def about(self) -> Mapping[str, object]:
        """Return the facts published in its last renewal."""
        return self.lease.about


def nodes(store: Store) -> list[Node]:
    """Return the nodes, by name."""
    leases = store.leases()
    of_seat = {seat: parse({"seat": seat, "status": int(Status.PROCESSING)}) for seat in node_states.names(leases)}
    jobs = {seat: store.count(query) for seat, query in of_seat.items()}
    return nodes_of(leases, store.controls(), jobs, store.now())


def nodes_of(leases: Sequence[Lease], controls: Controls, jobs: Mapping[str, int] | None, now: datetime) -> list[Node]:
    """Return the nodes of these leases; ``jobs`` has the claimed jobs of each; if None, nodes report them."""
    lead = node_states.leader(leases, now)
    nodes = []
    for seat in node_states.seats(leases):
        claimed = _running(seat) if jobs is None else jobs.get(node_states.name_of(seat), 0)
        node = Node(
            lease=seat,
            jobs=claimed,
            is_leader=node_states.leads(seat, lead),
            is_live=host.is_live(seat, now),
            drain=controls.drain_of(node_states.name_of(seat)),
            state=node_states.state(seat, controls, now, claimed),
        )
        nodes.append(node)
    return nodes


def _running(seat: Lease) -> int:
    running = seat.about.get("running")
    return running if isinstance(running, int) else 0
