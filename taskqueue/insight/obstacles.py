"""Explains what stands between a waiting job and its start: limits, busy workers, other queues and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from shlex import quote
from typing import Any, NamedTuple, TypeAlias

from taskqueue.insight.nodes import live_seats, name_of, slots
from taskqueue.model.controls import NONE, Controls
from taskqueue.model.limits import LimitKey, limit_keys_of
from taskqueue.model.query import RUNNING, And, Compare, Operator, Or, Query
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import at, count, since, some, span
from taskqueue.store import Lease, Store
from taskqueue.store.queue_shares import weight_of

MOST_RUNS = 500
"""Maximum number of running jobs that are searched for the holders of a limit."""

MOST_KEYS = 500
"""Maximum number of limits of listed jobs that are looked up."""

MOST_NODES = 5
"""Maximum number of nodes whose jobs are read; for other nodes, their leases must do."""

MOST_JOBS = 100
"""Maximum number of jobs of a node that are read."""

MOST_NAMED = 3
"""Maximum number of jobs of a node that are named, the longest-running first."""

LATEST = datetime.max.replace(tzinfo=timezone.utc)

MOST_WEIGHED = 5
"""Maximum number of queues whose weight is named, since each needs a look at its first waiting job."""

MOST_BEFORE = 10_000
"""Maximum number of jobs before a waiting job that are counted, as there may be millions."""

MOST_LOOKED_AT = 200
"""Maximum number of other queues in which jobs before a waiting job are counted, the oldest backlog first."""

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


def holds(store: Store, records: Iterable[Record]) -> Controls:
    """Return the active controls, and which limits of these records are used up, for the first ``MOST_KEYS`` limits.

    The store is read only if a job waits.
    """
    waiting = [record for record in records if record.status is Status.WAITING]
    if not waiting:
        return NONE
    controls = store.controls()
    of_waiting = (limit_key for record in waiting for limit_key in controls.limit_keys(record.lane))
    most = {limit_key.key: limit_key.count for limit_key in islice(of_waiting, MOST_KEYS)}
    used = store.limit_usage(sorted(most), store.now()) if most else {}
    return Controls(controls.kept, [key for key, count in most.items() if used[key] >= count])


def _runs(limit_key: LimitKey) -> Query:
    """Return the query for the running jobs that may have the limit: those of one class, unless it has a name."""
    scope = limit_key.of.partition(" ")[0]
    return RUNNING if scope.startswith("name=") else And((RUNNING, Compare("job", Operator.EQ, scope)))


def _has(record: Record, limit_key: LimitKey) -> bool:
    return any(other.key == limit_key.key for other in limit_keys_of(record.lane))


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


def queues_of(lease: Lease) -> Mapping[str, Any]:
    """Return the queues that a node has chosen, with their bounds; none means it takes every queue."""
    queues = lease.about.get("queues")
    return queues if isinstance(queues, Mapping) else {}


def takes(lease: Lease, queue: str) -> bool:
    """Return whether the node takes jobs of the queue."""
    return not queues_of(lease) or queue in queues_of(lease)


def taking_seats(leases: Iterable[Lease], controls: Controls, queue: str, now: datetime) -> list[Lease]:
    """Return the leases of live nodes that take jobs of the queue and are not drained."""
    of_queue = [seat for seat in live_seats(leases, now) if takes(seat, queue)]
    return [seat for seat in of_queue if controls.drain_of(name_of(seat)) is None]


class Place(NamedTuple):
    """What stands between a waiting job and the nodes that take it, apart from the jobs of its own queue."""

    bounds: list[int]
    """The bounds of its queue that are reached, for each node that has one."""
    others: int
    """How many jobs of other queues each of the nodes takes first; 0 if one takes the queues in turn."""


def sharing(store: Store, controls: Controls, record: Record, taking: Sequence[Lease]) -> Generator[str, None, Place]:
    """Say what stands between this waiting job and these nodes: bounds of its queue, and other queues."""
    bounds = []
    for lease in taking:
        bound = _used_up(store, lease, record.queue)
        if bound is not None:
            bounds.append(bound)
            yield f"Node {name_of(lease)} has a bound that is used up: --work-on {quote(record.queue)}={bound}."
    strict = [lease for lease in taking if lease.about.get("order") == "strict"]
    fair = [lease for lease in taking if lease not in strict]
    before = 0
    if strict:
        before = _before_in_others(store, controls, record, strict)
        number = f"{many(before)} of other queues" if before else "no job of another queue"
        yield (
            f"{_nodes(strict)} first the job with the lowest rank of all queues (--order strict): "
            f"{number} {'stands' if before < 2 else 'stand'} before it."
        )
    if fair:
        yield from _others(store, controls, record, fair)
    return Place(bounds, 0 if fair else before)


def many(before: int) -> str:
    """Return a text for the number of jobs that come first, as far as they are counted."""
    return f"more than {MOST_BEFORE:,} jobs" if before > MOST_BEFORE else count(before, "job")


def _used_up(store: Store, lease: Lease, queue: str) -> int | None:
    """Return the bound that the node has for the queue if it is reached; None otherwise."""
    bound = queues_of(lease).get(queue)
    if isinstance(bound, int):
        terms = {"status": int(Status.PROCESSING), "queue": queue, "seat": name_of(lease)}
        held = store.count(And(tuple(Compare(name, Operator.EQ, value) for name, value in terms.items())), bound)
        if held >= bound:
            return bound
    return None


def before_in(record: Record, queue: str) -> Query:
    """Return the query for the waiting jobs of a queue with a lower (rank, id) than the record's."""
    is_before = Or((Compare("rank", Operator.LT, record.rank), Compare("id", Operator.LT, str(record.id))))
    earlier = And((Compare("rank", Operator.LTE, record.rank), is_before))
    waiting = Compare("status", Operator.EQ, int(Status.WAITING))
    return And((waiting, Compare("queue", Operator.EQ, queue), earlier))


