"""Writes plain new jobs as short rows: sixteen of forty columns, as every bound value costs time."""

from __future__ import annotations

from dataclasses import fields
from operator import itemgetter

from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.model.serializer import dumps
from taskqueue.model.timestamps import EPOCH, milliseconds
from taskqueue.store.sqlite.options import options_text
from taskqueue.store.sqlite.rows import Row, instant

INSERT = """
INSERT INTO jobs (
    id, status, cause, queue, forced, rank, ready_at, priority, created_at, expires_at, unique_key, job, options, given,
    tags, data
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_TOLD = {
    "id", "status", "cause", "queue", "rank", "ready_at", "priority", "created_at", "expires_at", "unique", "job",
    "options", "given", "tags", "data",
}  # fmt: skip
_others = itemgetter(*(field.name for field in fields(Record) if field.name not in _TOLD))
_UNTOUCHED = _others(vars(Record(id=JobId(), job="", created_at=EPOCH, ready_at=None)))


def short_row(record: Record) -> Row | None:
    """Return the values for ``INSERT``; None if the record needs other columns."""
    if _others(record.__dict__) != _UNTOUCHED:
        return None
    created_at = milliseconds(record.created_at)
    options = record.options
    return (
        str(record.id),
        int(record.status),
        str.__str__(record.cause),  # the value of a text enumeration, without two calls
        record.queue,
        int(options.force_spawn),
        record.rank,
        created_at if record.ready_at is record.created_at else instant(record.ready_at),
        record.priority,
        created_at,
        None if record.expires_at is None else milliseconds(record.expires_at),
        record.unique,
        record.job,
        options_text(options),
        dumps(record.given) if record.given else None,
        dumps(record.tags) if record.tags else None,
        record.data,
    )
