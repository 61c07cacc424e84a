"""Searches a list of jobs page by page, or previews it; each looks at a bounded number of jobs, however few match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from taskqueue.model.ids import JobId
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store import Store
from taskqueue.store.query_bounds import compared_fields, fields_of, statuses_of

LOOKS_AT = 5_000
"""How many jobs a page looks at, of each status if it is in the order of ends: a few hundredths of a second."""

RARE = frozenset(("id", "id_text", "parent", "workflow", "unique"))
"""Fields whose values few jobs share: these are found through an index."""

HIGHEST = JobId("f" * 24)
"""The last id of the jobs of one time."""


class Search(NamedTuple):
    """The jobs of one page, and where the next page continues to look, if there are more jobs to look at."""

    processes: list[Process]
    last: Process | None = None
    """The last job that was looked at."""


def search(
    scheduler: Scheduler,
    query: Mapping[str, Any],
    order: str,
    limit: int,
    after: Process | None = None,
    statuses: Sequence[Status] = tuple(Status),
    looks_at: int = LOOKS_AT,
    until: datetime | None = None,
) -> Search:
    """Return up to ``limit`` jobs that match and have one of these statuses, among the next jobs in this order.

    If the query of a descending order leaves out jobs that came after ``until``, these do not count as looked at.
    """
    field, operator = order.removeprefix("-"), "$gte" if order.startswith("-") else "$lte"
    of_statuses = {"status": {"$in": [int(status) for status in statuses]}}
    final = [status for status in statuses if status.is_final]
    store = scheduler._connections.store  # noqa: SLF001 - the store of a scheduler is for this layer
    time = None
    if field in ("created_at", "ended_at") and store.count(parse(of_statuses), looks_at + 1) > looks_at:
        place = None if until is None else (until, HIGHEST)
        if after is not None:
            place = getattr(after.snapshot, field), after.id
        time = _time_after(store, order, place, final, looks_at)
    if time is None:
        return Search(scheduler.find_jobs(query, order=order, limit=limit, after=after))
    near = {"$and": [query, {field: {operator: time}}]}
    processes = scheduler.find_jobs(near, order=order, limit=limit, after=after)
    if len(processes) == limit:
        return Search(processes)
    opposite = field if order.startswith("-") else f"-{field}"
    looked_at: dict[str, Any] = {field: {operator: time}}
    if field == "ended_at":
        looked_at["status"] = {"$in": [int(status) for status in final]}
    last = next(iter(scheduler.find_jobs(looked_at, order=opposite, limit=1)), None)
    if last is None:  # all of them have been removed since
        return search(scheduler, query, order, limit, after, statuses, looks_at, until)
    return Search(processes, last)


class Preview(NamedTuple):
    """How many jobs match, and some of them."""

    number: int
    sample: list[Process]
    since: datetime | None = None
    """If set, only jobs that ended, or were added, at this time or later were looked at, and more may match."""
    is_by_end: bool = False
    """Whether ``since`` is a time of ends."""


def preview(
    scheduler: Scheduler,
    query: Mapping[str, Any],
    limit: int,
    looks_at: int | None = LOOKS_AT,
    order: str = "-created_at",
) -> Preview:
    """Return how many jobs match, with a sample of up to ``limit``, the first in this order.

    If no index has them, only the last jobs are looked at, and the sample has the last of these. If all have ended,
    they are those since the latest time from which a status has ``looks_at`` ends; otherwise the last ``looks_at`` that
    were added, whatever their status. None looks at all.
    """
    parsed = parse(query)
    statuses = statuses_of(parsed) or [int(status) for status in Status]
    has_index = fields_of(parsed) <= {"queue", "status"} or compared_fields(parsed) & RARE
    store = scheduler._connections.store  # noqa: SLF001 - the store of a scheduler is for this layer
    time = None
    if looks_at is not None and not has_index:
        of_statuses = parse({"status": {"$in": statuses}})
        if store.count(of_statuses, looks_at + 1) > looks_at:
            field = "ended_at" if min(statuses) > Status.PROCESSING else "created_at"
            time = store.time_after(f"-{field}", looks_at, statuses)
    if time is None:
        return Preview(scheduler.count_jobs(query), scheduler.find_jobs(query, order=order, limit=limit))
    near = {"$and": [query, {field: {"$gte": time}}]}
    sample = scheduler.find_jobs(near, order=f"-{field}", limit=limit)
    return Preview(scheduler.count_jobs(near), sample, time, is_by_end=field == "ended_at")


def _time_after(
    store: Store, order: str, place: tuple[datetime | None, JobId] | None, final: Sequence[Status], steps: int
) -> datetime | None:
    """Return the time up to which this many jobs follow this place; None if there are fewer."""
    if place is not None and place[0] is None:
        return None
    return store.time_after(order, steps, final, place)
