"""Says which nodes that take a waiting job have no free worker for it, and which jobs keep their workers busy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from taskqueue.insight.node_states import name_of, slots
from taskqueue.model.query import RUNNING, And, Compare, Operator
from taskqueue.model.record import Record
from taskqueue.model.wording import count, some, span
from taskqueue.store import Lease, Store

MOST_NODES = 5
"""The most nodes whose jobs are read; what the others run is known from their leases alone."""

MOST_JOBS = 100
"""The most jobs of a node that are read."""

MOST_NAMED = 3
"""The most jobs of a node that are named, those first that run longest."""

LATEST = datetime.max.replace(tzinfo=timezone.utc)


class BusyNode(NamedTuple):
    """A node without a free worker, and the jobs that it has, those first that run longest."""

    lease: Lease
    runs: list[Record]

    def sentence(self, now: datetime) -> str:
        """Say what keeps its workers busy, and since when."""
        runs = some([in_words(record, now) for record in self.runs], MOST_NAMED)
        most = count(slots(self.lease) or 0, "worker")
        return f"Node {name_of(self.lease)} has no free worker among its {most}{': ' if runs else ''}{runs}."


def busy_nodes(store: Store, record: Record, taking: Iterable[Lease]) -> Iterator[BusyNode]:
    """Yield the nodes whose pool is full; none for a job that runs beside the pool."""
    if record.options.is_beside_pool:
        return
    for place, lease in enumerate(taking):
        most, busy = slots(lease), lease.about.get("busy")
        if most is None:
            continue
        runs = _runs_of(store, lease) if place < MOST_NODES else []
        if len(runs) >= most or (isinstance(busy, int) and busy >= most and (place >= MOST_NODES or most > MOST_JOBS)):
            yield BusyNode(lease, runs)


def longest_first(records: Iterable[Record]) -> list[Record]:
    """Return these claimed jobs, those first that run longest, and those last that have not begun."""
    return sorted(records, key=lambda record: (record.started_at or LATEST, record.id))


def in_words(record: Record, now: datetime) -> str:
    """Return a claimed job with its class, and for how long it has run."""
    began_at = record.started_at
    since = "not begun yet" if began_at is None else f"runs for {span((now - began_at).total_seconds())}"
    return f"{record.id} ({record.job}, {since})"


def _runs_of(store: Store, lease: Lease) -> list[Record]:
    """Return the jobs that the node has for its pool, those first that run longest."""
    query = And((RUNNING, Compare("seat", Operator.EQ, name_of(lease))))
    records = [record for record in store.find(query, limit=MOST_JOBS) if not record.options.is_beside_pool]
    return longest_first(records)
