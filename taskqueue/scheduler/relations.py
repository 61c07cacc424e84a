"""What jobs may say of others when they are added: only of jobs that exist, and never in a circle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from taskqueue.errors import InvalidOption
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import TREE_ENDS
from taskqueue.model.record import Record
from taskqueue.scheduler.wait import present
from taskqueue.store import Store


def check(store: Store, new: Sequence[Record]) -> None:
    """Raise ``InvalidOption`` if one of the records, not added yet, names an unknown job or waits for itself."""
    related = [record for record in new if record.depends_on or record.parent is not None]
    if not related:
        return
    together = {record.id: record for record in new}
    named = {id for record in related for _, id in _named(record)}
    known = {record.id: record for record in present(store, named.difference(together))} | together
    for record in related:
        for option, id in _named(record):
            if id not in known:
                raise InvalidOption(
                    f"{record.job}: {option}={id}: there is no such job: it was never added to this store, "
                    "or it ended and was pruned; leave it out"
                )
    for record in related:
        if record.parent is not None and known[record.parent].status in TREE_ENDS:
            status = known[record.parent].status.name
            raise InvalidOption(f"{record.job}: parent={record.parent}: it has ended as {status}, and so its parts do")
    _refuse_circle("depends_on", {record.id: [one.id for one in record.depends_on] for record in related})
    _refuse_circle("parent", {record.id: [record.parent] for record in related if record.parent is not None})


def _named(record: Record) -> Iterator[tuple[str, JobId]]:
    yield from (("depends_on", one.id) for one in record.depends_on)
    if record.parent is not None:
        yield "parent", record.parent


def _refuse_circle(option: str, edges: Mapping[JobId, Iterable[JobId]]) -> None:
    circle = _circle(edges)
    if circle:
        raise InvalidOption(f"{option} makes a circle: {' -> '.join(str(id) for id in circle)}: break it")


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
