"""Keeps the event log as numbered rows, in the order of commits.

A row is one event, or like events of many jobs together, so that a batch writes one row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taskqueue.errors import CursorTooOld
from taskqueue.model.events import FLUSHED
from taskqueue.model.ids import JobId, new_id
from taskqueue.model.reading import readable, text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import OLDEST, Event
from taskqueue.store.arguments import CURSOR_DIGITS
from taskqueue.store.bell import NEWS
from taskqueue.store.codec import event_id
from taskqueue.store.relational.columns import Row
from taskqueue.store.relational.engine import Database, Execute

if TYPE_CHECKING:
    from taskqueue.store.relational.transaction import Transaction

AT_ONCE = 500
"""Maximum number of events of one row."""

_ID = 25
"""Characters of an id and the following space."""

_COLUMNS = "number, job, claims, name, at, status, about"
_IS_OF_MANY = f"job IS NULL AND status IS NOT NULL AND length(about) > {_ID}"
LENGTH = f"CASE WHEN {_IS_OF_MANY} THEN (length(about) + 1) / {_ID} ELSE 1 END"
_FIRST = f"(number - {LENGTH} + 1)"
"""The number of the first event of a row, as SQL. A row of many events has the number of its last one."""

# One step each; if one statement asks for both, min and max make SQLite walk the whole table.
ENDS = (
    f"SELECT coalesce((SELECT {_FIRST} FROM events ORDER BY number LIMIT 1), 1), "
    "coalesce((SELECT max(number) FROM events), 0)"
)
"""The numbers of the first and the last stored event, as SQL."""

NEXT_AND_LAST = (
    f"SELECT (SELECT {_FIRST} FROM events WHERE number > ? ORDER BY number LIMIT 1), (SELECT max(number) FROM events)"
)
"""The number of the next stored event after this one, None if there is none, and of the last event, as SQL.

A reader has missed no event if the next number follows its last one. Comparing it with the first stored event would be
slower: SQLite passes the rows that were just removed before that.
"""

_INSERT_ONE = "INSERT INTO events (job, claims, name, at, status) VALUES (?, ?, ?, ?, ?)"
_INSERT_MANY = """
INSERT INTO events (number, claims, name, at, status, about)
VALUES ((SELECT coalesce(max(number), 0) FROM events) + ?, ?, ?, ?, ?, ?)
"""
_SINCE = f"SELECT {_COLUMNS} FROM events WHERE number > ? ORDER BY number LIMIT ?"
# A row of many names its jobs in ``about``; it may start within the bound and end after it.
_OF_JOB = f"""
SELECT {_COLUMNS} FROM events
WHERE number >= ? AND number < ? + {AT_ONCE} AND {_FIRST} < ?
    AND (job = ? OR job IS NULL AND status IS NOT NULL AND instr(about, ?) > 0) ORDER BY number
