"""Stores schedules as rows; each change applies to the version it was made from, with the jobs it starts."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from taskqueue.model.ids import JobId
from taskqueue.model.reading import readable, text
from taskqueue.model.record import Record
from taskqueue.model.schedules import LATEST
from taskqueue.model.schedules import schedule as schedule_codec
from taskqueue.model.schedules.fire import reconciled
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.bell import PLANS
from taskqueue.store.relational import effects
from taskqueue.store.relational.columns import LARGEST, NAMES, instant, row
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.rows import record
from taskqueue.store.relational.transaction import Transaction

_SELECT = "SELECT name, version, next_run_at, awaits, about, template FROM plans"
_SOONEST = f"SELECT min(next_run_at) FROM plans WHERE next_run_at IS NOT NULL AND next_run_at <= {LARGEST}"
_DUE = f"""
{_SELECT} WHERE next_run_at IS NOT NULL AND next_run_at <= ? ORDER BY next_run_at, name LIMIT ?
"""
_INSERT = """
INSERT INTO plans (version, next_run_at, awaits, about, template, name) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
# Unreadable fields stay as they are.
_UPDATE = """
UPDATE plans SET version = ?, next_run_at = ?, awaits = ?, about = coalesce(?, about), template = coalesce(?, template)
WHERE name = ? AND version = ?
"""
_DELETE = "DELETE FROM plans WHERE name = ? AND version = ?"


def find(database: Database, names: Collection[str] | None) -> list[NamedSchedule]:
    if names is None:
        return list(readable(database.execute(f"{_SELECT} ORDER BY name"), _schedule, "a schedule"))
    statement = f"{_SELECT} WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name"
    return list(readable(database.execute(statement, (json.dumps(list(names)),)), _schedule, "a schedule"))


def due(database: Database, now: datetime, limit: int) -> tuple[list[NamedSchedule], datetime | None]:
    [soonest] = database.execute(_SOONEST).fetchone()
    if soonest is None:
        return [], None
    rows = [] if soonest > milliseconds(now) else database.execute(_DUE, (milliseconds(now), limit)).fetchall()
    return list(readable(rows, _schedule, "a schedule")), moment(max(0, min(soonest, milliseconds(LATEST))))


def resume_waiting(work: Transaction, now: datetime) -> None:
    """Give schedules that await a flushed job their next time, or another job to await."""
    for before in map(_schedule, work.execute(f"{_SELECT} WHERE awaits IS NOT NULL").fetchall()):
        after = reconciled(before, None, now)
        if after is not None:
            replace(work, before, *after, now)


def replace(
    work: Transaction, before: NamedSchedule | None, after: NamedSchedule | None, jobs: Sequence[Record], now: datetime
) -> bool:
    """Put ``after`` in the place of ``before`` and add the jobs; return whether ``before`` was still there."""
    if not _swapped(work, before, after):
        return False
    for job in jobs:
        if work.insert(job) and job.waiting_for:
            effects.recheck(work, job, now)
    work.topics.add(PLANS)
    return True


def _swapped(work: Transaction, before: NamedSchedule | None, after: NamedSchedule | None) -> bool:
    if after is None:
        removed = before is not None and work.execute(_DELETE, (before.name, before.version)).rowcount
        return bool(removed)
    values = _values(after)
    if before is None:
        return work.execute(_INSERT, values).rowcount == 1
    return work.execute(_UPDATE, (*values, before.version)).rowcount == 1


def _values(schedule: NamedSchedule) -> tuple[Any, ...]:
    return (
        schedule.version,
        instant(schedule.next_run_at),
        None if schedule.awaits is None else str(schedule.awaits),
        None
        if schedule.damage and not schedule.kept
        else json.dumps(schedule_codec.document(schedule), ensure_ascii=False),
        None if schedule.damage else json.dumps(_template(schedule), ensure_ascii=False),
        schedule.name,
    )


def _template(schedule: NamedSchedule) -> dict[str, Any]:
    return {name: value for name, value in zip(NAMES, row(schedule.template), strict=True) if value is not None}


def _schedule(row: tuple[Any, ...]) -> NamedSchedule:
    name, version, next_run_at, awaits, about, template = row

    def job() -> Record:
        fields = json.loads(template)
        return record(tuple(fields.get(name) for name in NAMES))

    return schedule_codec.schedule_of(
        text(name),
        version,
        about=lambda: json.loads(about),
        template=job,
        next_run_at=lambda: None if next_run_at is None else moment(next_run_at),
        awaits=lambda: None if awaits is None else JobId(awaits),
    )
