"""Takes in jobs that an application added in a transaction of its own, without the store's lock.

Such a job has no row number yet. Whoever holds the lock next gives it one, in the order of commits, and does what an
add under the lock would have done: it writes the event, counts the job, looks whether the jobs it waits for and its
parent have ended before, and gives it the period of its unique key.
"""

from __future__ import annotations

from taskqueue.model.lifecycle.pending import canceled
from taskqueue.model.record import Cause, Record
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.model.unique_period import key_of
from taskqueue.store.postgresql.database import PostgreSQLDatabase
from taskqueue.store.relational import effects, inserts, waits
from taskqueue.store.relational.columns import COLUMNS
from taskqueue.store.relational.rows import records_of
from taskqueue.store.relational.transaction import Transaction

AT_ONCE = 500
"""Maximum number of jobs that one transaction takes in, so that none holds the lock for long."""

_NUMBER = f"""
UPDATE jobs SET rowid = DEFAULT WHERE id IN (SELECT id FROM jobs WHERE rowid IS NULL ORDER BY id LIMIT {AT_ONCE})
RETURNING {COLUMNS}
"""
_LAST = "SELECT at FROM events ORDER BY number DESC LIMIT 1"


def take_in(database: PostgreSQLDatabase) -> tuple[set[str], bool]:
    """Take in the first of these jobs; return the topics to ring, and whether no more are left."""
    work = Transaction(database, tells_ends=False)
    arrived = sorted(records_of(work.execute(_NUMBER).fetchall()), key=lambda new: (new.created_at, new.id))
    [last] = work.execute(_LAST).fetchone() or [0]  # the times of events never fall: a job may have been open for long
    for new in arrived:
        work.status_event(new, max(milliseconds(new.created_at), last))
        work.count(new.queue, new.status, 1)
        waits.add(work, new)
    for new in arrived:
        _recheck(work, new, last)
        if key_of(new) is not None:
            _take_period(work, new, last)
    work.finish()
    return work.topics, len(arrived) < AT_ONCE


def _recheck(work: Transaction, new: Record, last: int) -> None:
    """Release or cancel a job whose parent or dependencies have ended before it was taken in."""
    if new.waiting_for or new.parent is not None:
        present = work.record(new.id)  # a job taken in before it may have ended it
        if present is not None and not present.status.is_final:
            effects.recheck(work, present, max(new.created_at, moment(last)))


def _take_period(work: Transaction, new: Record, last: int) -> None:
    """Give the job the period of its key, or cancel it if a job that its transaction did not see has that period."""
    holder = inserts.take_period(work, new)
    present = None if holder is None else work.record(new.id)
    if holder is not None and present is not None:
        at = max(new.created_at, moment(last))
        reason = f"unique_for: job {holder.id} already has the unique key {new.unique!r} for this period"
        work.replace(present, canceled(present, reason, at, Cause.DUPLICATE), at)
