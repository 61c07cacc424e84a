"""Searches a list of jobs page by page; each page looks at a bounded number of jobs, however few match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store import Store

LOOKS_AT = 5_000
"""How many jobs a page looks at, of each status if it is in the order of ends: a few hundredths of a second."""


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
) -> Search:
    """Return up to ``limit`` jobs that match and have one of these statuses, among the next jobs in this order."""
    field, operator = order.removeprefix("-"), "$gte" if order.startswith("-") else "$lte"
    of_statuses = {"status": {"$in": [int(status) for status in statuses]}}
    store = scheduler._connections.store  # noqa: SLF001 - the store of a scheduler is for this layer
    time = None
    if field in ("created_at", "ended_at") and store.count(parse(of_statuses), looks_at + 1) > looks_at:
        time = _time_after(store, order, after, [status for status in statuses if status.is_final], looks_at)
    if time is None:
        return Search(scheduler.find_jobs(query, order=order, limit=limit, after=after))
    near = {"$and": [query, {field: {operator: time}}]}
    processes = scheduler.find_jobs(near, order=order, limit=limit, after=after)
    if len(processes) == limit:
        return Search(processes)
    # The last in this order of those with this time.
    opposite = field if order.startswith("-") else f"-{field}"
    at_time = {"$and": [{field: time}, of_statuses]} if field == "ended_at" else {field: time}
    return Search(processes, next(iter(scheduler.find_jobs(at_time, order=opposite, limit=1)), None))


def _time_after(
    store: Store, order: str, after: Process | None, final: Sequence[Status], steps: int
) -> datetime | None:
    """Return the time up to which this many jobs follow the job ``after``; None if there are fewer."""
    if after is None:
        return store.time_after(order, steps, final)
    begin = getattr(after.snapshot, order.removeprefix("-"))
    return None if begin is None else store.time_after(order, steps, final, (begin, after.id))
