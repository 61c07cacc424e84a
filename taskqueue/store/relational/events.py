"""Keeps the event log as numbered rows, in the order of commits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from taskqueue.errors import CursorTooOld
from taskqueue.model.events import FLUSHED
from taskqueue.model.ids import JobId
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import OLDEST, Event
from taskqueue.store.arguments import CURSOR_DIGITS
from taskqueue.store.bell import NEWS
from taskqueue.store.reading import readable
from taskqueue.store.relational import event_rows
from taskqueue.store.relational.columns import Row
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.transaction import Transaction

_SINCE = f"SELECT {event_rows.COLUMNS} FROM events WHERE number > ? ORDER BY number LIMIT ?"
# A row of many names its jobs in ``about``; it may start within the bound and end after it.
_OF_JOB = f"""
SELECT {event_rows.COLUMNS} FROM events
WHERE number >= ? AND number < ? + {event_rows.AT_ONCE} AND {event_rows.FIRST} < ?
    AND (job = ? OR job IS NULL AND status IS NOT NULL AND instr(about, ?) > 0) ORDER BY number
"""
_AT = "SELECT at FROM events WHERE number >= ? ORDER BY number LIMIT 1"
_INSERT = "INSERT INTO events (name, at, about) VALUES (?, ?, ?)"
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
        first, last = database.execute(event_rows.ENDS).fetchone()
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
        missing -= min(event_rows.length(row), row[0] - behind)  # part of the first row may have been read before
        behind = row[0]
        if missing <= 0:
            break
    follows = rows[0][0] - event_rows.length(rows[0]) <= since if rows else since <= _last(database)
    if not follows:
        raise CursorTooOld(cursor)
    events = [event for some in readable(rows, event_rows.events_of, "an event") for event in some]
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
    first, end = database.execute(event_rows.ENDS).fetchone()
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
    events = (event for some in readable(rows, event_rows.events_of, "an event") for event in some)
    return [event for event in events if event.job_id == id]


def record(work: Transaction, new: Sequence[Event]) -> None:
    """Record the events of a node."""
    for event in new:
        about = {"id": event.id, "node": event.node, **event.about}
        work.execute(_INSERT, (event.name, milliseconds(event.at), json.dumps(about, ensure_ascii=False)))
    work.topics.add(NEWS)


def prune(work: Transaction, before: int, limit: int) -> None:
    """Remove up to ``limit`` of the oldest events that are older than ``before``."""
    [first] = work.execute("SELECT coalesce(min(number), 0) FROM events").fetchone()
    work.execute(_PRUNE, (limit, before, first + limit))


def forget(work: Transaction, at: datetime) -> None:
    """Remove all events, and record the flush right after the last one: its reader has missed nothing."""
    _, last = work.execute(event_rows.ENDS).fetchone()
    work.execute("DELETE FROM events")
    about = json.dumps({"id": f"{FLUSHED}:{JobId()}", "node": ""})
    work.execute(_INSERT_AT, (last + 1, FLUSHED, milliseconds(at), about))
