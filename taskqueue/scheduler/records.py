"""Reads records in pages: those with given ids, and all that match a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from taskqueue.errors import InvalidQuery, JobNotFound
from taskqueue.model.ids import JobId
from taskqueue.model.query import EVERYTHING, Compare, Operator, Query, parse
from taskqueue.model.record import Record
from taskqueue.model.shown_text import as_code
from taskqueue.store import Store

if TYPE_CHECKING:
    from taskqueue.scheduler.snapshot import JobSnapshot

PAGE = 500
"""Records read at once."""

LARGEST_PAGE = 1_000_000
"""The most records that a caller gets in one list."""


def read(store: Store, ids: Iterable[JobId]) -> list[Record]:
    """Return the records with these ids, in order; raise ``JobNotFound`` for an unknown one."""
    wanted = list(dict.fromkeys(ids))
    records = present(store, wanted)
    if len(wanted) == len(records) == 1:  # a wait for one job, whose id need not be hashed again
        return records
    found = {record.id: record for record in records}
    for id in wanted:
        if id not in found:
            raise JobNotFound(id)
    return [found[id] for id in wanted]


def present(store: Store, ids: Iterable[JobId]) -> list[Record]:
    """Return those records with these ids that exist."""
    wanted = list(dict.fromkeys(ids))
    found: list[Record] = []
    for start in range(0, len(wanted), PAGE):
        page = tuple(map(str, wanted[start : start + PAGE]))
        found += store.find(Compare("id", Operator.IN, page), limit=PAGE)
    return found


def page(
    store: Store, query: Mapping[str, Any] | None, order: str, limit: int, after: JobSnapshot | None
) -> list[Record]:
    """Return up to ``limit`` records that match, in this order, from behind the one of ``after``."""
    if not 0 < limit <= LARGEST_PAGE:
        raise InvalidQuery(f"limit={as_code(limit)}: pass how many jobs to return, from 1 to {LARGEST_PAGE:,}")
    behind = None if after is None else (getattr(after.snapshot, order.removeprefix("-"), None), after.id)
    return store.find(EVERYTHING if query is None else parse(query), order=order, limit=limit, after=behind)


def matching(store: Store, query: Query, page_size: int = PAGE) -> Iterator[Record]:
    """Iterate over the records that match, by id, reading as you go."""
    for found in pages(store, query, page_size):
        yield from found


def pages(store: Store, query: Query, page_size: int) -> Iterator[list[Record]]:
    """Iterate over the same a page at a time."""
    after: tuple[object, JobId] | None = None
    while True:
        page = store.find(query, limit=page_size, after=after)
        if page:
            yield page
        if len(page) < page_size:
            return
        after = (page[-1].id, page[-1].id)
