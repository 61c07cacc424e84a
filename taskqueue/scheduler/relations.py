"""What jobs may say of others when they are added: only of jobs that exist, and never in a circle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from taskqueue.errors import InvalidOption
from taskqueue.model.record import JobId, Record
from taskqueue.scheduler.waiting import present
from taskqueue.store import Store


def check(store: Store, new: Sequence[Record]) -> None:
    """Raise ``InvalidOption`` if one of the records, not added yet, names an unknown job or waits for itself."""
    related = [record for record in new if record.depends_on]
    if not related:
        return
    together = {record.id: record for record in new}
    named = {id for record in related for id in _named(record)}
    known = {record.id for record in present(store, named.difference(together))}.union(together)
    for record in related:
        for id in _named(record):
            if id not in known:
                raise InvalidOption(
                    f"{record.job}: depends_on={id}: there is no such job: it was never added to this store, "
                    "or it ended and was pruned; leave it out"
                )
    awaited = {record.id: [one.id for one in record.depends_on] for record in related}
    circle = _circle(awaited)
    if circle:
        named_circle = " -> ".join(str(id) for id in circle)
        raise InvalidOption(f"depends_on makes a circle, in which none could ever begin: {named_circle}: break it")


def _named(record: Record) -> Iterator[JobId]:
    yield from (one.id for one in record.depends_on)


def _circle(edges: Mapping[JobId, Iterable[JobId]]) -> list[JobId]:
    """Return the ids along a circle, the first one again at the end; nothing where there is none."""
    safe: set[JobId] = set()
    for start in edges:
        path: dict[JobId, Iterator[JobId]] = {} if start in safe else {start: iter(edges[start])}
        while path:
            at, ways = next(reversed(path.items()))
            for id in ways:
                if id in path:
                    ids = list(path)
                    return [*ids[ids.index(id) :], id]
                if id in edges and id not in safe:
                    path[id] = iter(edges[id])
                    break
            else:
                safe.add(at)
                del path[at]
    return []
