"""Counts added jobs by their numbers, so that an add writes nothing for it.

A number after the last counted one is new: numbers are given under the store's lock, so in the order of commits.
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
SELECT created_at / 60000 * 60000, queue, job, count(*) FROM jobs WHERE rowid > ? GROUP BY 1, 2, 3
"""
_BY_QUEUE = "SELECT queue, count(*) FROM jobs WHERE rowid > ? GROUP BY queue"
_COUNT = """
INSERT INTO counted (one, number, job) SELECT 1, rowid, id FROM jobs ORDER BY rowid DESC LIMIT 1
ON CONFLICT (one) DO UPDATE SET number = excluded.number, job = excluded.job
"""
_ALL = "SELECT queue, records FROM tally WHERE status = ?"
_RECOUNT = "INSERT INTO tally (queue, status, records) SELECT queue, ?, count(*) FROM jobs GROUP BY queue"


def count(execute: Execute) -> list[Added]:
    """Count the new rows and return them in numbers."""
    new = since(execute, _last_counted(execute))
    for one in new:
        execute(ADD_TO_TALLY, (one.queue, ALL, one.records))
    note_last(execute)
    return new


def uncounted(execute: Execute) -> list[Added]:
    """Return in numbers the new rows that are not counted yet."""
    return since(execute, _last_counted(execute))


def since(execute: Execute, last: int) -> list[Added]:
    """Return the rows after this one as numbers."""
    return list(readable(execute(_SINCE, (last,)).fetchall(), _added, "a number of added jobs"))


def by_queue(execute: Execute) -> dict[str, int]:
    """Return how many records each queue has, whatever their status."""
    last = _last_counted(execute)
    kept: Iterable[tuple[Any, Any]] = execute(_ALL, (ALL,)).fetchall()
    totals = dict(readable(kept, _records, "the jobs of a queue"))
    for (queue, status), records in turns(execute).items():
        if status == ALL:
            totals[queue] = totals.get(queue, 0) + records
    for queue, records in readable(execute(_BY_QUEUE, (last,)).fetchall(), _records, "the jobs of a queue"):
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
    execute(_COUNT)


def _last_counted(execute: Execute) -> int:
    """Return the number of the last counted job, 0 without any."""
    row = execute("SELECT number FROM counted").fetchone()
    return 0 if row is None else int(row[0])


def _added(row: tuple[Any, ...]) -> Added:
    at, queue, job, records = row
    return Added(number(at), text(queue), text(job), number(records))


def _records(row: tuple[Any, Any]) -> tuple[str, int]:
    queue, records = row
    return text(queue), number(records)
