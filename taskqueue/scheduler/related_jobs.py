"""Refuses new jobs that depend on an unknown job, have an unknown parent, or wait for themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from taskqueue.errors import InvalidOption, JobNotFound
from taskqueue.insight.records import present, with_id_text
from taskqueue.model.ids import JobId, id_of_text
from taskqueue.model.job_path import path_of
from taskqueue.model.lifecycle.pending import TREE_ENDS
from taskqueue.model.record import Record
from taskqueue.store import Store

_OPTIONS = ("depends_on", "parent")
"""The options that name other jobs."""


def with_ids(
    store: Store, options: Mapping[str, Any], beside: Mapping[str, Iterable[JobId]] | None = None
) -> Mapping[str, Any]:
    """Return the options with the ids of jobs that they name by a text alone, such as ``invoice-7``.

    ``beside`` has the texts of jobs that are added by the same call. A text that no job has stays, and is refused with
    the other values. Raises ``InvalidOption`` for the text of several jobs.
    """
    named = [name for name in _OPTIONS if options.get(name) is not None]
    if not named:
        return options

    def id_of(name: str, value: Any) -> Any:
        if not isinstance(value, str) or ":" in value or value.startswith("#") or JobId.is_valid(value):
            return value
        try:
            record = with_id_text(store, value)
        except JobNotFound as several:
            raise InvalidOption(f"{name}: {several}") from None
        ids = {*(beside or {}).get(value, ()), *([] if record is None else [record.id])}
        if len(ids) > 1:
            raise InvalidOption(
                f"{name}={value!r} is the id of several jobs, so name the class as well: 'shop:Invoice:{value}'"
            )
        return ids.pop() if ids else value

    def ids_of(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {id_of(name, key): what for key, what in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [id_of(name, item) for item in value]
        return id_of(name, value)

    return {**options, **{name: ids_of(name, options[name]) for name in named}}


def entries_with_ids(store: Store, entries: Iterable[Any]) -> Iterator[Any]:
    """Yield the entries of ``add_jobs`` with the ids of jobs that they name by text, also of those before them."""
    beside: dict[str, set[JobId]] = {}
    for entry in entries:
        options = entry[2] if isinstance(entry, tuple | list) and len(entry) == 3 else None
        if not isinstance(options, Mapping):
            yield entry
            continue
        yield (*entry[:2], with_ids(store, options, beside))
        text = options.get("id")
        if isinstance(text, str) and not JobId.is_valid(text):
            beside.setdefault(text, set()).add(id_of_text(path_of(entry[0]), text))


def check(store: Store, new: Sequence[Record]) -> None:
    """Raise ``InvalidOption`` if one of these new records names an unknown job or waits for itself."""
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
                    f"{together[id].unique!r}, and is not stored if another job has the key: "
                    "add it first, and pass the job that is returned"
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
