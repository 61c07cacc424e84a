"""Notes which row of a SQLite file is the last counted one, with its job: VACUUM may renumber rows."""

from __future__ import annotations

from taskqueue.store.relational.add_counts import RowCounts
from taskqueue.store.relational.engine import Execute

_MINUTE = "CASE WHEN typeof(created_at) = 'integer' THEN created_at / 60000 * 60000 ELSE 0 END"
_COUNTED = """
SELECT number, EXISTS (SELECT 1 FROM jobs WHERE jobs.rowid = number AND jobs.id = counted.job) FROM counted
"""
_NOTE = "INSERT OR REPLACE INTO counted (one, number, job) SELECT 1, rowid, id FROM jobs ORDER BY rowid DESC LIMIT 1"


class SqliteCounts(RowCounts):
    """Counts rows by SQLite's own numbers of rows."""

    def __init__(self) -> None:
        super().__init__(_MINUTE)

    def last_counted(self, execute: Execute) -> int | None:
        """Return its number; None only after rows were removed or numbered by hand, as VACUUM may do."""
        row = execute(_COUNTED).fetchone()
        if row is None:
            return 0
        last, is_same = row
        return int(last) if is_same else None

    def note_last(self, execute: Execute) -> None:
        """Note that all present rows are counted."""
        if execute(_NOTE).rowcount <= 0:
            execute("DELETE FROM counted")
