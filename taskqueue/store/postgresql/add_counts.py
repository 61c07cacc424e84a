"""Notes which row of a PostgreSQL store is the last counted one: numbers are given under the store's lock and stay."""

from __future__ import annotations

from taskqueue.store.relational.add_counts import RowCounts
from taskqueue.store.relational.engine import Execute

_NOTE = """
INSERT INTO counted (one, number, job) SELECT 1, rowid, id FROM jobs ORDER BY rowid DESC LIMIT 1
ON CONFLICT (one) DO UPDATE SET number = excluded.number, job = excluded.job
"""


class PostgreSQLCounts(RowCounts):
    """Counts rows by the numbers that the store gives them."""

    def __init__(self) -> None:
        super().__init__("created_at / 60000 * 60000")

    def last_counted(self, execute: Execute) -> int:
        """Return the number of the last counted row, 0 if there is none."""
        row = execute("SELECT number FROM counted").fetchone()
        return 0 if row is None else int(row[0])

    def note_last(self, execute: Execute) -> None:
        """Note that all present rows are counted."""
        execute(_NOTE)
