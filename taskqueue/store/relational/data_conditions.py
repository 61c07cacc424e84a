"""Finds records by conditions on their data where the database has no function for them: the model decides.

The rest of the query narrows what is read, page by page, until enough records match.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from taskqueue.model.ids import JobId
from taskqueue.model.query import And, Compare, Or, Query, matches
from taskqueue.model.record import Record
from taskqueue.store.arguments import order_of
from taskqueue.store.relational.filters import data_matches

PAGES = (100, 2000)
"""How many records the first page has, and how many a later one has at most."""

After = tuple[object, JobId]
ReadPage = Callable[[Query, int, "After | None"], list[Record]]


def names_data(query: Query) -> bool:
    """Return whether the query has a condition on data."""
    match query:
        case And(parts=parts) | Or(parts=parts):
            return any(map(names_data, parts))
        case Compare(path=path):
            return bool(path)


def matching(read: ReadPage, query: Query, order: str, after: After | None) -> Iterator[Record]:
    """Yield the records that match, in this order; ``read`` reads a page of a query."""
    wider, (size, largest), column = _without_data(query), PAGES, order_of(order)[0]
    while page := read(wider, size, after):
        yield from (record for record in page if matches(query, record, _data_matches))
        next_after = (getattr(page[-1], column), page[-1].id)
        if next_after == after:  # the damaged time of this record stands for another one
            return
        after, size = next_after, min(size * 2, largest)


def _without_data(query: Query) -> Query:
    """Return the query with TRUE in the place of each condition on data: what matches the query matches this, too."""
    match query:
        case And(parts=parts):
            return And(tuple(map(_without_data, parts)))
        case Or(parts=parts):
            return Or(tuple(map(_without_data, parts)))
        case Compare(path=path):
            return And(()) if path else query


def _data_matches(compare: Compare, record: Record) -> bool:
    """Return whether the data of the record matches; data that cannot be read is named once."""
    value = json.dumps(compare.value)
    return data_matches(str(record.id), record.data, compare.field, compare.operator.value, value)
