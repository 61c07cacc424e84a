"""Counts added jobs by their rows, so that an add writes nothing for it.

A row after the last counted one is new, as rows are numbered in the order of commits. Whoever removes rows counts
the new ones before, and notes the last row after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from taskqueue.model.reading import number, text
from taskqueue.store.reading import readable
from taskqueue.store.relational.counts import ADD_TO_TALLY, ALL, add_up, turns
from taskqueue.store.relational.engine import Added, Execute

APART = 2000
"""How many added jobs are left uncounted, about."""

_SINCE = """
SELECT CASE WHEN typeof(created_at) = 'integer' THEN created_at / 60000 * 60000 ELSE 0 END, queue, job, count(*)
FROM jobs WHERE rowid > ? GROUP BY 1, 2, 3
"""
_BY_QUEUE = "SELECT queue, count(*) FROM jobs WHERE rowid > ? GROUP BY queue"
_COUNTED = """
SELECT number, EXISTS (SELECT 1 FROM jobs WHERE jobs.rowid = number AND jobs.id = counted.job) FROM counted
"""
_COUNT = "INSERT OR REPLACE INTO counted (one, number, job) SELECT 1, rowid, id FROM jobs ORDER BY rowid DESC LIMIT 1"
_ALL = "SELECT queue, records FROM tally WHERE status = ?"
_RECOUNT = "INSERT INTO tally (queue, status, records) SELECT queue, ?, count(*) FROM jobs GROUP BY queue"


def count(execute: Execute) -> list[Added]:
    """Count the new rows and return them in numbers."""
    last = _last_counted(execute)
    if last is None:
        recount(execute)
        return []
    new = since(execute, last)
    for one in new:
        execute(ADD_TO_TALLY, (one.queue, ALL, one.records))
    note_last(execute)
    return new


def uncounted(execute: Execute) -> list[Added]:
    """Return in numbers the new rows that are not counted yet."""
    last = _last_counted(execute)
    return [] if last is None else since(execute, last)


def since(execute: Execute, last: int) -> list[Added]:
    """Return the rows after this one as numbers."""
    return list(readable(execute(_SINCE, (last,)).fetchall(), _added, "a number of added jobs"))


def by_queue(execute: Execute) -> dict[str, int]:
    """Return how many records each queue has, whatever their status."""
    last = _last_counted(execute)
    kept: Iterable[tuple[Any, Any]] = [] if last is None else execute(_ALL, (ALL,)).fetchall()
    totals = dict(readable(kept, _records, "the jobs of a queue"))
    for (queue, status), records in turns(execute).items() if last is not None else ():
        if status == ALL:
            totals[queue] = totals.get(queue, 0) + records
    for queue, records in readable(execute(_BY_QUEUE, (last or 0,)).fetchall(), _records, "the jobs of a queue"):
        totals[queue] = totals.get(queue, 0) + records
    return totals


def recount(execute: Execute) -> None:
    """Count the records of each queue again."""
    add_up(execute)
    execute("UPDATE turns SET counts = NULL")
    execute("DELETE FROM tally WHERE status = ?", (ALL,))
    execute(_RECOUNT, (ALL,))
    note_last(execute)


def note_last(execute: Execute) -> None:
    """Note that all present rows are counted."""
    if execute(_COUNT).rowcount <= 0:
        execute("DELETE FROM counted")


def _last_counted(execute: Execute) -> int | None:
    """Return the number of the last counted row, 0 without any; None if it is another job's now.

    This is so only after rows were removed or numbered by hand, as VACUUM may do.
    """
    found = execute(_COUNTED).fetchone()
    if found is None:
        return 0
    last, is_same = found
    return int(last) if is_same else None


def _added(row: tuple[Any, ...]) -> Added:
    at, queue, job, records = row
    return Added(number(at), text(queue), text(job), number(records))


def _records(row: tuple[Any, Any]) -> tuple[str, int]:
    queue, records = row
    return text(queue), number(records)
