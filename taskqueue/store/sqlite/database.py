"""The connection of Python's driver, on which the statements of the store run, and its last counted row."""

from __future__ import annotations

import sqlite3

from taskqueue.store.relational.counts import RowCounts
from taskqueue.store.relational.engine import Execute

_MINUTE = "CASE WHEN typeof(created_at) = 'integer' THEN created_at / 60000 * 60000 ELSE 0 END"
_COUNTED = """
SELECT number, EXISTS (SELECT 1 FROM jobs WHERE jobs.rowid = number AND jobs.id = counted.job) FROM counted
"""
_NOTE = "INSERT OR REPLACE INTO counted (one, number, job) SELECT 1, rowid, id FROM jobs ORDER BY rowid DESC LIMIT 1"


class SqliteCounts(RowCounts):
    """Counts rows by SQLite's own row numbers."""

    def __init__(self) -> None:
        super().__init__(_MINUTE)

    def last_counted(self, execute: Execute) -> int | None:
        """Return its number; None only after rows were removed by hand or renumbered, as by VACUUM."""
        row = execute(_COUNTED).fetchone()
        if row is None:
            return 0
        last, is_same = row
        return int(last) if is_same else None

    def note_last(self, execute: Execute) -> None:
        """Note that all existing rows are counted."""
        if execute(_NOTE).rowcount <= 0:
            execute("DELETE FROM counted")


class SqliteDatabase(sqlite3.Connection):
    """A connection that knows how added jobs are counted in its database."""

    adds: RowCounts = SqliteCounts()
    evaluates_data = True
    sends_together = False
