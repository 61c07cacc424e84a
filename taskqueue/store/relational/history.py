"""Keeps the history: each turn adds one row with its figures; from time to time the rows are added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from taskqueue.model.history import Part, Parts, Step, add_parts, ended_part, gather, part_of_text, part_text
from taskqueue.model.reading import number, readable
from taskqueue.model.record import Record
from taskqueue.model.serializer import dumps
from taskqueue.model.timestamps import MILLISECOND, milliseconds
from taskqueue.store.relational import counts
from taskqueue.store.relational.counts import Added, one_state
from taskqueue.store.relational.engine import Database, Execute, Rows

TURNS_APART = 256
"""Maximum number of rows of turns that are kept before they are added up."""

_RECORD = "INSERT INTO turns (at, counts, figures) VALUES (?, ?, ?)"
_TURNS = "SELECT at, figures FROM turns WHERE figures IS NOT NULL"
_TURNS_WITHIN = f"{_TURNS} AND at > ? AND at <= ?"
_KEPT = "SELECT at, figures FROM history WHERE step = ? AND at >= ? AND at <= ?"
_KEEP = """
INSERT INTO history (step, at, figures) VALUES (?, ?, ?) ON CONFLICT (step, at) DO UPDATE SET figures = excluded.figures
"""
_PRUNE = """
DELETE FROM history WHERE step = ? AND at IN (SELECT at FROM history WHERE step = ? AND at < ? ORDER BY at LIMIT ?)
"""


def record(
    work: Database, at: int, changed: Mapping[tuple[str, int], int], settled: Sequence[Record], ended: Sequence[Record]
) -> None:
    """Add a turn at this time, and add up all turns if there are many by now."""
    values = turn(at, changed, settled, ended)
    row = None if values is None else work.execute(_RECORD, values).lastrowid
    if row is not None and row >= TURNS_APART:
        add_up(work)


def turn(
    at: int, changed: Mapping[tuple[str, int], int], settled: Sequence[Record], ended: Sequence[Record]
) -> tuple[int, str | None, str | None] | None:
    """Return time, counts and figures of a turn: changes of the tally, claims settled as these records, other ends."""
    part = ended_part(settled, ended)
    changes = [
        [queue, status, records] for (queue, status), records in changed.items() if records and type(queue) is str
    ]
    if not part and not changes:
        return None
    return Step.MINUTE.begin(at), dumps(changes) if changes else None, part_text(part) if part else None


def add_up(work: Database) -> None:
    """Add the figures of turns, and the number of added jobs, to their minutes and hours."""
    execute = work.execute
    added = work.adds.count(execute)
    parts = _apart(execute(_TURNS), added)
    counts.add_up(execute)
    execute("DELETE FROM turns")
    _add(execute, parts)


def history(database: Database, step: Step, since: datetime, until: datetime) -> Parts:
    execute = database.execute
    before, end = milliseconds(step.end(since - MILLISECOND)), milliseconds(step.end(until))
    with one_state(database):  # turns may be added up meanwhile
        parts = _kept(execute, step, milliseconds(since), milliseconds(until))
        added = [added for added in database.adds.uncounted(execute) if before < added.at <= end]
        apart = _apart(execute(_TURNS_WITHIN, (before, end)), added)
    add_parts(parts, apart, step)
    return parts


def prune(execute: Execute, now: datetime, limit: int) -> bool:
    """Remove up to ``limit`` outdated minutes, and as many hours; return whether more may be left."""
    removed = [
        execute(_PRUNE, (step.value, step.value, milliseconds(now - step.kept_for), limit)).rowcount for step in Step
    ]
    return max(removed) == limit


def _add(execute: Execute, parts: Parts) -> None:
    for step in Step:
        changed: Parts = {}
        add_parts(changed, parts, step)
        for at, part in changed.items():
            figures = _kept(execute, step, at, at)
            add_parts(figures, {at: part}, step)
            execute(_KEEP, (step.value, at, part_text(figures[at])))


def _apart(turns: Rows, new: Iterable[Added]) -> Parts:
    """Return the figures of turns and the number of new jobs, which are not yet in the minutes and hours."""
    parts: Parts = {}
    for at, part in readable(turns.fetchall(), _part, "figures of a turn"):
        gather(parts, at, part)
    for added in new:
        if added.at:
            gather(parts, added.at, {(added.queue, added.job): {"added": added.records}})
    return parts


def _kept(execute: Execute, step: Step, first: int, last: int) -> Parts:
    rows: Iterable[tuple[int, str]] = execute(_KEPT, (step.value, first, last)).fetchall()
    return dict(readable(rows, _part, f"figures of a {step.value}"))


def _part(row: tuple[Any, ...]) -> tuple[int, Part]:
    at, figures = row
    return number(at), part_of_text(figures)
