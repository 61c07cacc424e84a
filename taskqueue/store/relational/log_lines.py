"""Stores the log lines of the last runs of each job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from taskqueue.model.ids import JobId
from taskqueue.model.log_lines import RUNS_KEPT
from taskqueue.store.relational.engine import Database
from taskqueue.store.relational.transaction import Transaction

_KEEP = """
INSERT INTO logs (job, claims, lines) VALUES (?, ?, ?) ON CONFLICT (job, claims) DO UPDATE SET lines = excluded.lines
"""
_REMOVE_OLDER = "DELETE FROM logs WHERE job = ? AND claims <= ?"
_OF_JOB = "SELECT claims, lines FROM logs WHERE job = ? ORDER BY claims"
_REMOVE = "DELETE FROM logs WHERE job IN (SELECT value FROM json_each(?))"


def keep(work: Transaction, id: str, claims: int, lines: str) -> None:
    """Store the lines of this run in place of its stored lines."""
    work.execute(_KEEP, (id, claims, lines))
    work.execute(_REMOVE_OLDER, (id, claims - RUNS_KEPT))


def of_job(database: Database, id: JobId) -> Mapping[int, str]:
    """Return the lines of the runs of a job."""
    return {int(claims): str(lines) for claims, lines in database.execute(_OF_JOB, (str(id),))}


def remove(work: Transaction, ids: Sequence[str]) -> None:
    """Remove the lines of these jobs."""
    if ids:
        work.execute(_REMOVE, (json.dumps(ids),))
