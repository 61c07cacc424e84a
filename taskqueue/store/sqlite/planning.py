"""Named schedules as rows: each change applies to the version that it was made from, with the jobs that it starts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from taskqueue.model import plan as plans_of
from taskqueue.model.plan import Plan
from taskqueue.model.record import JobId, Record, moment
from taskqueue.store import PLANS
from taskqueue.store.sqlite.rows import COLUMNS, instant, record, row
from taskqueue.store.sqlite.transaction import Transaction

_ALL = "SELECT name, version, next_run_at, awaits, about, template FROM plans ORDER BY name"
_INSERT = """
INSERT INTO plans (version, next_run_at, awaits, about, template, name) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_UPDATE = """
UPDATE plans SET version = ?, next_run_at = ?, awaits = ?, about = ?, template = ? WHERE name = ? AND version = ?
"""
_DELETE = "DELETE FROM plans WHERE name = ? AND version = ?"
_FIELDS = COLUMNS.split(", ")


def plans(raw: sqlite3.Connection, names: Collection[str] | None) -> list[Plan]:
    """Return the schedules of these names, by name; without names all."""
    found = (row for row in raw.execute(_ALL) if names is None or row[0] in names)
    return [_plan(row) for row in found]


def plan(work: Transaction, before: Plan | None, after: Plan | None, jobs: Sequence[Record], now: datetime) -> bool:
    """Put ``after`` in the place of ``before`` and add the jobs; tell whether ``before`` was still there."""
    if not _swapped(work, before, after):
        return False
    for job in jobs:
        if work.insert(job) and job.waiting_for:
            work.look_again(job, now)
    work.topics.add(PLANS)
    return True


def _swapped(work: Transaction, before: Plan | None, after: Plan | None) -> bool:
    if after is None:
        gone = before is not None and work.execute(_DELETE, (before.name, before.version)).rowcount
        return bool(gone)
    values = _values(after)
    if before is None:
        return work.execute(_INSERT, values).rowcount == 1
    return work.execute(_UPDATE, (*values, before.version)).rowcount == 1


def _values(plan: Plan) -> tuple[Any, ...]:
    template = {name: value for name, value in zip(_FIELDS, row(plan.template), strict=True) if value is not None}
    return (
        plan.version,
        instant(plan.next_run_at),
        None if plan.awaits is None else str(plan.awaits),
        json.dumps(plans_of.document(plan), ensure_ascii=False),
        json.dumps(template, ensure_ascii=False),
        plan.name,
    )


def _plan(row: tuple[Any, ...]) -> Plan:
    name, version, next_run_at, awaits, about, template = row
    fields = json.loads(template)
    return plans_of.plan(
        json.loads(about),
        name=name,
        template=record(tuple(fields.get(field) for field in _FIELDS)),
        next_run_at=None if next_run_at is None else moment(next_run_at),
        awaits=None if awaits is None else JobId(awaits),
        version=version,
    )
