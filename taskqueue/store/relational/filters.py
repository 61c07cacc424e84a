"""A query as an SQL condition that means what ``model.query.matches`` says; where SQL cannot, the model decides."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from taskqueue.errors import Unreadable
from taskqueue.model.ids import ID_TEXT, WORKFLOW, JobId
from taskqueue.model.meta import META
from taskqueue.model.query import And, Compare, Operator, Or, Query, data_holds, matches
from taskqueue.model.reading import name_once
from taskqueue.model.record import Record
from taskqueue.store.arguments import order_of
from taskqueue.store.relational.columns import in_json

_COLUMN = {
    "id_text": in_json("given", ID_TEXT),
    "workflow": in_json("given", WORKFLOW),
    "unique": "unique_key",
    "tries": "(failures + crashes + CASE WHEN status IN (2, 3) THEN 1 ELSE 0 END)",
    "error.type": in_json("error", "type"),
    "error.message": in_json("error", "message"),
    "took": "(CASE WHEN status IN (3, 4, 6) THEN (ended_at - started_at) / 1000.0 END)",
}
"""The fields that are not columns of their name, as SQL."""

_SIGNS = {Operator.LT: "<", Operator.LTE: "<=", Operator.GT: ">", Operator.GTE: ">="}
Condition = tuple[str, list[Any]]


def condition_of(query: Query) -> Condition:
    """Return the condition for a query."""
    match query:
        case And(parts=parts):
            return _joined(" AND ", parts, "TRUE")
        case Or(parts=parts):
            return _joined(" OR ", parts, "FALSE")
        case Compare(field="waiting_for", operator=Operator.EQ, value=str(id)):
            return "id IN (SELECT job FROM waits WHERE awaited = ?)", [id]
        case Compare(field="tags" | "waiting_for"):
            return _list(query)
        case Compare(path=path) if path:
            return "data_matches(id, data, ?, ?, ?)", [query.field, query.operator.value, json.dumps(query.value)]
        case Compare():
            return _field(query)


def _joined(word: str, parts: tuple[Query, ...], nothing: str) -> Condition:
    conditions = [condition_of(part) for part in parts]
    if not conditions:
        return nothing, []
    return f"({word.join(text for text, _ in conditions)})", [value for _, values in conditions for value in values]


def _field(compare: Compare) -> Condition:
    column, value = _column(compare), compare.value
    match compare.operator:
        case Operator.EXISTS:
            return f"{column} IS {'NOT ' if value else ''}NULL", []
        case Operator.EQ:
            return (f"{column} IS NULL", []) if value is None else (f"{column} = ?", [_bound(value)])
        case Operator.NE if value is None:
            return f"{column} IS NOT NULL", []
        case Operator.NE:
            return f"({column} <> ? OR {column} IS NULL)", [_bound(value)]
        case Operator.IN:
            return _among(column, value)
        case Operator.CONTAINS:
            return f"coalesce(instr({column}, ?) > 0, FALSE)", [value]
    return f"coalesce({column} {_SIGNS[compare.operator]} ?, FALSE)", [_bound(value)]


def _column(compare: Compare) -> str:
    """Return the field as SQL; a key of the meta has no character that SQL or JSON would read otherwise."""
    if compare.meta_key is None:
        return _COLUMN.get(compare.field, compare.field)
    return in_json("given", f'{META}."{compare.meta_key}"')


def _list(compare: Compare) -> Condition:
    column, value = compare.field, compare.value
    some = f"EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid({column}) THEN {column} END) WHERE {{}})"
    match compare.operator:
        case Operator.EXISTS:
            return f"{column} IS {'NOT ' if value else ''}NULL", []
        case Operator.EQ | Operator.NE if value is None:
            return f"{column} IS {'NOT ' if compare.operator is Operator.NE else ''}NULL", []
        case Operator.EQ:
            return some.format("value = ?"), [value]
        case Operator.NE:
            return f"NOT {some.format('value = ?')}", [value]
        case Operator.IN:
            text, values = _among("value", tuple(item for item in value if item is not None))
            return (f"({some.format(text)} OR {column} IS NULL)" if None in value else some.format(text)), values
        case Operator.CONTAINS:
            return some.format("instr(value, ?) > 0"), [value]
    return some.format(f"value {_SIGNS[compare.operator]} ?"), [value]


def _among(column: str, value: tuple[Any, ...]) -> Condition:
    if len(value) == 1 and value[0] is not None:  # as a wait for one job asks
        return f"{column} = ?", [_bound(value[0])]
    among = f"{column} IN (SELECT value FROM json_each(?))"
    text = json.dumps([_finite(_bound(item)) for item in value if item is not None and item == item])
    return (f"({among} OR {column} IS NULL)" if None in value else among), [text]


def _bound(value: Any) -> Any:
    """Return the value as SQLite takes it; whole numbers beyond 64 bits equal no stored value."""
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _finite(value: Any) -> Any:
    """Return the value as JSON writes it: the largest number for an infinite one, which equals no stored value."""
    return math.copysign(sys.float_info.max, value) if value in (math.inf, -math.inf) else value


def data_matches(id: str, data: str, field: str, operator: str, value: str) -> bool:
    """Return whether the data matches, as an SQL function; unreadable data does not."""
    try:
        return data_holds(_compare(field, operator, value), data)
    except Unreadable as error:
        name_once(f"the data of job {id}", str(error))
        return False


@functools.lru_cache(maxsize=256)
def _compare(field: str, operator: str, value: str) -> Compare:
    operand = json.loads(value)
    return Compare(field, Operator(operator), tuple(operand) if isinstance(operand, list) else operand)


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
    """Yield the records that match, in this order; ``read`` reads a page of a query.

    For a database that has no function for a condition on data: the model decides. The rest of the query narrows what
    is read, page by page, until enough records match.
    """
    wider, (size, largest), column = _without_data(query), PAGES, order_of(order)[0]
    while page := read(wider, size, after):
        yield from (record for record in page if matches(query, record, _data_matches))
        next_after = (getattr(page[-1], column), page[-1].id)
        if next_after == after:  # the damaged time of this record is read as another one
            return
        after, size = next_after, min(size * 2, largest)


def _without_data(query: Query) -> Query:
    """Return the query with TRUE for each condition on data: whatever matches the query matches this one, too."""
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
