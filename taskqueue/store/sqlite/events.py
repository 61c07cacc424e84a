"""Keeps the event log as numbered rows, in the order of commits."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from taskqueue.errors import CursorTooOld
from taskqueue.model.ids import JobId
from taskqueue.model.reading import text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import OLDEST, Event
from taskqueue.store.arguments import CURSOR_DIGITS
from taskqueue.store.bell import NEWS
from taskqueue.store.codec import event_id
from taskqueue.store.reading import readable
from taskqueue.store.sqlite.transaction import Transaction

_SINCE = "SELECT number, job, claims, name, at, status, about FROM events WHERE number > ? ORDER BY number LIMIT ?"
_OF_JOB = """
SELECT number, job, claims, name, at, status, about FROM events
WHERE number >= ? AND number < ? AND job = ? ORDER BY number
"""
_AT = "SELECT at FROM events WHERE number >= ? ORDER BY number LIMIT 1"
_INSERT = "INSERT INTO events (name, at, about) VALUES (?, ?, ?)"
# Each end by itself is one step; asked for together, min and max make SQLite walk the whole table.
_ENDS = "SELECT ifnull((SELECT min(number) FROM events), 1), ifnull((SELECT max(number) FROM events), 0)"
# The last event always stays, so that numbers are never used twice.
_PRUNE = """
DELETE FROM events WHERE number < ifnull((
    SELECT number FROM (SELECT number, at FROM events ORDER BY number LIMIT ?)
    WHERE at >= ? AND typeof(at) = 'integer' LIMIT 1
), ?) AND number < (SELECT max(number) FROM events)
"""


def events(raw: sqlite3.Connection, cursor: str | None, limit: int) -> tuple[list[Event], str]:
    """Return the events since the cursor and the cursor behind them; None starts now."""
    first, last = raw.execute(_ENDS).fetchone()
    if cursor is None:
        return [], str(last)
    if cursor == OLDEST:
        cursor = str(first - 1)
    is_number = cursor.isascii() and cursor.isdigit() and len(cursor) <= CURSOR_DIGITS
    if not is_number or not first - 1 <= int(cursor) <= last:
        raise CursorTooOld(cursor)
    rows = raw.execute(_SINCE, (int(cursor), limit)).fetchall()
    return list(readable(rows, _event, "an event")), str(rows[-1][0]) if rows else cursor


def events_of(raw: sqlite3.Connection, id: JobId, since: int, limit: int) -> list[Event]:
    """Return the events of a job among ``limit`` from a time on, which is found by halves: rows are in its order."""
    first, end = raw.execute(_ENDS).fetchone()
    while first < end:
        middle = (first + end) // 2
        [at] = raw.execute(_AT, (middle,)).fetchone()
        first, end = (middle + 1, end) if isinstance(at, int) and at < since else (first, middle)
    return list(readable(raw.execute(_OF_JOB, (first, first + limit, str(id))), _event, "an event"))


def record(work: Transaction, new: Sequence[Event]) -> None:
    """Record the events of a node."""
    for event in new:
        about = {"id": event.id, "node": event.node, **event.about}
        work.execute(_INSERT, (event.name, milliseconds(event.at), json.dumps(about, ensure_ascii=False)))
    work.topics.add(NEWS)


def prune(work: Transaction, before: int, limit: int) -> None:
    """Remove up to ``limit`` of the oldest events, as far as they are older than ``before``."""
    [first] = work.execute("SELECT ifnull(min(number), 0) FROM events").fetchone()
    work.execute(_PRUNE, (limit, before, first + limit))


def forget(work: Transaction) -> None:
    """Remove all events, so that every earlier cursor is too old."""
    work.execute("DELETE FROM events WHERE number < (SELECT max(number) FROM events)")
    work.execute("UPDATE events SET number = number + 2")


def _event(row: tuple[Any, ...]) -> Event:
    number, job, claims, kept_name, at, status, about = row
    name = text(kept_name)
    if job is None or status is None:
        fields: dict[str, Any] = json.loads(about or "{}")
        id, node = text(fields.pop("id")), text(fields.pop("node"))
        return Event(id=id, name=name, at=moment(at), node=node, about=fields, cursor=str(number))
    id = event_id(job, claims, name, at)
    return Event(id=id, name=name, at=moment(at), job_id=JobId(job), status=Status(status), cursor=str(number))