"""
_AT = "SELECT at FROM events WHERE number >= ? ORDER BY number LIMIT 1"
_INSERT_OTHER = "INSERT INTO events (name, at, about) VALUES (?, ?, ?)"
_INSERT_AT = "INSERT INTO events (number, name, at, about) VALUES (?, ?, ?, ?)"
# The last event always stays, so that numbers are never used twice.
_PRUNE = """
DELETE FROM events WHERE number < coalesce((
    SELECT number FROM (SELECT number, at FROM events ORDER BY number LIMIT ?) AS oldest
    WHERE at >= ? AND typeof(at) = 'integer' LIMIT 1
), ?) AND number < (SELECT max(number) FROM events)
"""


def events(database: Database, cursor: str | None, limit: int = 1000) -> tuple[list[Event], str]:
    """Return the events since the cursor and the cursor after them; None starts now."""
    if cursor is None or cursor == OLDEST:
        first, last = database.execute(ENDS).fetchone()
        if cursor is None:
            return [], str(last)
        cursor = str(first - 1)
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > CURSOR_DIGITS:
        raise CursorTooOld(cursor)
    since = behind = int(cursor)
    rows: list[Row] = []
    missing = limit
    for row in database.execute(_SINCE, (since, limit)):
        rows.append(row)
        missing -= min(_length(row), row[0] - behind)  # part of the first row may have been read before
        behind = row[0]
        if missing <= 0:
            break
    follows = rows[0][0] - _length(rows[0]) <= since if rows else since <= _last(database)
    if not follows:
        raise CursorTooOld(cursor)
    events = [event for some in readable(rows, _events_in, "an event") for event in some]
    events = [event for event in events if int(event.cursor) > since]
    return events[:limit], events[limit - 1].cursor if len(events) > limit else str(behind)


def _last(database: Database) -> int:
    [last] = database.execute("SELECT coalesce(max(number), 0) FROM events").fetchone()
    return int(last)


def cursor_at(database: Database, at: datetime) -> str:
    """Return the cursor before the first event from a time on."""
    return str(_first_at(database, milliseconds(at)) - 1)


def _first_at(database: Database, since: int) -> int:
    """Return the number of the first event from a time on, or of the last event, by a binary search."""
    first, end = database.execute(ENDS).fetchone()
    while first < end:
        middle = (first + end) // 2
        [at] = database.execute(_AT, (middle,)).fetchone()
        first, end = (middle + 1, end) if isinstance(at, int) and at < since else (first, middle)
    return int(first)


def events_of(database: Database, id: JobId, since: datetime, limit: int) -> list[Event]:
    """Return the events of a job among ``limit`` events from a time on."""
    first = _first_at(database, milliseconds(since))
    end = first + limit
    rows = database.execute(_OF_JOB, (first, end, end, str(id), str(id)))
    events = (event for some in readable(rows, _events_in, "an event") for event in some)
    return [event for event in events if event.job_id == id]


def record(work: Transaction, new: Sequence[Event]) -> None:
    """Record the events of a node."""
    for event in new:
        about = {"id": event.id, "node": event.node, **event.about}
        work.execute(_INSERT_OTHER, (event.name, milliseconds(event.at), json.dumps(about, ensure_ascii=False)))
    work.topics.add(NEWS)


def prune(work: Transaction, before: int, limit: int) -> None:
    """Remove up to ``limit`` of the oldest events that are older than ``before``."""
    [first] = work.execute("SELECT coalesce(min(number), 0) FROM events").fetchone()
    work.execute(_PRUNE, (limit, before, first + limit))


def forget(work: Transaction, at: datetime) -> None:
    """Remove all events, and record the flush right after the last one: its reader has missed nothing."""
    _, last = work.execute(ENDS).fetchone()
    work.execute("DELETE FROM events")
    about = json.dumps({"id": f"{FLUSHED}:{new_id()}", "node": ""})
    work.execute(_INSERT_AT, (last + 1, FLUSHED, milliseconds(at), about))


def write(execute: Execute, ids: Sequence[str], claims: int, name: str, at: int, status: int) -> None:
    """Write the event of this name for each of the jobs, in order: as rows of many, if there are several."""
    if len(ids) == 1:
        execute(_INSERT_ONE, (ids[0], claims, name, at, status))
        return
    for first in range(0, len(ids), AT_ONCE):
        some = ids[first : first + AT_ONCE]
        execute(_INSERT_MANY, (len(some), claims, name, at, status, " ".join(some)))


def _length(row: Sequence[Any]) -> int:
    """Return how many events a row has."""
    _, job, _, _, _, status, about = row
    return 1 if job is not None or status is None else max(1, (len(about or "") + 1) // _ID)


def _events_in(row: Sequence[Any]) -> list[Event]:
    """Return the events of a row with ``_COLUMNS``."""
    last, job, claims, kept_name, at, status, about = row
    name = text(kept_name)
    if status is None:
        fields: dict[str, Any] = json.loads(about or "{}")
        id, node = text(fields.pop("id")), text(fields.pop("node"))
        return [Event(id=id, name=name, at=moment(at), node=node, about=fields, cursor=str(last))]
    ids = text(about).split() if job is None else [job]
    first = last - len(ids) + 1
    return [
        Event(
            id=event_id(id, claims, name, at),
            name=name,
            at=moment(at),
            job_id=JobId(id),
            status=Status(status),
            cursor=str(number),
        )
        for number, id in enumerate(ids, first)
    ]
