"""Stores which job waits for which, in the table ``waits``.

A job that needs the result of another without waiting for it also has a row there, with ``NEEDED`` before the id:
retention keeps that other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.store.relational.columns import COLUMNS
from taskqueue.store.relational.rows import records_of

if TYPE_CHECKING:
    from taskqueue.store.relational.transaction import Transaction

NEEDED = "needed:"
"""The prefix of an id in ``waits.awaited`` when the job has ended and a pending one depends on it.

Such ids sort after all others, so that one lookup shows that no job waits for another.
"""

_ADD = "INSERT INTO waits (awaited, job) VALUES (?, ?) ON CONFLICT DO NOTHING"
_REMOVE = "DELETE FROM waits WHERE awaited = ? AND job = ?"
_NEED_NO_MORE = f"DELETE FROM waits WHERE awaited = '{NEEDED}' || ? AND job = ?"
ANY = f"SELECT 1 FROM waits WHERE awaited < '{NEEDED}' LIMIT 1"
"""The statement of ``exist``, which may be sent together with another one."""

_WAITING = f"SELECT {COLUMNS} FROM jobs WHERE id IN (SELECT job FROM waits WHERE awaited = ?)"


def add(work: Transaction, waiting: Record) -> None:
    """Store which jobs the record waits for, and which it depends on without waiting, as a copy does."""
    for awaited in waiting.waiting_for:
        work.execute(_ADD, (str(awaited), str(waiting.id)))
        work.has_waits = True
    for needed in waiting.depends_on:
        if needed.id not in waiting.waiting_for:
            work.execute(_ADD, (f"{NEEDED}{needed.id}", str(waiting.id)))


def end(work: Transaction, before: Record, after: Record) -> None:
    """Remove the waits of ``before`` that ``after`` no longer has; a pending dependent still needs the result."""
    still = frozenset(after.waiting_for)  # a tuple of a thousand ids would be searched a thousand times
    for awaited in before.waiting_for:
        if awaited not in still:
            depends = any(dependency.id == awaited for dependency in after.depends_on)
            work.execute(_REMOVE, (str(awaited), str(after.id)))
            if depends and not after.status.is_final:
                work.execute(_ADD, (f"{NEEDED}{awaited}", str(after.id)))


def end_needs(work: Transaction, ended: Record) -> None:
    """Remove what an ended record needed: the results of the jobs it depends on."""
    for needed in ended.depends_on:
        work.execute(_NEED_NO_MORE, (str(needed.id), str(ended.id)))


def exist(work: Transaction) -> bool:
    """Return whether any job waits for another one."""
    if work.has_waits is None:
        work.has_waits = (work.asked or work.execute(ANY)).fetchone() is not None
    return work.has_waits


def waiting_for(work: Transaction, awaited: JobId) -> list[Record]:
    """Return the records that wait for this job."""
    return records_of(work.execute(_WAITING, (str(awaited),)).fetchall())
