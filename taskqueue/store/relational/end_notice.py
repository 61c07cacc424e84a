"""The end notice: the row of a job that has ended, inside the ring that tells of it, so that its waiter need not read.

It comes through a socket to which only those who may write the database can send, and is decoded as strictly as a row.
"""

from __future__ import annotations

import json

from taskqueue.model.record import Record
from taskqueue.model.serializer import dumps
from taskqueue.store.bell import LONGEST_RING, PLAIN_RING
from taskqueue.store.relational.columns import Row
from taskqueue.store.relational.rows import record


def end_notice(row: Row) -> bytes:
    """Return the ring that tells of this row; a plain one if that would be too long, or the row is damaged."""
    try:
        notice = dumps(row).encode()
    except (TypeError, ValueError):  # bytes, or text that is not Unicode, which another program has put there
        return PLAIN_RING
    return notice if len(notice) <= LONGEST_RING else PLAIN_RING


def record_of(notice: bytes) -> Record | None:
    """Return the record of a ring; None if it is incomplete or has not ended."""
    try:
        ended = record(tuple(json.loads(notice)))
    except Exception:  # whatever another program has sent: the waiter reads the store
        return None
    return ended if ended.status.is_final and not ended.damage else None
