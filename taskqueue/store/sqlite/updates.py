"""Applies an owner's changes to a pending record, only if it is still as it was read."""

from __future__ import annotations

from datetime import datetime

from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store.bell import WORK
from taskqueue.store.sqlite import moved_jobs
from taskqueue.store.sqlite.columns import assignments
from taskqueue.store.sqlite.transaction import Transaction

_OWNERS, _values = assignments(
    "status", "cause", "queue", "rank", "ready_at", "expires_at", "priority", "given", "tags", "data"
)
_UPDATE = f"UPDATE jobs SET {_OWNERS} WHERE id = ?"


def update(work: Transaction, before: Record, after: Record, now: datetime) -> bool:
    """Put ``after`` in the place of ``before``; False if that has moved meanwhile."""
    if work.record(before.id) != before:
        return False
    work.queue_changes(before.queue, after.queue)
    work.execute(_UPDATE, (*_values(after), str(after.id)))
    work.count(before.queue, before.status, -1)
    work.count(after.queue, after.status, 1)
    if after.status is not before.status:
        work.status_event(after, milliseconds(now))
    elif after.status is Status.WAITING and (after.queue, after.rank) != (before.queue, before.rank):
        moved_jobs.note(work.execute)
    work.topics.add(WORK)
    return True
