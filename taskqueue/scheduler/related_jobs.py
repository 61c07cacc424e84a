"""Refuses new jobs that depend on an unknown job, have an unknown parent, or wait for themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from taskqueue.errors import InvalidOption
from taskqueue.insight.records import present
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import TREE_ENDS
from taskqueue.model.record import Record
from taskqueue.store import Store


def check(store: Store, new: Sequence[Record]) -> None:
    """Raise ``InvalidOption`` if one of the records, not added yet, names an unknown job or waits for itself."""
    related = [job for job in new if job.depends_on or job.parent is not None]
    if not related:
        return
    together = {job.id: job for job in new}
    named = {id for job in related for _, id in _named(job)}
    jobs = {job.id: job for job in present(store, named.difference(together))} | together
    for job in related:
        for option, id in _named(job):
            if id not in jobs:
                raise InvalidOption(
                    f"{job.job}: {option}={id}: there is no such job: it was never added to this store, "
                    "or it ended and was pruned; leave it out"
                )
            if id in together and together[id].unique is not None and id != job.id:
                raise InvalidOption(
                    f"{job.job}: {option}={id}: that job is added by the same call with unique="
                    f"{together[id].unique!r}, and is not stored where another job has the key: "
                    "add it first, and name the job that is returned"
                )
    for job in related:
        if job.parent is not None and jobs[job.parent].status in TREE_ENDS:
            status = jobs[job.parent].status.name
            raise InvalidOption(
                f"{job.job}: parent={job.parent}: that job has ended as {status}, and its children end with it: "
                "leave parent out"
            )
    dependencies = {job.id: [dependency.id for dependency in job.depends_on] for job in related}
    _refuse_cycle("depends_on", dependencies)
    _refuse_cycle("parent", {job.id: [job.parent] for job in related if job.parent is not None})


def _named(record: Record) -> Iterator[tuple[str, JobId]]:
    yield from (("depends_on", dependency.id) for dependency in record.depends_on)
    if record.parent is not None:
        yield "parent", record.parent


def _refuse_cycle(option: str, edges: Mapping[JobId, Iterable[JobId]]) -> None:
    cycle = _cycle(edges)
    if cycle:
        raise InvalidOption(f"{option} makes a cycle: {' -> '.join(str(id) for id in cycle)}: break it")


def _cycle(edges: Mapping[JobId, Iterable[JobId]]) -> list[JobId]:
    """Return the ids along a cycle, the first one again at the end; an empty list if there is none."""
    safe: set[JobId] = set()
    for start in edges:
        path: dict[JobId, Iterator[JobId]] = {} if start in safe else {start: iter(edges[start])}
        while path:
            last, next_ids = next(reversed(path.items()))
            for id in next_ids:
                if id in path:
                    ids = list(path)
                    return [*ids[ids.index(id) :], id]
                if id in edges and id not in safe:
                    path[id] = iter(edges[id])
                    break
            else:
                safe.add(last)
                del path[last]
    return []
