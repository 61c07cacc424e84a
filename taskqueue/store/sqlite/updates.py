"""Applies an owner's changes to a pending record, only if it is still as it was read."""

from __future__ import annotations

import json
from datetime import datetime

from taskqueue.model.record import Record
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import WORK
from taskqueue.store.sqlite.rows import instant
from taskqueue.store.sqlite.transaction import Transaction

_UPDATE = """
UPDATE jobs SET status = ?, cause = ?, queue = ?, rank = ?, ready_at = ?, priority = ?, given = ?, tags = ?, data = ?
WHERE id = ?
"""


def update(work: Transaction, before: Record, after: Record, now: datetime) -> bool:
    """Put ``after`` in the place of ``before``; False if that has moved meanwhile."""
    if work.record(before.id) != before:
        return False
    values = (
        int(after.status),
        after.cause.value,
        after.queue,
        after.rank,
        instant(after.ready_at),
        after.priority,
        json.dumps(after.given, ensure_ascii=False) if after.given else None,
        json.dumps(after.tags, ensure_ascii=False) if after.tags else None,
        after.data,
    )
    work.execute(_UPDATE, (*values, str(after.id)))
    work.count(before.queue, before.status, -1)
    work.count(after.queue, after.status, 1)
    if after.status is not before.status:
        work.status_event(after, milliseconds(now))
    work.topics.add(WORK)
    return True
