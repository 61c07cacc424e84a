"""Counts added jobs by the numbers of their rows, so that an add writes nothing for it.

A row after the last counted one is new, as rows are numbered in the order of commits. Code that removes rows counts
the new ones before, and notes the last row after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from taskqueue.model.reading import number, text
from taskqueue.store.reading import readable
from taskqueue.store.relational.counts import ADD_TO_TALLY, ALL, add_up, turns
from taskqueue.store.relational.engine import Added, Execute

_BY_QUEUE = "SELECT queue, count(*) FROM jobs WHERE rowid > ? GROUP BY queue"
_ALL = "SELECT queue, records FROM tally WHERE status = ?"
_RECOUNT = "INSERT INTO tally (queue, status, records) SELECT queue, ?, count(*) FROM jobs GROUP BY queue"


class RowCounts(ABC):
    """Counts the rows after the last counted one; each engine defines how it notes that row."""

    APART = 2000
    """About how many added jobs may stay uncounted."""

    def __init__(self, minute: str) -> None:
        """``minute`` is the SQL expression for the minute in which a row was added, in milliseconds."""
        self._since = f"SELECT {minute}, queue, job, count(*) FROM jobs WHERE rowid > ? GROUP BY 1, 2, 3"

    @abstractmethod
    def last_counted(self, execute: Execute) -> int | None:
        """Return the number of the last counted row, 0 if there is none; None if another job has the number now."""

    @abstractmethod
    def note_last(self, execute: Execute) -> None:
        """Note that all existing rows are counted."""

    def count(self, execute: Execute) -> list[Added]:
        """Count the new rows and return their numbers."""
        last = self.last_counted(execute)
        if last is None:
            self.recount(execute)
            return []
        new = self._after(execute, last)
        for added in new:
            execute(ADD_TO_TALLY, (added.queue, ALL, added.records))
        self.note_last(execute)
        return new

    def uncounted(self, execute: Execute) -> list[Added]:
        """Return the numbers of new rows that are not counted yet."""
        last = self.last_counted(execute)
        return [] if last is None else self._after(execute, last)

    def by_queue(self, execute: Execute) -> dict[str, int]:
        """Return how many records each queue has, whatever their status."""
        last = self.last_counted(execute)
        counted: Iterable[tuple[Any, Any]] = [] if last is None else execute(_ALL, (ALL,)).fetchall()
        totals = dict(readable(counted, _records, "the jobs of a queue"))
        for (queue, status), records in turns(execute).items() if last is not None else ():
            if status == ALL:
                totals[queue] = totals.get(queue, 0) + records
        for queue, records in readable(execute(_BY_QUEUE, (last or 0,)).fetchall(), _records, "the jobs of a queue"):
            totals[queue] = totals.get(queue, 0) + records
        return totals

    def recount(self, execute: Execute) -> None:
        """Count the records of each queue again."""
        add_up(execute)
        execute("UPDATE turns SET counts = NULL")
        execute("DELETE FROM tally WHERE status = ?", (ALL,))
        execute(_RECOUNT, (ALL,))
        self.note_last(execute)

    def _after(self, execute: Execute, last: int) -> list[Added]:
        return list(readable(execute(self._since, (last,)).fetchall(), _added, "a number of added jobs"))


def _added(row: tuple[Any, ...]) -> Added:
    at, queue, job, records = row
    return Added(number(at), text(queue), text(job), number(records))


def _records(row: tuple[Any, Any]) -> tuple[str, int]:
    queue, records = row
    return text(queue), number(records)
