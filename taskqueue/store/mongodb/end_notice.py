"""The end notice: the document of a job that has ended, inside the ring that tells of it, so that nobody reads it."""

from __future__ import annotations

import bson
from bson.errors import BSONError

from taskqueue.model.record import Record
from taskqueue.store.doorbell import LONGEST_RING, PLAIN_RING
from taskqueue.store.mongodb.documents import CODEC, Document, record

_NOT_READ = ("after", "swapped", "claimed")
"""The fields of a document that are no part of the record."""


def end_notice(kept: Document) -> bytes:
    """Return the ring that tells of this document; a plain one if that would be too long."""
    notice = bson.encode({name: value for name, value in kept.items() if name not in _NOT_READ}, codec_options=CODEC)
    return notice if len(notice) <= LONGEST_RING else PLAIN_RING


def record_of(notice: bytes) -> Record | None:
    """Return the record of a ring; None where it is not whole or has not ended."""
    try:
        found = record(bson.decode(notice, CODEC))
    except (BSONError, TypeError, KeyError, ValueError):  # another program has sent it: the waiter reads the store
        return None
    return found if found.status.is_final and not found.damage else None
