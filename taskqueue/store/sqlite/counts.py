"""Counts jobs: running ones by their index, waiting ones as the rest of a queue, all others by the tally."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from taskqueue.model.lifecycle.claim_end import since_of
from taskqueue.model.reading import number, priority, text
from taskqueue.model.record import Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.reading import readable
from taskqueue.store.sqlite import add_counts
from taskqueue.store.sqlite.columns import LARGEST

if TYPE_CHECKING:
    from taskqueue.model.analytics import Present


class First(NamedTuple):
    """The first waiting job of a queue and kind (``forced``), as it is kept: nothing is checked."""

    queue: str
    forced: int
    rank: Any
    id: str
    priority: Any


# One statement: asked for by one statement each, 10,000 queues take three times as long. Ranks that are no numbers come
# behind all that are.
_FIRSTS = f"""
WITH RECURSIVE firsts (number, queue, forced) AS (
    SELECT * FROM (
        SELECT rowid, queue, forced FROM jobs WHERE status = 0 ORDER BY queue, forced, rank, id LIMIT 1
    ) AS first
    UNION ALL
    SELECT jobs.rowid, jobs.queue, jobs.forced FROM firsts CROSS JOIN jobs ON jobs.rowid = coalesce(
        (SELECT rowid FROM jobs WHERE status = 0 AND queue = firsts.queue AND forced > firsts.forced
            ORDER BY forced, rank, id LIMIT 1),
        (SELECT rowid FROM jobs WHERE status = 0 AND queue > firsts.queue ORDER BY queue, forced, rank, id LIMIT 1)
    )
)
SELECT jobs.queue, jobs.forced, rank, id, priority FROM firsts CROSS JOIN jobs ON jobs.rowid = number
WHERE rank <= {LARGEST}
"""


def firsts(execute: Callable[..., sqlite3.Cursor]) -> list[First]:
    """Return the first waiting job of each queue and kind, by queue."""
    return [First(*row) for row in execute(_FIRSTS)]


FEW = 1000
"""Up to this many waiting jobs of a queue are counted by their index."""

_KEPT = """
SELECT queue, 2, count(*) FROM jobs WHERE status = 2 GROUP BY queue
UNION ALL SELECT queue, status, records FROM tally WHERE records != 0 AND status > 0 AND typeof(records) = 'integer'
"""
_DAMAGED = """
SELECT queue, status, (SELECT count(*) FROM jobs WHERE jobs.status = tally.status AND jobs.queue = tally.queue)
FROM tally WHERE status > 0 AND typeof(records) != 'integer'
"""
"""A damaged tally is counted again, job by job."""

_WAITING = """
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM jobs WHERE status = 0
    UNION ALL
    SELECT (SELECT min(queue) FROM jobs WHERE status = 0 AND queue > queues.queue) FROM queues WHERE queue IS NOT NULL
)
SELECT queue, (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = 0 AND queue = queues.queue LIMIT ?) AS few)
FROM queues WHERE typeof(queue) = 'text'
"""
_MANY = "SELECT count(*) FROM jobs WHERE status = 0 AND queue = ?"
FORCED = range(4)
"""The values of the column of this name: how a job runs, see ``schema``."""

_PRESENT = """
SELECT
    (SELECT count(*) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = FALSE AND ready_at <= :now),
    (SELECT count(*) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = TRUE),
    (SELECT count(*) FROM jobs WHERE status = 2),
    (SELECT count(*) FROM jobs WHERE status = 2 AND ready_at <= :now)
"""


@contextmanager
def one_state(raw: sqlite3.Connection) -> Iterator[None]:
    """Let all reads of the block see one state of the store: others may commit between two statements."""
    if raw.in_transaction:
        yield
        return
    raw.execute("BEGIN")
    try:
        yield
    finally:
        if raw.in_transaction:
            raw.execute("ROLLBACK")


def tally(raw: sqlite3.Connection) -> dict[tuple[str, Status], int]:
    with one_state(raw):
        return tally_now(raw.execute)


def tally_now(execute: add_counts.Execute) -> dict[tuple[str, Status], int]:
    """Return the numbers, inside a transaction of the caller."""
    found = dict(readable(execute(_KEPT), _counted, "jobs of a status"))
    for (queue, status), records in add_counts.turns(execute).items():
        if status > 0:
            key = (queue, Status(status))
            found[key] = found.get(key, 0) + records
    found.update(readable(execute(_DAMAGED), _counted, "jobs of a status"))
    waiting: dict[str, int] = dict(execute(_WAITING, (FEW + 1,)).fetchall())
    if any(records > FEW for records in waiting.values()):
        waiting.update(_many_waiting(execute, waiting, found))
    found.update({(queue, Status.WAITING): records for queue, records in waiting.items()})
    return {key: records for key, records in found.items() if records}


def _many_waiting(
    execute: add_counts.Execute, waiting: Mapping[str, int], others: Mapping[tuple[str, Status], int]
) -> Iterator[tuple[str, int]]:
    """Return how many jobs wait in the queues that have more than ``FEW``: those of no other status."""
    rest = add_counts.by_queue(execute)
    for (queue, _), records in others.items():
        rest[queue] = rest.get(queue, 0) - records
    for queue, records in waiting.items():
        if records > FEW:
            left = rest.get(queue, 0)
            if left <= FEW:  # the tally is damaged
                [left] = execute(_MANY, (queue,)).fetchone()
            yield queue, left


def waiting_queues(raw: sqlite3.Connection) -> list[str]:
    """Return the queues that have waiting jobs, each found by one step in the index."""
    return [queue for queue, _ in raw.execute(_WAITING, (1,))]


def waiting_since(raw: sqlite3.Connection) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for queue, since in readable(firsts(raw.execute), _since, "a waiting job"):
        found[queue] = min(since, found.get(queue, since))
    return found


def _since(first: First) -> tuple[str, datetime]:
    return text(first.queue), since_of(number(first.rank), priority(first.priority))


def _counted(row: tuple[str, int, int]) -> tuple[tuple[str, Status], int]:
    queue, status, records = row
    return (text(queue), Status(status)), records


def present(raw: sqlite3.Connection, now: datetime) -> Present:
    from taskqueue.model.analytics import Present  # few programs count

    with one_state(raw):
        due, blocked, running, lost = raw.execute(_PRESENT, {"now": milliseconds(now)}).fetchone()
        counted = tally_now(raw.execute)
    waiting, postponed = 0, 0
    for (_, status), records in counted.items():
        waiting += records if status is Status.WAITING else 0
        postponed += records if status is Status.POSTPONED else 0
    later = max(0, postponed - due - blocked)
    return Present(queued=waiting + due, running=running, postponed=later, blocked=blocked, lost=lost)
