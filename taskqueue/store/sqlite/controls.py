"""What an operator has decided, as rows: a claim reads them in its own transaction, so that no pause is overlooked."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from sqlite3 import Cursor
from typing import Any

from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import CONTROLS
from taskqueue.store.reading import readable
from taskqueue.store.sqlite.transaction import Transaction

_ALL = "SELECT kind, name, since, who, reason, number FROM controls ORDER BY kind, name"
_PUT = "INSERT OR REPLACE INTO controls (kind, name, since, who, reason, number) VALUES (?, ?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM controls WHERE kind = ? AND name = ?"


def controls(execute: Callable[[str], Cursor]) -> Controls:
    """Return what is in force."""
    return _controls(tuple(execute(_ALL).fetchall()))


def impose(work: Transaction, control: Control) -> None:
    """Put the decision in force, in the place of an earlier one about the same thing."""
    since = milliseconds(control.since)
    work.execute(_PUT, (control.kind.value, control.name, since, control.by, control.reason, control.count))
    work.topics.add(CONTROLS)


def lift(work: Transaction, kind: Kind, name: str) -> bool:
    """End the decision, and tell whether there was one."""
    work.topics.add(CONTROLS)
    return work.execute(_DELETE, (kind.value, name)).rowcount == 1


@lru_cache(maxsize=8)
def _controls(rows: tuple[tuple[Any, ...], ...]) -> Controls:
    return Controls(readable(rows, _control, "a decision of an operator"))


def _control(row: tuple[Any, ...]) -> Control:
    kind, name, since, who, reason, number = row
    return Control(kind=Kind(kind), name=name, since=moment(since), by=who, reason=reason, count=number)
