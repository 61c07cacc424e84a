"""Finds and counts records, with the indexes that take the fewest steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from taskqueue.model.ids import WORKFLOW, JobId
from taskqueue.model.query import And, Compare, Operator, Query
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.arguments import order_of
from taskqueue.store.query_bounds import (
    bounds_of,
    compared_fields,
    fields_of,
    has_field,
    holds_for,
    queue_of,
    statuses_of,
)
from taskqueue.store.relational.columns import COLUMNS, in_json
from taskqueue.store.relational.counts import FORCED, one_state, tally, waiting_queues
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.filters import After, Condition, condition_of, matching, names_data
from taskqueue.store.relational.rows import records_of

_WITH_ID = f"SELECT {COLUMNS} FROM jobs WHERE id = ? LIMIT ?"
_WITH_IDS = f"SELECT {COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?"

_NONE = "SELECT rowid AS number FROM jobs WHERE FALSE"

_OF_WAITING = {"queue", "status", "rank", "id"}
"""The fields that the index of waiting records has."""

_INDEXES = {"id": "sqlite_autoindex_jobs_1", "created_at": "jobs_created"}
"""The index over all records for each order that has one."""

_SELECTIVE = {"id", "id_text", "parent", "workflow", "waiting_for"}
"""Fields whose values are rare: matching records are found through the index and sorted."""

_RELATED = {"parent": "parent", "workflow": in_json("given", WORKFLOW)}
"""Fields with the id of a related job, as SQL that has an index."""

WALKED = 1_000
"""The number of records that are read in order at first."""

FEW = 5_000
"""The number of records that SQLite sorts within a few milliseconds."""

MERGED = 50
"""Maximum number of queues read in the order of their indexes; SQLite takes up to 500 selections in one statement."""

_STATUS = tuple(f"status = {int(status)}{' AND status > 2' if status.is_final else ''}" for status in Status)
"""The condition of the index of each status: SQLite uses a partial index only if a query repeats its condition."""


_OF_PENDING = {
    int(Status.WAITING): "jobs_waiting",
    int(Status.POSTPONED): "jobs_postponed",
    int(Status.PROCESSING): "jobs_running",
}
"""The index of the records of each status that is not final."""


def find(
    database: Database, query: Query, *, order: str = "id", limit: int = 100, after: tuple[object, JobId] | None = None
) -> list[Record]:
    """Return up to ``limit`` matching records by (``order``, id), after ``after`` if given."""
    if isinstance(query, Compare) and (query.field, query.operator, order, after) == ("id", Operator.IN, "id", None):
        ids = query.value
        statement, these = (_WITH_ID, ids[0]) if len(ids) == 1 else (_WITH_IDS, json.dumps(ids))
        return records_of(database.execute(statement, (these, limit)))
    with one_state(database):
        if not database.evaluates_data and names_data(query):
            return list(islice(_matching(database, query, order, after), limit))
        return _find(database, query, order, limit, after)


def _matching(database: Database, query: Query, order: str, after: After | None) -> Iterator[Record]:
    return matching(lambda wider, size, following: _find(database, wider, order, size, following), query, order, after)


def _find(database: Database, query: Query, order: str, limit: int, after: tuple[object, JobId] | None) -> list[Record]:
    column, falling = order_of(order)
    where, values = condition_of(query)
    where = f"{_added(query)} AND {where}" if column == "created_at" else where
    following, more = ("TRUE", []) if after is None else _following(column, falling, after)
    condition = f"{where} AND {following}", [*values, *more]
    statuses, related = _statuses(database, query), _related(query)
    if _has_text(query):
        text, bound = condition
        return _found(database, _only(f"SELECT rowid AS number FROM jobs WHERE {text}"), ("TRUE", bound), order, limit)
    if related is not None and _are_few(database, related):
        return _found(database, _only(related), condition, order, limit)
    if column == "ended_at":
        newest_ended = _by_end(database, query, condition, falling, limit)
        if statuses is not None or len(newest_ended) == limit:  # otherwise a record may have a damaged status
            return newest_ended
    elif column == "rank" and statuses:
        return _first_of_all(
            database, _firsts(database, query, statuses, condition[0], falling), condition, order, limit
        )
    elif statuses is not None:
        if _are_few(database, _rows(query, statuses)):
            return _sorted(database, query, statuses, condition, order, limit)
        if column in _INDEXES and not compared_fields(query) & _SELECTIVE:
            return _in_order(database, query, statuses, (where, values), order, limit, (following, more))
    return _found(database, "jobs", condition, order, limit)


def _statuses(database: Database, query: Query) -> list[int] | None:
    """Return the statuses that matching records may have, None for any; for a queue, those in the tally."""
    statuses, fields = statuses_of(query), fields_of(query)
    if "queue" in fields and fields <= {"queue", "status"} and (statuses is None or len(statuses) > 1):
        return sorted({int(status) for queue, status in tally(database) if holds_for(query, queue, status)})
    return statuses


def _in_order(
    database: Database,
    query: Query,
    statuses: Sequence[int],
    condition: Condition,
    order: str,
    limit: int,
    following: Condition,
) -> list[Record]:
    """Return the first in this order: walk all records in order, more at each step, and finally sort the rest.

    It is not known how many others precede the first of these statuses, so only some are walked.
    """
    column, falling = order_of(order)
    where, values = condition
    source = f"jobs INDEXED BY {_INDEXES[column]}"
    within = _added(query) if column == "created_at" else "TRUE"
    edges = f"SELECT {column}, id FROM {source} WHERE {{}} AND {within} ORDER BY {_ordered(order)} LIMIT 1 OFFSET {{}}"
    begin, begins = following
    records: list[Record] = []
    step, walked, most = WALKED, 0, WALKED
    while True:
        edge = database.execute(edges.format(begin, step), begins).fetchone()
        end, ends = ("TRUE", []) if edge is None else _up_to(column, falling, edge)
        among = f"{begin} AND {end} AND {where}", [*begins, *ends, *values]
        records += _found(database, source, among, order, limit - len(records))
        if edge is None or len(records) == limit:
            return records
        begin, begins = _following(column, falling, edge)
        most = most if walked else max(WALKED, _worth_walking(database, query, statuses, falling))
        walked += step
        if walked >= most:
            rest = f"{begin} AND {where}", [*begins, *values]
            return records + _sorted(database, query, statuses, rest, order, limit - len(records))
        step = walked


def _worth_walking(database: Database, query: Query, statuses: Sequence[int], falling: bool) -> int:
    """Return how many records to walk in order before sorting those of these statuses: half as many.

    None if they are few, pending, and the oldest are wanted: most other records were added before them.
    """
    counted, queue = tally(database), queue_of(query)
    sorted_ones = sum(
        number
        for (name, status), number in counted.items()
        if status in statuses and (queue in (None, name) or status is not Status.WAITING)
    )
    are_last = not falling and max(statuses) <= Status.PROCESSING and sorted_ones * 8 < sum(counted.values())
    return 0 if are_last else sorted_ones // 2


def _by_end(database: Database, query: Query, condition: Condition, falling: bool, limit: int) -> list[Record]:
    """Return the first by end: ended records of each status through their index, records without an end by id."""
    statuses = statuses_of(query)
    searched = list(Status) if statuses is None else statuses
    final = [status for status in searched if status > Status.PROCESSING]
    pending = [int(status) for status in searched if status <= Status.PROCESSING]
    where, values = condition
    without_end = f"+status IN ({', '.join(map(str, pending))}) AND {where}", values
    records: list[Record] = []
    for is_final in (True, False) if falling else (False, True):
        room = limit - len(records)
        if is_final and room:
            records += _ended(database, query, final, condition, falling, room)
        elif room and pending:
            by_id = "-id" if falling else "id"
            records += _in_order(database, query, pending, without_end, by_id, room, ("TRUE", []))
    return records


def _ended(
    database: Database, query: Query, statuses: Sequence[int], condition: Condition, falling: bool, limit: int
) -> list[Record]:
    """Return the first of these statuses by end, walking the index of each only as far as it can contribute.

    So a status whose jobs rarely match is not walked to its beginning if another one has enough.
    """
    where, values = condition
    within, bound, order = _ended_within(query), "", _ordered("-ended_at" if falling else "ended_at")
    ends_and_rows: list[tuple[Any, int]] = []
    for status in statuses:
        select = f"SELECT ended_at, rowid FROM jobs WHERE {_STATUS[status]}{within}{bound} AND {where} ORDER BY {order}"
        ends_and_rows += database.execute(f"{select} LIMIT ?", (*values, limit)).fetchall()
        ends = sorted((end for end, _ in ends_and_rows if isinstance(end, int)), reverse=True)
        if falling and len(ends) >= limit:
            bound = f" AND ended_at >= {ends[limit - 1]}"
    rows = _only(f"SELECT value AS number FROM json_each('{json.dumps([number for _, number in ends_and_rows])}')")
    return _found(database, rows, ("TRUE", []), "-ended_at" if falling else "ended_at", limit)


def _first_of_all(
    database: Database, selects: Sequence[str], condition: Condition, order: str, limit: int
) -> list[Record]:
    """Return the first records of these selections in this order."""
    where, values = condition
    source = _only(
        " UNION ALL ".join(
            f"SELECT * FROM ({select} LIMIT ?) AS first{number}" for number, select in enumerate(selects)
        )
        or _NONE
    )
    of_each = [value for _ in selects for value in (*values, limit)]
    return _found(database, source, (where, [*of_each, *values]), order, limit)


def _sorted(
    database: Database, query: Query, statuses: Sequence[int], condition: Condition, order: str, limit: int
) -> list[Record]:
    """Return the first of all records with these statuses in this order: what is sorted are keys, not whole records."""
    where, values = condition
    column, _ = order_of(order)
    keys = "id" if column == "id" else f"{column}, id"
    selects = [
        f"SELECT rowid AS number, {keys} FROM jobs INDEXED BY {index} WHERE {of_status} AND {where}"
        for index, of_status in _ranges(query, statuses)
    ]
    if not selects:
        return []
    firsts = f"SELECT number FROM ({' UNION ALL '.join(selects)}) AS keys ORDER BY {_ordered(order)} LIMIT ?"
    return _found(database, _only(firsts), ("TRUE", [*values * len(selects), limit]), order, limit)


def _found(database: Database, source: str, condition: Condition, order: str, limit: int) -> list[Record]:
    where, values = condition
    select = f"SELECT {COLUMNS} FROM {source} WHERE {where} ORDER BY {_ordered(order)} LIMIT ?"
    return records_of(database.execute(select, (*values, limit)))


def time_after(
    database: Database, order: str, steps: int, statuses: Sequence[int], after: tuple[object, JobId] | None = None
) -> datetime | None:
    """Return the time up to which a search must look at more than this many records; None if there are fewer."""
    column, falling = order_of(order)
    begin, begins = ("TRUE", []) if after is None else _following(column, falling, after)
    sources = (
        [f"jobs INDEXED BY {_INDEXES[column]} WHERE TRUE"]
        if column in _INDEXES
        else [f"jobs WHERE {_STATUS[status]}" for status in statuses]
    )
    direction = "DESC" if falling else "ASC"
    places = (
        database.execute(
            f"SELECT {column} FROM {source} AND {begin} ORDER BY {column} {direction} LIMIT 1 OFFSET {int(steps)}",
            begins,
        ).fetchone()
        for source in sources
    )
    times = [row[0] for row in places if row is not None and isinstance(row[0], int)]
    return moment((max if falling else min)(times)) if times else None


def count(database: Database, query: Query, most: int | None = None) -> int:
    """Return how many records match, ``most`` at most, from the tally if only queue and status matter."""
    if fields_of(query) <= {"queue", "status"}:
        number = sum(records for key, records in tally(database).items() if holds_for(query, *key))
        return number if most is None else min(number, most)
    with one_state(database):
        if not database.evaluates_data and names_data(query):
            return sum(1 for _ in islice(_matching(database, query, "id", None), most))
        where, values = condition_of(query)
        source, narrowed = _counted_among(database, query)
        matching = f"FROM {source} WHERE {narrowed} AND {where}"
        if most is not None:
            matching, values = f"FROM (SELECT 1 {matching} LIMIT ?) AS found", [*values, most]
        [number] = database.execute(f"SELECT count(*) {matching}", values).fetchone()
    return int(number)


def _counted_among(database: Database, query: Query) -> tuple[str, str]:
    """Return the source of a count, and a condition that the records of the query meet."""
    fields, statuses, related = fields_of(query), statuses_of(query), _related(query)
    earliest, _ = bounds_of("created_at", query)
    if related is not None:
        return _only(related), "TRUE"
    if statuses == [Status.WAITING] and fields <= _OF_WAITING and queue_of(query) is not None:
        _, latest = bounds_of("rank", query)
        first = "" if latest is None else f" AND forced IN {tuple(FORCED)} AND rank <= {latest}"
        return "jobs", _STATUS[Status.WAITING] + first
    rows = None if statuses is None else _rows(query, statuses)
    if rows is not None and (earliest is None or _are_few(database, rows)):
        return _only(rows), "TRUE"
    if earliest is None or compared_fields(query) & _SELECTIVE:
        return "jobs", "TRUE"
    return f"jobs INDEXED BY {_INDEXES['created_at']}", _added(query)


def _related(query: Query) -> str | None:
    """Return the selection of a job's children, or of a workflow's members, through their index; None for others."""
    match query:
        case Compare(field="parent" | "workflow" as field, operator=Operator.EQ, value=str(id)) if JobId.is_valid(id):
            return f"SELECT rowid AS number FROM jobs WHERE {_RELATED[field]} = '{JobId(id)}'"
        case And(parts=parts):
            return next((related for related in map(_related, parts) if related is not None), None)
    return None


def _has_text(query: Query) -> bool:
    """Return whether all matching records have a given text as id: these are few."""
    match query:
        case Compare(field="id_text", operator=Operator.EQ, value=str()):
            return True
        case And(parts=parts):
            return any(map(_has_text, parts))
    return False


def _are_few(database: Database, rows: str) -> bool:
    """Return whether these records are so few that sorting them is cheaper than walking all records in order.

    SQLite knows no sizes and walks all records by id, which takes a second if a million jobs have ended.
    """
    some = f"SELECT 1 FROM ({rows}) AS found LIMIT 1 OFFSET {FEW}"
    return database.execute(some).fetchone() is None


def _only(rows: str) -> str:
    """Return a source of only these records, each found through the index of its status."""
    return f"({rows}) AS chosen CROSS JOIN jobs ON jobs.rowid = number"


def _rows(query: Query, statuses: Sequence[int]) -> str:
    """Return the selection of records with these statuses that may match, using indexes alone."""
    selects = [f"SELECT rowid AS number FROM jobs WHERE {condition}" for _, condition in _ranges(query, statuses)]
    return " UNION ALL ".join(selects) or _NONE


def _ranges(query: Query, statuses: Sequence[int]) -> list[tuple[str, str]]:
    """Return for each status the index of its records, and a condition for the ones that may match."""
    bounds = dict.fromkeys(statuses, _ended_within(query)) | {
        int(Status.WAITING): "" if (name := queue_of(query)) is None else f" AND queue = {_quoted(name)}",
        int(Status.POSTPONED): _postponed(query),
    }
    return [(_OF_PENDING.get(status, "jobs_ended"), f"{_STATUS[status]}{bounds[status]}") for status in statuses]


def _postponed(query: Query) -> str:
    """Return a condition for postponed records that may match, on columns of their index."""
    _, latest = bounds_of("ready_at", query)
    if has_field("waiting_for", query):
        return " AND (waiting_for IS NOT NULL) = TRUE"
    return "" if latest is None else f" AND (waiting_for IS NOT NULL) IN (FALSE, TRUE) AND ready_at <= {latest}"


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _ended_within(query: Query) -> str:
    """Return when matching records ended, as conditions with which the index of ended records can be read."""
    earliest, latest = bounds_of("ended_at", query)
    begin = "" if earliest is None else f" AND ended_at >= {earliest}"
    return begin if latest is None else f"{begin} AND ended_at <= {latest}"


def _added(query: Query) -> str:
    """Return when matching records were added, as a condition with which their index can be read."""
    earliest, latest = bounds_of("created_at", query)
    begin = "TRUE" if earliest is None else f"created_at >= {earliest}"
    return begin if latest is None else f"{begin} AND created_at <= {latest}"


def _firsts(database: Database, query: Query, statuses: Sequence[int], where: str, falling: bool) -> list[str]:
    """Return selections whose first rows are the first of all by rank; waiting records come from their index."""
    selections, order = [], _ordered("-rank" if falling else "rank")
    for status in statuses:
        conditions = [_STATUS[status]]
        if status == Status.WAITING:
            queues = _queues_in_order(database, query)
            conditions = [f"{_STATUS[status]}{queue} AND forced = {kind}" for queue in queues for kind in FORCED]
        selections += [
            f"SELECT rowid AS number FROM jobs WHERE {condition} AND {where} ORDER BY {order}"
            for condition in conditions
        ]
    return selections


def _queues_in_order(database: Database, query: Query) -> list[str]:
    """Return a condition for each queue whose waiting jobs must be merged; only one if there are too many queues."""
    if queue_of(query) is not None:
        return [""]
    queues = waiting_queues(database)
    if len(queues) > MERGED:
        return [""]
    return [f" AND queue = {_quoted(queue)}" for queue in queues]


def _ordered(order: str) -> str:
    column, falling = order_of(order)
    direction = "DESC" if falling else "ASC"
    return f"id {direction}" if column == "id" else f"{column} {direction}, id {direction}"


def _following(column: str, falling: bool, after: tuple[object, object]) -> Condition:
    """Return the condition for later records; missing values (of ``ended_at``) come first, as the smallest."""
    at, id = after
    beyond = "<" if falling else ">"
    if column == "id":
        return f"id {beyond} ?", [str(id)]
    value = milliseconds(at) if isinstance(at, datetime) else at
    if value is None:
        none = f"({column} IS NULL AND id {beyond} ?)"
        return (none if falling else f"({none} OR {column} IS NOT NULL)"), [str(id)]
    if column != "ended_at":  # an index that includes the ids is read from there, even if many have the same value
        return f"({column}, id) {beyond} (?, ?)", [value, str(id)]
    more = f"({column} {beyond}= ? AND ({column} {beyond} ? OR id {beyond} ?))"
    return (f"({more} OR {column} IS NULL)" if falling else more), [value, value, str(id)]


def _up_to(column: str, falling: bool, edge: tuple[object, object]) -> Condition:
    """Return the condition for this record and all records before it."""
    at, id = edge
    before = ">" if falling else "<"
    if column == "id":
        return f"id {before}= ?", [id]
    return f"({column}, id) {before}= (?, ?)", [at, id]
