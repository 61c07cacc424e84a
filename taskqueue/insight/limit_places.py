"""Explains what has no room for a waiting job: its limits or all workers, which jobs use them, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple, TypeAlias

from taskqueue.insight.nodes import name_of, slots
from taskqueue.model.controls import Controls
from taskqueue.model.limits import LimitKey, limit_keys_of
from taskqueue.model.query import RUNNING, And, Compare, Operator, Query
from taskqueue.model.record import Record
from taskqueue.model.wording import at, count, since, some, span
from taskqueue.store import Lease, Store

MOST_RUNS = 500
"""Maximum number of running jobs that are searched for the holders of a limit."""

Mask: TypeAlias = Callable[[LimitKey], LimitKey]
"""Returns the key of a limit as it may be shown."""


class FullLimit(NamedTuple):
    """A limit that is full."""

    limit_key: LimitKey
    """The key, with the active number."""
    holders: list[Record]
    """The jobs that use it, among the ``MOST_RUNS`` that are read, the longest-running first."""
    free_at: datetime | None
    """When a rate allows the next start; None if that depends on jobs that run."""

    def sentences(self, controls: Controls, now: datetime, mask: Mask) -> Iterator[str]:
        """Say what the limit allows, who holds its places, and when the next one is free."""
        change = controls.limit_of(self.limit_key)
        changed = "" if change is None else f", a number set {since(change, now)}"
        yield f"It is held back by a limit that is used up: {mask(self.limit_key)}{changed}."
        if self.holders:
            runs = some([in_words(record, now) for record in self.holders], MOST_NAMED)
            until = "" if self.limit_key.per is not None else " The end of one of them frees its place."
            yield f"Jobs that hold the limit: {runs}.{until}"
        if self.free_at is not None:
            yield f"The rate allows the next start {at(self.free_at, now)}."

    def in_short(self, now: datetime) -> str:
        """Return the same in a clause."""
        if self.free_at is not None:
            return f"the rate that it needs allows the next start {at(self.free_at, now)}"
        held = f", held by job {self.holders[0].id}" if self.holders else ""
        more = f" and {len(self.holders) - 1} more" if len(self.holders) > 1 else ""
        return f"a limit that it needs is used up{held}{more}"


def full_limits(store: Store, controls: Controls, record: Record, now: datetime) -> Iterator[FullLimit]:
    """Yield the limits of the job that are full."""
    limit_keys = limit_keys_of(record.lane)
    used = store.limit_usage([limit_key.key for limit_key in limit_keys], now) if limit_keys else {}
    for limit_key in map(controls.now, limit_keys):
        over = used[limit_key.key] - limit_key.count
        if over >= 0:
            holders = [record for record in store.find(_runs(limit_key), limit=MOST_RUNS) if _has(record, limit_key)]
            ends = [] if limit_key.per is None else store.rate_ends(limit_key.key, now, over + 1)
            yield FullLimit(limit_key, longest_first(holders), ends[over] if len(ends) > over else None)


def _runs(limit_key: LimitKey) -> Query:
    """Return the query for the running jobs that may have the limit: those of one class, unless it has a name."""
    scope = limit_key.of.partition(" ")[0]
    return RUNNING if scope.startswith("name=") else And((RUNNING, Compare("job", Operator.EQ, scope)))


def _has(record: Record, limit_key: LimitKey) -> bool:
    return any(other.key == limit_key.key for other in limit_keys_of(record.lane))


MOST_NODES = 5
"""Maximum number of nodes whose jobs are read; for other nodes, their leases must do."""

MOST_JOBS = 100
"""Maximum number of jobs of a node that are read."""

MOST_NAMED = 3
"""Maximum number of jobs of a node that are named, the longest-running first."""

LATEST = datetime.max.replace(tzinfo=timezone.utc)


class BusyNode(NamedTuple):
    """A node without a free worker, and the jobs it runs, the longest-running first."""

    lease: Lease
    runs: list[Record]

    def sentence(self, now: datetime) -> str:
        """Say what keeps its workers busy, and since when."""
        runs = some([in_words(record, now) for record in self.runs], MOST_NAMED)
        most = count(slots(self.lease) or 0, "worker")
        return f"Node {name_of(self.lease)} has no free worker among its {most}{': ' if runs else ''}{runs}."


def busy_nodes(store: Store, record: Record, taking: Iterable[Lease]) -> Iterator[BusyNode]:
    """Yield the nodes whose pool is full; no node for a job that runs beside the pool."""
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
    """Return these claimed jobs, the longest-running first, jobs that have not started last."""
    return sorted(records, key=lambda record: (record.started_at or LATEST, record.id))


def in_words(record: Record, now: datetime) -> str:
    """Return a claimed job with its class, and for how long it has run."""
    began_at = record.started_at
    since = "not started yet" if began_at is None else f"runs for {span((now - began_at).total_seconds())}"
    return f"{record.id} ({record.job}, {since})"


def _runs_of(store: Store, lease: Lease) -> list[Record]:
    """Return the jobs that the node runs in its pool, the longest-running first."""
    query = And((RUNNING, Compare("seat", Operator.EQ, name_of(lease))))
    records = [record for record in store.find(query, limit=MOST_JOBS) if not record.options.is_beside_pool]
    return longest_first(records)
