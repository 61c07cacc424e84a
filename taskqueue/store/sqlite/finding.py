"""Queries as SQL: the tree of the filter language as conditions that mean what ``model.query.matches`` says."""

from __future__ import annotations

import functools
import json
import sqlite3
from datetime import datetime
from typing import Any

from taskqueue.model.query import And, Compare, Operator, Or, Query, data_holds
from taskqueue.model.record import JobId, Record, Status, milliseconds
from taskqueue.store.sqlite.rows import COLUMNS, record

_COLUMN = {"unique": "unique_key"}
_SIGNS = {Operator.LT: "<", Operator.LTE: "<=", Operator.GT: ">", Operator.GTE: ">="}
Condition = tuple[str, list[Any]]


def find(
    raw: sqlite3.Connection, query: Query, order: str, limit: int, after: tuple[object, JobId] | None
) -> list[Record]:
    """Return up to ``limit`` matching records by (``order``, id), from behind ``after`` if given."""
    where, values = _condition(query)
    column, falling = order.removeprefix("-"), order.startswith("-")
    if column not in ("id", "created_at", "ended_at", "rank"):
        raise ValueError(f"order={order!r}: use id, created_at, ended_at or rank, with a '-' before it to descend")
    if after is not None:
        behind, more = _behind(column, falling, after)
        where, values = f"{where} AND {behind}", [*values, *more]
    direction = "DESC" if falling else "ASC"
    statement = f"SELECT {COLUMNS} FROM jobs WHERE {where} ORDER BY {column} {direction}, id {direction} LIMIT ?"
    return [record(row) for row in raw.execute(statement, (*values, limit))]


def count(raw: sqlite3.Connection, query: Query) -> int:
    """Return how many records match."""
    where, values = _condition(query)
    [found] = raw.execute(f"SELECT count(*) FROM jobs WHERE {where}", values).fetchone()
    return int(found)


def data_matches(data: str, field: str, operator: str, value: str) -> bool:
    """Tell whether the data holds; the SQL function of this name."""
    return data_holds(_compare(field, operator, value), data)


@functools.lru_cache(maxsize=256)
def _compare(field: str, operator: str, value: str) -> Compare:
    operand = json.loads(value)
    return Compare(field, Operator(operator), tuple(operand) if isinstance(operand, list) else operand)


def _condition(query: Query) -> Condition:
    match query:
        case And(parts=parts):
            return _joined(" AND ", parts, "1")
        case Or(parts=parts):
            return _joined(" OR ", parts, "0")
        case Compare(field="tags"):
            return _tags(query)
        case Compare(path=path) if path:
            return "data_matches(data, ?, ?, ?)", [query.field, query.operator.value, json.dumps(query.value)]
        case Compare():
            return _field(query)


def _joined(word: str, parts: tuple[Query, ...], nothing: str) -> Condition:
    conditions = [_condition(part) for part in parts]
    if not conditions:
        return nothing, []
    return f"({word.join(text for text, _ in conditions)})", [value for _, values in conditions for value in values]


def _field(compare: Compare) -> Condition:
    column, value = _COLUMN.get(compare.field, compare.field), compare.value
    if compare.field == "status":
        return _status(compare)
    match compare.operator:
        case Operator.EXISTS:
            return f"{column} IS {'NOT ' if value else ''}NULL", []
        case Operator.EQ:
            return f"{column} IS ?", [_bound(value)]
        case Operator.NE:
            return f"{column} IS NOT ?", [_bound(value)]
        case Operator.IN:
            return _among(column, value)
    return f"ifnull({column} {_SIGNS[compare.operator]} ?, 0)", [_bound(value)]


def _status(compare: Compare) -> Condition:
    """Return the statuses that match one by one: SQLite finds each by an index of its own, but no range of them."""
    matching = [int(status) for status in Status if compare.holds([int(status)])]
    return f"({' OR '.join(f'status = {status}' for status in matching) or '0'})", []


def _tags(compare: Compare) -> Condition:
    value = compare.value
    some = "EXISTS (SELECT 1 FROM json_each(tags) WHERE {})"
    match compare.operator:
        case Operator.EXISTS:
            return f"tags IS {'NOT ' if value else ''}NULL", []
        case Operator.EQ | Operator.NE if value is None:
            return f"tags IS {'NOT ' if compare.operator is Operator.NE else ''}NULL", []
        case Operator.EQ:
            return some.format("value = ?"), [value]
        case Operator.NE:
            return f"NOT {some.format('value = ?')}", [value]
        case Operator.IN:
            text, values = _among("value", tuple(item for item in value if item is not None))
            return (f"({some.format(text)} OR tags IS NULL)" if None in value else some.format(text)), values
    return some.format(f"value {_SIGNS[compare.operator]} ?"), [value]


def _among(column: str, value: tuple[Any, ...]) -> Condition:
    among = f"{column} IN (SELECT value FROM json_each(?))"
    text = json.dumps([_bound(item) for item in value if item is not None])
    return (f"({among} OR {column} IS NULL)" if None in value else among), [text]


def _bound(value: Any) -> Any:
    """Return the value as SQLite takes it; whole numbers beyond 64 bits equal nothing that is kept."""
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _behind(column: str, falling: bool, after: tuple[object, JobId]) -> Condition:
    """Return the condition for what comes after; missing values come first, as the smallest."""
    at, id = after
    beyond = "<" if falling else ">"
    if column == "id":
        return f"id {beyond} ?", [str(id)]
    same = f"({column} IS ? AND id {beyond} ?)"
    value = milliseconds(at) if isinstance(at, datetime) else at
    if value is None:
        return (same if falling else f"({same} OR {column} IS NOT NULL)"), [value, str(id)]
    more = f"{column} {beyond} ?" + (f" OR {column} IS NULL" if falling else "")
    return f"({same} OR {more})", [value, str(id), value]
