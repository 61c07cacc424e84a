"""Finds and counts records, by the indexes that take the fewest steps."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskqueue.model.ids import JobId
from taskqueue.model.query import And, Compare, Operator, Query
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.arguments import order_of
from taskqueue.store.query_bounds import ended_from, fields_of, holds_for, names_queue, statuses_of
from taskqueue.store.sqlite.columns import COLUMNS
from taskqueue.store.sqlite.counts import FORCED, tally, waiting_queues
from taskqueue.store.sqlite.filters import Condition, condition_of
from taskqueue.store.sqlite.rows import records_of

_WITH_ID = f"SELECT {COLUMNS} FROM jobs WHERE id = ? LIMIT ?"
_WITH_IDS = f"SELECT {COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?"

_NONE = "SELECT 0 AS number WHERE 0"

_OF_WAITING = {"queue", "status", "rank", "id"}
"""The fields that the index of waiting records has."""

FEW = 5_000
"""The number of records that SQLite sorts within a few milliseconds."""

MERGED = 50
"""So many queues are read in the order of their indexes; SQLite takes up to 500 selections at once."""

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
    where, values = condition_of(query)
    column, falling = order_of(order)
    if after is not None:
        behind, more = _behind(column, falling, after)
        where, values = f"{where} AND {behind}", [*values, *more]
    source = "jobs"
    statuses = statuses_of(query)
    children = _children(query)
    if children is not None and _are_few(raw, children):
        source = _only(children)
    elif column == "ended_at":
        found = _by_end(raw, query, (where, values), falling, limit)
        if statuses is not None or len(found) == limit:  # else one may have a damaged status
            return found
    elif column == "rank" and statuses:
        return _first_of_all(raw, _firsts(raw, query, statuses, where, falling), (where, values), order, limit)
    elif statuses is not None and _are_few(raw, rows := _rows(statuses, ended_from(query))):
        source = _only(rows)
    elif statuses is not None and max(statuses) <= Status.PROCESSING and order == "created_at":
        source = _only(rows)  # they are newer than most of the others
    return _found(raw, source, where, _ordered(column, falling), [*values, limit])


def _by_end(raw: sqlite3.Connection, query: Query, condition: Condition, falling: bool, limit: int) -> list[Record]:
    """Return the first by end: ended ones of each status by their index, and those without an end by their ids."""
    where, values = condition
    statuses = statuses_of(query)
    wanted = list(Status) if statuses is None else statuses
    final = [status for status in wanted if status > Status.PROCESSING]
    pending = [int(status) for status in wanted if status <= Status.PROCESSING]
    found: list[Record] = []
    for is_final in (True, False) if falling else (False, True):
        left = limit - len(found)
        if is_final and left:
            found += _ended(raw, query, final, condition, falling, left)
        elif left and pending:
            among = f"+status IN ({', '.join(map(str, pending))}) AND {where}"  # the last ids are mostly theirs
            source = "jobs" if falling else _only(_rows(pending, None))
            found += _found(raw, source, among, _ordered("id", falling), [*values, left])
    return found


def _ended(
    raw: sqlite3.Connection, query: Query, statuses: Sequence[int], condition: Condition, falling: bool, limit: int
) -> list[Record]:
    """Return the first of these statuses by end, each walked in its index as far as it may be among the first of all.

    So a status whose jobs rarely match is not walked back to its beginning where another one has enough.
    """
    where, values = condition
    since, bound, order = _since(ended_from(query)), "", _ordered("ended_at", falling)
    found: list[tuple[Any, int]] = []
    for status in statuses:
        select = f"SELECT ended_at, rowid FROM jobs WHERE {_STATUS[status]}{since}{bound} AND {where} ORDER BY {order}"
        found += raw.execute(f"{select} LIMIT ?", (*values, limit)).fetchall()
        ends = sorted((end for end, _ in found if isinstance(end, int)), reverse=True)
        if falling and len(ends) >= limit:
            bound = f" AND ended_at >= {ends[limit - 1]}"
    rows = _only(f"SELECT value AS number FROM json_each('{json.dumps([number for _, number in found])}')")
    return _found(raw, rows, "1", order, [limit])


def _first_of_all(
    raw: sqlite3.Connection, selects: Sequence[str], condition: Condition, order: str, limit: int
) -> list[Record]:
    """Return the first of what these selections have in this order."""
    where, values = condition
    source = _only(" UNION ALL ".join(f"SELECT * FROM ({select} LIMIT ?)" for select in selects) or _NONE)
    of_each = [value for _ in selects for value in (*values, limit)]
    return _found(raw, source, where, _ordered(*order_of(order)), [*of_each, *values, limit])


def _found(raw: sqlite3.Connection, source: str, where: str, order: str, values: Sequence[Any]) -> list[Record]:
    return records_of(raw.execute(f"SELECT {COLUMNS} FROM {source} WHERE {where} ORDER BY {order} LIMIT ?", values))


def count(raw: sqlite3.Connection, query: Query) -> int:
    """Return how many records match, from the tally if only queue and status matter."""
    if fields_of(query) <= {"queue", "status"}:
        return sum(records for key, records in tally(raw).items() if holds_for(query, *key))
    where, values = condition_of(query)
    statuses = statuses_of(query)
    if statuses == [Status.WAITING] and fields_of(query) <= _OF_WAITING and names_queue(query):
        source, where = "jobs", f"{_STATUS[Status.WAITING]} AND {where}"
    elif statuses is None or (_names_begin(query) and not _are_few(raw, _rows(statuses, ended_from(query)))):
        source = "jobs"
    else:
        source = _only(_rows(statuses, ended_from(query)))
    [found] = raw.execute(f"SELECT count(*) FROM {source} WHERE {where}", values).fetchone()
    return int(found)


def _names_begin(query: Query) -> bool:
    """Return whether only jobs match that were added after some time: they are found by its index."""
    match query:
        case Compare(field="created_at", operator=Operator.GT | Operator.GTE):
            return True
        case And(parts=parts):
            return any(map(_names_begin, parts))
    return False


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
    return " UNION ALL ".join(selects) or _NONE


def _since(ended_from: int | None) -> str:
    return "" if ended_from is None else f" AND ended_at >= {ended_from}"


def _firsts(raw: sqlite3.Connection, query: Query, statuses: Sequence[int], where: str, falling: bool) -> list[str]:
    """Return selections whose first rows are the first of all by rank, waiting ones by the index with their order."""
    found = []
    for status in statuses:
        conditions = [_STATUS[status]]
        if status == Status.WAITING:
            queues = _queues_in_order(raw, query)
            conditions = [f"{_STATUS[status]}{queue} AND forced = {kind}" for queue in queues for kind in FORCED]
        found += [
            f"SELECT rowid AS number FROM jobs WHERE {condition} AND {where} ORDER BY {_ordered('rank', falling)}"
            for condition in conditions
        ]
    return found


def _queues_in_order(raw: sqlite3.Connection, query: Query) -> list[str]:
    """Return a condition for each queue whose waiting jobs are to be merged; one for all where they are too many."""
    if names_queue(query):
        return [""]
    queues = waiting_queues(raw)
    if len(queues) > MERGED:
        return [""]
    return [" AND queue = '{}'".format(queue.replace("'", "''")) for queue in queues]


def _ordered(column: str, falling: bool) -> str:
    direction = "DESC" if falling else "ASC"
    return f"id {direction}" if column == "id" else f"{column} {direction}, id {direction}"


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
