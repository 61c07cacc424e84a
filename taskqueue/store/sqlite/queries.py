"""Queries as SQL: the tree of the filter language as conditions that mean what ``model.query.matches`` says."""

from __future__ import annotations

import functools
import json
import math
import sqlite3
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskqueue.errors import Unreadable, assert_never
from taskqueue.model.ids import JobId
from taskqueue.model.meta import META
from taskqueue.model.query import And, Compare, Operator, Or, Query, data_holds
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.arguments import order_of
from taskqueue.store.reading import name_once
from taskqueue.store.sqlite.columns import COLUMNS
from taskqueue.store.sqlite.counts import FORCED, tally
from taskqueue.store.sqlite.rows import records_of

_COLUMN = {
    "unique": "unique_key",
    "tries": "(failures + crashes + (status IN (2, 3)))",
    "took": "(CASE WHEN status IN (3, 4, 6) THEN (ended_at - started_at) / 1000.0 END)",
}
"""The fields that are no columns of their name, as SQL."""

_SIGNS = {Operator.LT: "<", Operator.LTE: "<=", Operator.GT: ">", Operator.GTE: ">="}
Condition = tuple[str, list[Any]]

_WITH_ID = f"SELECT {COLUMNS} FROM jobs WHERE id = ? LIMIT ?"
_WITH_IDS = f"SELECT {COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?"

_OF_WAITING = {"queue", "status", "rank", "id"}
"""The fields that the index of waiting records has."""

FEW = 5_000
"""The number of records that SQLite sorts within a few milliseconds."""

_STATUS = tuple(f"status = {int(status)}{' AND status > 2' if status.is_final else ''}" for status in Status)
"""The condition of the index of each status: SQLite uses a partial index only if a query repeats its condition."""


def find(
    raw: sqlite3.Connection, query: Query, order: str, limit: int, after: tuple[object, JobId] | None
) -> list[Record]:
    """Return up to ``limit`` matching records by (``order``, id), from behind ``after`` if given."""
    if isinstance(query, Compare) and (query.field, query.operator, order, after) == ("id", Operator.IN, "id", None):
        ids = query.value
        statement, these = (_WITH_ID, ids[0]) if len(ids) == 1 else (_WITH_IDS, json.dumps(ids))
        return records_of(raw.execute(statement, (these, limit)))
    where, values = _condition(query)
    column, falling = order_of(order)
    if after is not None:
        behind, more = _behind(column, falling, after)
        where, values = f"{where} AND {behind}", [*values, *more]
    source = "jobs"
    statuses = _statuses(query)
    children = _children(query)
    if children is not None and _are_few(raw, children):
        source = _only(children)
    elif statuses is not None and _are_few(raw, rows := _rows(statuses, _ended_from(query))):
        source = _only(rows)
    elif statuses == [Status.WAITING] and order == "rank" and _names_queue(query):
        source, values = _first_by_rank(where), [*values, limit] * len(FORCED) + values
    elif statuses is not None and len(statuses) == 1 and column == "ended_at":
        where = f"{_STATUS[statuses[0]]}{_since(_ended_from(query))} AND {where}"
    direction = "DESC" if falling else "ASC"
    statement = f"SELECT {COLUMNS} FROM {source} WHERE {where} ORDER BY {column} {direction}, id {direction} LIMIT ?"
    return records_of(raw.execute(statement, (*values, limit)))


def count(raw: sqlite3.Connection, query: Query) -> int:
    """Return how many records match, from the tally if only queue and status matter."""
    if _fields(query) <= {"queue", "status"}:
        return sum(records for key, records in tally(raw).items() if _holds_for(query, *key))
    where, values = _condition(query)
    statuses = _statuses(query)
    if statuses == [Status.WAITING] and _fields(query) <= _OF_WAITING and _names_queue(query):
        source, where = "jobs", f"{_STATUS[Status.WAITING]} AND {where}"
    else:
        source = "jobs" if statuses is None else _only(_rows(statuses, _ended_from(query)))
    [found] = raw.execute(f"SELECT count(*) FROM {source} WHERE {where}", values).fetchone()
    return int(found)


def _fields(query: Query) -> set[str]:
    """Return the fields that the query names."""
    match query:
        case Compare(field=field):
            return {field}
        case And(parts=parts) | Or(parts=parts):
            return set().union(*map(_fields, parts))
    return assert_never(query)


def _holds_for(query: Query, queue: str, status: Status) -> bool:
    """Return whether a query that names nothing else holds for all records of this queue and status."""
    match query:
        case Compare(field=field):
            return query.holds([queue if field == "queue" else int(status)])
        case And(parts=parts):
            return all(_holds_for(part, queue, status) for part in parts)
        case Or(parts=parts):
            return any(_holds_for(part, queue, status) for part in parts)
    return assert_never(query)


def _statuses(query: Query) -> list[int] | None:
    """Return the statuses that a record must have one of to match; None if the query does not restrict them."""
    match query:
        case Compare(field="status"):
            return [int(status) for status in Status if query.holds([int(status)])]
        case And(parts=parts):
            restricted = [found for found in map(_statuses, parts) if found is not None]
            return None if not restricted else [one for one in restricted[0] if all(one in each for each in restricted)]
    return None


