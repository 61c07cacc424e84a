"""Reads records in pages: those with given ids, and all that match a query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from taskqueue.errors import JobNotFound
from taskqueue.model.ids import JobId
from taskqueue.model.query import Compare, Operator, Query
from taskqueue.model.record import Record
from taskqueue.store import Store

PAGE = 500
"""Records read at once."""


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


def matching(store: Store, query: Query, page_size: int = PAGE) -> Iterator[Record]:
    """Iterate over the records that match, by id, reading as you go."""
    after: tuple[object, JobId] | None = None
    while True:
        page = store.find(query, limit=page_size, after=after)
        yield from page
        if len(page) < page_size:
            return
        after = (page[-1].id, page[-1].id)
