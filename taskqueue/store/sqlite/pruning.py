"""Retention: final records leave after their time, in bounded steps; a flush removes everything."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from taskqueue.model.record import Status, milliseconds
from taskqueue.store.sqlite.transaction import Transaction

EVENTS_A_RECORD = 10
"""How many events one step removes for each record it may remove; a job has three at least."""

_PRUNE = """
DELETE FROM jobs WHERE rowid IN (
    SELECT rowid FROM jobs WHERE status > 2 AND status = ? AND ended_at < ? ORDER BY ended_at LIMIT ?
) RETURNING queue
"""


def prune(work: Transaction, before: Mapping[Status, datetime], limit: int) -> int:
    """Remove up to ``limit`` final records that ended before the time for their status, and return the number."""
    left = limit
    for status, moment in before.items():
        gone = work.execute(_PRUNE, (int(status), milliseconds(moment), left)).fetchall()
        for [queue] in gone:
            work.count(queue, status, -1)
        left -= len(gone)
    return limit - left


def flush(work: Transaction) -> int:
    """Remove all jobs and return the number."""
    [number] = work.execute("SELECT count(*) FROM jobs").fetchone()
    for table in ("jobs", "waits", "slots", "tally"):
        work.execute(f"DELETE FROM {table}")
    return int(number)