def _ended_from(query: Query) -> int | None:
    """Return the earliest end that a record can have to match; None if the query says nothing of it."""
    match query:
        case Compare(field="ended_at", operator=Operator.GTE, value=int(earliest)):
            return earliest
        case Compare(field="ended_at", operator=Operator.GT, value=int(before)):
            return before + 1
        case And(parts=parts):
            return max((found for found in map(_ended_from, parts) if found is not None), default=None)
    return None


def _children(query: Query) -> str | None:
    """Return the selection of the children of a job, by their index; None if the query is not for those of one job."""
    match query:
        case Compare(field="parent", operator=Operator.EQ, value=str(parent)) if JobId.is_valid(parent):
            return f"SELECT rowid AS number FROM jobs WHERE parent = '{JobId(parent)}'"
        case And(parts=parts):
            return next((found for found in map(_children, parts) if found is not None), None)
    return None


def _are_few(raw: sqlite3.Connection, rows: str) -> bool:
    """Return whether these are so few records that sorting them is cheaper than walking all in order.

    SQLite knows no sizes and walks all records by id, which takes a second where a million are finished.
    """
    some = f"SELECT 1 FROM ({rows}) LIMIT 1 OFFSET {FEW}"
    return raw.execute(some).fetchone() is None


def _only(rows: str) -> str:
    """Return a source of these records alone, each found by the index of its status."""
    return f"({rows}) CROSS JOIN jobs ON jobs.rowid = number"


def _rows(statuses: Sequence[int], ended_from: int | None) -> str:
    """Return the selection of records with these statuses that ended no earlier than this, by indexes alone."""
    since = _since(ended_from)
    selects = [f"SELECT rowid AS number FROM jobs WHERE {_STATUS[status]}{since}" for status in statuses]
    return " UNION ALL ".join(selects) or "SELECT 0 AS number WHERE 0"


def _since(ended_from: int | None) -> str:
    return "" if ended_from is None else f" AND ended_at >= {ended_from}"


def _names_queue(query: Query) -> bool:
    """Return whether only jobs of one queue match."""
    match query:
        case Compare(field="queue", operator=Operator.EQ, value=str()):
            return True
        case And(parts=parts):
            return any(map(_names_queue, parts))
    return False


def _first_by_rank(where: str) -> str:
    """Return a source of the first waiting records of a queue by rank: the first of each kind in the index."""
    waiting = f"SELECT rowid AS number FROM jobs WHERE {_STATUS[Status.WAITING]} AND forced = {{}} AND {where}"
    selects = [f"SELECT * FROM ({waiting.format(forced)} ORDER BY rank, id LIMIT ?)" for forced in FORCED]
    return _only(" UNION ALL ".join(selects))


def data_matches(id: str, data: str, field: str, operator: str, value: str) -> bool:
    """Return whether the data holds; the SQL function of this name. Data that cannot be read does not."""
    try:
        return data_holds(_compare(field, operator, value), data)
    except Unreadable as error:
        name_once(f"the data of job {id}", str(error))
        return False


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
            return "data_matches(id, data, ?, ?, ?)", [query.field, query.operator.value, json.dumps(query.value)]
        case Compare():
            return _field(query)


def _joined(word: str, parts: tuple[Query, ...], nothing: str) -> Condition:
    conditions = [_condition(part) for part in parts]
    if not conditions:
        return nothing, []
    return f"({word.join(text for text, _ in conditions)})", [value for _, values in conditions for value in values]


def _field(compare: Compare) -> Condition:
    column, value = _column(compare), compare.value
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


def _column(compare: Compare) -> str:
    """Return the field as SQL; a key of the meta has no character that SQL or JSON would read otherwise."""
    if compare.meta_key is None:
        return _COLUMN.get(compare.field, compare.field)
    return f"(CASE WHEN json_valid(given) THEN json_extract(given, '$.{META}.\"{compare.meta_key}\"') END)"


def _tags(compare: Compare) -> Condition:
    value = compare.value
    some = "EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(tags) THEN tags END) WHERE {})"
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
    if len(value) == 1 and value[0] is not None:  # a wait for one job
        return f"{column} = ?", [_bound(value[0])]
    among = f"{column} IN (SELECT value FROM json_each(?))"
    text = json.dumps([_finite(_bound(item)) for item in value if item is not None and item == item])
    return (f"({among} OR {column} IS NULL)" if None in value else among), [text]


def _bound(value: Any) -> Any:
    """Return the value as SQLite takes it; whole numbers beyond 64 bits equal nothing that is kept."""
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _finite(value: Any) -> Any:
    """Return the value as JSON writes it: the largest number for an infinite one, which equals nothing that is kept."""
    return math.copysign(sys.float_info.max, value) if value in (math.inf, -math.inf) else value


def _behind(column: str, falling: bool, after: tuple[object, JobId]) -> Condition:
    """Return the condition for later records; missing values (of ``ended_at``) come first, as the smallest."""
    at, id = after
    beyond = "<" if falling else ">"
    if column == "id":
        return f"id {beyond} ?", [str(id)]
    value = milliseconds(at) if isinstance(at, datetime) else at
    if value is None:
        none = f"({column} IS NULL AND id {beyond} ?)"
        return (none if falling else f"({none} OR {column} IS NOT NULL)"), [str(id)]
    more = f"({column} {beyond}= ? AND ({column} {beyond} ? OR id {beyond} ?))"
    if falling and column == "ended_at":
        more = f"({more} OR {column} IS NULL)"
    return more, [value, value, str(id)]
