"""Reads a damaged row field by field: returns the readable fields and names the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from bson import ObjectId

from taskqueue.model.lifecycle import continuation as courses
from taskqueue.model.limits import lane_of
from taskqueue.model.reading import Reading, figure, number, or_none, priority, rank, text
from taskqueue.model.record import Cause, Holder, Record, Status
from taskqueue.model.schedules import origin as origins
from taskqueue.model.timestamps import moment
from taskqueue.store.codec import failure_of
from taskqueue.store.sqlite.options import options_of
from taskqueue.store.sqlite.rows import Row, attempt_of, cancel_request, dependencies_of, given_of, tags_of


def damaged(row: Row) -> Record:
    """Return the readable fields of a row with ``COLUMNS``; raise if not even its id is readable."""
    id = ObjectId(text(row[0]))
    fallback = Record(
        id=id,
        job="?",
        created_at=id.generation_time,
        ready_at=None,
        status=Status.FAILED,
        cause=Cause.UNREADABLE,
    )
    reading = Reading()
    fields = {
        name: reading.field(name, partial(read, row[column]), getattr(fallback, name))
        for name, (column, read) in _FIELDS.items()
    }
    fields["holder"] = reading.field("holder", lambda: _holder(row[7], row[8]), None)
    return Record(id=id, damage=reading.damage, **fields)


def _holder(seat: Any, incarnation: Any) -> Holder | None:
    return None if seat is None else Holder(seat=text(seat), incarnation=text(incarnation))


def _time(value: Any) -> datetime:
    return moment(number(value))


def _json(read: Callable[[Any], Any], empty: Any = None) -> Callable[[Any], Any]:
    """Return a reader of JSON text, ``empty`` where there is none."""
    return lambda value: empty if value is None else read(json.loads(text(value)))


def _data(value: Any) -> str:
    json.loads(text(value))
    return text(value)


_FIELDS: Mapping[str, tuple[int, Callable[[Any], Any]]] = {
    "status": (1, lambda value: Status(number(value))),
    "cause": (2, Cause),
    "queue": (3, text),
    "rank": (5, rank),
    "ready_at": (6, or_none(_time)),
    "claims": (9, number),
    "failures": (10, number),
    "crashes": (11, number),
    "priority": (12, priority),
    "created_at": (13, _time),
    "started_at": (14, or_none(_time)),
    "ended_at": (15, or_none(_time)),
    "expires_at": (16, or_none(_time)),
    "unique": (17, or_none(text)),
    "waiting_for": (18, _json(lambda ids: tuple(map(ObjectId, ids)), ())),
    "cancel": (19, cancel_request),
    "unloadable_since": (20, or_none(_time)),
    "unloadable_times": (21, number),
    "progress": (22, figure),
    "progress_message": (23, text),
    "progress_at": (24, or_none(_time)),
    "job": (25, text),
    "options": (26, options_of),
    "given": (27, given_of),
    "tags": (28, tags_of),
    "error": (29, _json(failure_of)),
    "attempts": (30, _json(lambda attempts: tuple(map(attempt_of, attempts)), ())),
    "state": (31, or_none(text)),
    "result": (32, or_none(text)),
    "lane": (33, lambda value: "" if value is None else lane_of(text(value))),
    "parent": (34, or_none(ObjectId)),
    "depends_on": (35, dependencies_of),
    "origin": (36, _json(origins.origin)),
    "cursor": (37, or_none(text)),
    "course": (38, _json(courses.continuation_of)),
    "data": (39, _data),
}
