"""Explains which queues share the nodes that take a waiting job, and which queues have reached a bound."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

from taskqueue.insight.nodes import name_of
from taskqueue.model.controls import Controls
from taskqueue.model.query import And, Compare, Operator, Or, Query
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import count, some
from taskqueue.store import Lease, Store
from taskqueue.store.queue_shares import weight_of

MOST_WEIGHED = 5
"""Maximum number of queues whose weight is named, since each needs a look at its first waiting job."""


MOST_BEFORE = 10_000
"""Maximum number of jobs before a waiting job that are counted, as there may be millions."""

MOST_LOOKED_AT = 200
"""Maximum number of other queues in which jobs before a waiting job are counted, the oldest backlog first."""


def queues_of(lease: Lease) -> Mapping[str, Any]:
    """Return the queues that a node has chosen, with their bounds; none means it takes every queue."""
    queues = lease.about.get("queues")
    return queues if isinstance(queues, Mapping) else {}


def takes(lease: Lease, queue: str) -> bool:
    """Return whether the node takes jobs of the queue."""
    return not queues_of(lease) or queue in queues_of(lease)


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
    """Return the bound that the node has for the queue if as many jobs of it run there; else None."""
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
