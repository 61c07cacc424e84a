"""One write transaction: what it did to jobs, told as events and counts before it commits, rung after."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskqueue.model.lifecycle import released
from taskqueue.model.record import Cause, JobId, Record, Status, milliseconds
from taskqueue.store import NEWS, WORK
from taskqueue.store.sqlite.rows import CHANGING, COLUMNS, changes, record, row

_INSERT = f"INSERT INTO jobs ({COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS.split(',')))}) ON CONFLICT DO NOTHING"
_SWAP = f"UPDATE jobs SET {CHANGING} WHERE id = ?"
_BY_ID = f"SELECT {COLUMNS} FROM jobs WHERE id = ?"
_AWAITING = f"SELECT {COLUMNS} FROM jobs WHERE id IN (SELECT job FROM waits WHERE awaited = ?)"
_TELL = "INSERT INTO events (job, claims, name, at, status) VALUES (?, ?, ?, ?, ?)"
_COUNT = (
    "INSERT INTO tally (queue, status, records) VALUES (?, ?, ?) "
    "ON CONFLICT DO UPDATE SET records = records + excluded.records"
)
_RETRIED = (Cause.RETRY, Cause.CRASHED)
_NAMES = tuple(status.name.lower() for status in Status)


class Transaction:
    """Collects what follows from changed records; the statements of one call run on its connection."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self.topics: set[str] = set()
        self._events: list[tuple[str, int, str, int, int]] = []
        self._counts: dict[tuple[str, int], int] = {}
        self._nobody_waits: bool | None = None

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self.raw.execute(statement, values)

    def record(self, id: JobId) -> Record | None:
        """Return the record as it is now, None if there is none."""
        found = self.raw.execute(_BY_ID, (str(id),)).fetchone()
        return None if found is None else record(found)

    def insert(self, new: Record) -> bool:
        """Insert the record and tell whether neither its id nor its unique key stood against it."""
        if self.raw.execute(_INSERT, row(new)).rowcount == 0:
            return False
        for awaited in new.waiting_for:
            self.execute("INSERT OR IGNORE INTO waits (awaited, job) VALUES (?, ?)", (str(awaited), str(new.id)))
        self.told(new, milliseconds(new.created_at))
        self.count(new.queue, new.status, 1)
        return True

    def swap(self, before: Record, after: Record, now: datetime) -> None:
        """Put ``after`` in the place of ``before``, which this transaction has read, with all that follows."""
        self.raw.execute(_SWAP, (*changes(after), str(after.id)))
        for awaited in before.waiting_for:
            if awaited not in after.waiting_for:
                self.execute("DELETE FROM waits WHERE awaited = ? AND job = ?", (str(awaited), str(after.id)))
        if after.status is not before.status:
            self.moved(before.status, after, now)

    def moved(self, before: Status, after: Record, now: datetime) -> None:
        """Note that the record has another status now, and release those that wait for it if it ended."""
        self.count(after.queue, before, -1)
        self.count(after.queue, after.status, 1)
        self.told(after, milliseconds(now))
        if after.status.is_final:
            self._release(after.id, now)

    def told(self, after: Record, at: int) -> None:
        """Note the event of the record's present status."""
        status = after.status
        retried = status <= Status.POSTPONED and after.cause in _RETRIED
        self.tell(str(after.id), after.claims, "retried" if retried else _NAMES[status], at, status)

    def tell(self, id: str, claims: int, name: str, at: int, status: int) -> None:
        """Note an event, and what it rings."""
        self._events.append((id, claims, name, at, int(status)))
        self.topics.add(NEWS)
        if status <= Status.POSTPONED:
            self.topics.add(WORK)

    def count(self, queue: str, status: int, records: int) -> None:
        """Note that there are so many more records of this queue and status."""
        key = (queue, int(status))
        self._counts[key] = self._counts.get(key, 0) + records

    def finish(self) -> None:
        """Write down events and counts, as the last statements before the commit."""
        if self._events:
            self.raw.executemany(_TELL, self._events)
        for (queue, status), records in self._counts.items():
            if records:
                self.raw.execute(_COUNT, (queue, status, records))

    def _release(self, ended: JobId, now: datetime) -> None:
        if self._nobody_waits is None:
            self._nobody_waits = self.execute("SELECT 1 FROM waits LIMIT 1").fetchone() is None
        if self._nobody_waits:
            return
        for found in self.execute(_AWAITING, (str(ended),)).fetchall():
            waiting = record(found)
            self.swap(waiting, released(waiting, ended, now), now)
        self.execute("DELETE FROM waits WHERE awaited = ?", (str(ended),))