def _before_in_others(store: Store, controls: Controls, record: Record, strict: Sequence[Lease]) -> int:
    """Return how many jobs of other queues come first on these nodes: at most one more than ``MOST_BEFORE``."""
    before = 0
    for queue in _other_queues(store, controls, record, strict)[:MOST_LOOKED_AT]:
        before += store.count(before_in(record, queue), MOST_BEFORE + 1 - before)
        if before > MOST_BEFORE:
            break
    return before


def _other_queues(store: Store, controls: Controls, record: Record, nodes: Sequence[Lease]) -> list[str]:
    """Return the other queues with waiting jobs that these nodes take, in the order in which they are claimed."""
    return [
        queue
        for queue in store.waiting_since()
        if queue != record.queue and controls.pause_of(queue) is None and any(takes(lease, queue) for lease in nodes)
    ]


def _others(store: Store, controls: Controls, record: Record, fair: Sequence[Lease]) -> Iterator[str]:
    queues = _other_queues(store, controls, record, fair)
    if not queues:
        return
    weighed = [f"{queue} (weight {_weight(store, queue)})" for queue in queues[:MOST_WEIGHED]]
    named = some([*weighed, *queues[MOST_WEIGHED:]], MOST_WEIGHED)
    yield (
        f"{_nodes(fair)} jobs of other queues in turn with this one, whose weight is {_weight(store, record.queue)}: "
        f"{named}."
    )


def _weight(store: Store, queue: str) -> str:
    """Return the weight of the first waiting job of the queue."""
    terms = {"status": int(Status.WAITING), "queue": queue}
    query = And(tuple(Compare(name, Operator.EQ, value) for name, value in terms.items()))
    return f"{weight_of(next((first.priority for first in store.find(query, order='rank', limit=1)), 0)):.3g}"


def _nodes(leases: Sequence[Lease]) -> str:
    names = some([name_of(lease) for lease in leases])
    return f"Node {names} takes" if len(leases) == 1 else f"Nodes {names} take"
