"""Removes old final records in bounded steps, or every job at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from taskqueue.model.record import Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.relational import log_lines
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.transaction import Transaction
from taskqueue.store.relational.waits import NEEDED

EVENTS_A_RECORD = 10
"""How many events one step removes for each record it may remove; a job has three at least."""

# A pending parent needs its children, and a pending job the jobs it depends on. The copies of a
# recovered job are needed with it, since their results are its results.
_UNNEEDED = f"""
NOT (parent IS NOT NULL AND EXISTS (SELECT 1 FROM jobs AS other WHERE other.id = jobs.parent AND other.status <= 2))
AND NOT EXISTS (
    SELECT 1 FROM waits CROSS JOIN jobs AS other
    WHERE waits.awaited IN (jobs.id, '{NEEDED}' || jobs.id) AND other.id = waits.job AND other.status <= 2
)
AND NOT (origins IS NOT NULL AND EXISTS (
    SELECT 1 FROM json_each(CASE WHEN json_valid(jobs.origins) THEN jobs.origins END) AS origin
    CROSS JOIN waits CROSS JOIN jobs AS other
    WHERE waits.awaited IN (origin.value, '{NEEDED}' || origin.value) AND other.id = waits.job AND other.status <= 2
))
"""
_OLD = f"SELECT id FROM jobs WHERE status > 2 AND status = ? AND ended_at < ? AND {_UNNEEDED} ORDER BY ended_at LIMIT ?"
# The + before every column except the id makes SQLite look up ids instead of the whole range of old records.
_PRUNE = f"""
DELETE FROM jobs WHERE +status = ? AND +ended_at < ? AND {_UNNEEDED} AND id IN (SELECT value FROM json_each(?))
RETURNING queue, id
"""


def old(database: Database, before: Mapping[Status, datetime], limit: int) -> dict[Status, list[str]]:
    """Return the ids of up to ``limit`` final records to remove, by their status, without a lock."""
    found: dict[Status, list[str]] = {}
    for status, moment in before.items():
        room = limit - sum(map(len, found.values()))
        found[status] = [id for (id,) in database.execute(_OLD, (int(status), milliseconds(moment), room))]
    return found


def prune(work: Transaction, before: Mapping[Status, datetime], found: Mapping[Status, Sequence[str]]) -> int:
    """Remove the found records that no pending job needs, and return the number."""
    removed = 0
    for status, ids in found.items():
        if not ids:
            continue
        if not removed:
            work.add_up()
        removed_jobs = work.execute(_PRUNE, (int(status), milliseconds(before[status]), json.dumps(ids))).fetchall()
        for queue, _ in removed_jobs:
            work.removed(queue, status)
        log_lines.remove(work, [id for _, id in removed_jobs])
        removed += len(removed_jobs)
    if removed:
        work.adds.note_last(work.execute)
    return removed


def flush(work: Transaction) -> int:
    """Remove all jobs and return the number."""
    work.add_up()
    [number] = work.execute("SELECT count(*) FROM jobs").fetchone()
    for table in ("jobs", "waits", "slots", "tally", "logs"):
        work.execute(f"DELETE FROM {table}")
    work.adds.note_last(work.execute)
    return int(number)
