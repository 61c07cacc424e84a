"""Stores controls as rows; a claim reads them in its own transaction, so it misses no pause."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.reading import readable
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.bell import CONTROLS
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.transaction import Transaction

_ALL = "SELECT kind, name, since, who, reason, number FROM controls ORDER BY kind, name"
_PUT = """
INSERT INTO controls (kind, name, since, who, reason, number) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE
SET since = excluded.since, who = excluded.who, reason = excluded.reason, number = excluded.number
"""
_DELETE = "DELETE FROM controls WHERE kind = ? AND name = ?"


def controls(database: Database) -> Controls:
    """Return the active controls."""
    return _controls(tuple(database.execute(_ALL).fetchall()))


def set_control(work: Transaction, control: Control) -> None:
    """Set the control, replacing an earlier one of the same kind and name."""
    since = milliseconds(control.since)
    work.execute(_PUT, (control.kind.value, control.name, since, control.by, control.reason, control.count))
    work.topics.add(CONTROLS)


def clear_control(work: Transaction, kind: Kind, name: str) -> bool:
    """Clear the control and return whether there was one."""
    work.topics.add(CONTROLS)
    return work.execute(_DELETE, (kind.value, name)).rowcount == 1


@lru_cache(maxsize=8)
def _controls(rows: tuple[tuple[Any, ...], ...]) -> Controls:
    return Controls(readable(rows, _control, "a decision of an operator"))


def _control(row: tuple[Any, ...]) -> Control:
    kind, name, since, by, reason, number = row
    return Control(kind=Kind(kind), name=name, since=moment(since), by=by, reason=reason, count=number)
