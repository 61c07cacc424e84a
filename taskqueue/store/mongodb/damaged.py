"""Reads a damaged document field by field: returns the readable fields and names the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bson import ObjectId

from taskqueue.model.lifecycle import continuation as courses
from taskqueue.model.reading import Reading, figure, number, or_none, priority, rank, text
from taskqueue.model.record import CancelRequest, Cause, Holder, Record, Status
from taskqueue.model.schedules import origin as origins
from taskqueue.model.serializer import encode
from taskqueue.store.codec import failure_of
from taskqueue.store.mongodb.documents import ROOM, Document, attempt_of, dependency_of, options_in
from taskqueue.store.mongodb.values import id_in, ids_in, lane_in, needed_time_in, tags_in, time_in


def damaged(kept: Document) -> Record:
    """Return the readable fields of a document; raise if its id is invalid."""
    id = kept["_id"]
    if not isinstance(id, ObjectId):
        raise TypeError(f"{id!r} is no id of a job")
    created_at = id.generation_time
    fallback = Record(
        id=id, job="?", created_at=created_at, ready_at=None, status=Status.FAILED, cause=Cause.UNREADABLE
    )
    reading = Reading()
    fields = {
        name: reading.field(name, partial(read, kept.get(name)), getattr(fallback, name))
        for name, read in _READERS.items()
    }
    return Record(id=id, damage=reading.damage, **fields)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise TypeError(f"{value!r} is no document")


def _holder(value: Any) -> Holder:
    return Holder(seat=text(value["seat"]), incarnation=text(value["incarnation"]))


def _cancel(value: Any) -> CancelRequest:
    return CancelRequest(requested_at=needed_time_in(value["requested_at"]), reason=text(value["reason"]))


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "job": text,
    "data": lambda value: encode(value, limit=ROOM),
    "queue": text,
    "priority": priority,
    "tags": tags_in,
    "unique": or_none(text),
    "options": options_in,
    "given": _mapping,
    "lane": lane_in,
    "parent": id_in,
    "depends_on": lambda value: tuple(map(dependency_of, value or ())),
    "origin": or_none(origins.origin),
    "created_at": needed_time_in,
    "expires_at": time_in,
    "status": lambda value: Status(number(value)),
    "cause": Cause,
    "ready_at": time_in,
    "rank": lambda value: rank(int(figure(value))),
    "waiting_for": ids_in,
    "holder": or_none(_holder),
    "claims": number,
    "failures": number,
    "crashes": number,
    "cancel": or_none(_cancel),
    "unloadable_since": time_in,
    "unloadable_times": lambda value: number(value or 0),
    "started_at": time_in,
    "ended_at": time_in,
    "progress": figure,
    "progress_message": lambda value: text(value or ""),
    "progress_at": time_in,
    "state": or_none(text),
    "cursor": or_none(text),
    "course": or_none(courses.continuation_of),
    "result": or_none(text),
    "error": or_none(failure_of),
    "attempts": lambda value: tuple(map(attempt_of, value or ())),
}
