"""Keeps the audit as numbered rows."""

from __future__ import annotations

import json
from typing import Any

from taskqueue.model.audit import KEPT_FOR, AuditEntry
from taskqueue.model.reading import mapping, readable, text
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.arguments import CURSOR_DIGITS, wrong_audit_cursor
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.transaction import Transaction

_INSERT = "INSERT INTO audit (at, who, action, target, source, about) VALUES (?, ?, ?, ?, ?, ?)"
_PRUNE = "DELETE FROM audit WHERE number IN (SELECT number FROM audit ORDER BY number LIMIT 100) AND at < ?"
_BEFORE = """
SELECT number, at, who, action, target, source, about FROM audit WHERE number < ? ORDER BY number DESC LIMIT ?
"""


def record(work: Transaction, entry: AuditEntry) -> None:
    """Store the entry, and remove some that are too old."""
    at, about = milliseconds(entry.at), json.dumps(dict(entry.about))
    work.execute(_INSERT, (at, entry.by, entry.action, entry.target, entry.source, about))
    work.execute(_PRUNE, (milliseconds(entry.at - KEPT_FOR),))


def entries(database: Database, limit: int, before: str | None) -> list[AuditEntry]:
    """Return up to ``limit`` entries before the cursor, the newest first."""
    if before is not None and not (before.isascii() and before.isdigit() and len(before) <= CURSOR_DIGITS):
        raise wrong_audit_cursor(before)
    rows = database.execute(_BEFORE, (2**63 - 1 if before is None else int(before), limit)).fetchall()
    return list(readable(rows, _entry, "an entry of the audit"))


def _entry(row: tuple[Any, ...]) -> AuditEntry:
    number, at, by, action, target, source, about = row
    return AuditEntry(
        at=moment(at),
        by=text(by),
        action=text(action),
        target=text(target),
        source=text(source),
        about=mapping(about),
        cursor=str(number),
    )
