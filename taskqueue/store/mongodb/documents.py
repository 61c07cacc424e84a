"""Converts a record to a MongoDB document and back; data are native BSON, open to people and queries."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any, TypeAlias

from bson import ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion

from taskqueue.model.lifecycle import continuation as courses
from taskqueue.model.record import (
    Attempt,
    CancelRequest,
    Cause,
    Dependency,
    Holder,
    OnFailure,
    Options,
    Record,
    Status,
    changed,
    is_rank,
)
from taskqueue.model.schedules import origin as origins
from taskqueue.model.serializer import DATA_LIMIT, as_bson, clean, encode
from taskqueue.model.timestamps import EPOCH
from taskqueue.store.codec import failure_fields, failure_of, options_fields, options_of
from taskqueue.store.mongodb.values import id_in, ids_in, lane_in, needed_time_in, tags_in, time_in
from taskqueue.store.reading import readable

Document: TypeAlias = dict[str, Any]

CODEC: CodecOptions[Document] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    tzinfo=timezone.utc,
    uuid_representation=UuidRepresentation.STANDARD,
    unicode_decode_error_handler="backslashreplace",  # one damaged value must not hide a whole answer
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)

ROOM = 4 * DATA_LIMIT
"""The bound for data read back: accepted data are returned, also under a raised limit."""

_BLANK = Record(id=ObjectId(b"\0" * 12), job="", created_at=EPOCH, ready_at=None)

_OWN = ("id", "data", "created_at", "ready_at", "rank")
"""The fields that differ between jobs of one class with the same options."""

OPTIONS_KEPT = 1000
"""Different options that are remembered at once."""

_KNOWN_OPTIONS: dict[str, Options] = {}

_SHARED = operator.attrgetter(*(one.name for one in fields(Record) if one.name not in _OWN))


def document(record: Record) -> Document:
    """Return the whole document of a record, without empty fields."""
    given: Document = {
        "_id": record.id,
        "job": record.job,
        "data": as_bson(record.data),
        "priority": record.priority,
        "tags": list(record.tags) or None,
        "unique": record.unique,
        "options": _options(record.options),
        "given": dict(record.given),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "forced": forced(record),
        "lane": lane(record),
        "cancel": record.cancel and _cancel(record.cancel),
        "parent": record.parent,
        "depends_on": [_dependency(one) for one in record.depends_on] or None,
        "origin": record.origin and origins.document(record.origin),
    }
    whole = present(given | moving(record))
    whole["data"] = given["data"]
    return whole


def documents(records: Sequence[Record]) -> list[Document]:
    """Return the whole document of each; a waiting job that differs in little from the one before is made from that."""
    made: list[Document] = []
    shared: tuple[Any, ...] = ()
    for one in records:
        before, shared = shared, _SHARED(one)
        if made and one.status is Status.WAITING and all(map(operator.is_, before, shared)):
            made.append({**made[-1], **_own(one)})
        else:
            made.append(document(one))
    return made


def _own(record: Record) -> Document:
    return {
        "_id": record.id,
        "data": as_bson(record.data),
        "created_at": record.created_at,
        "ready_at": record.ready_at,
        "rank": record.rank,
    }


def moving(record: Record) -> Document:
    """Return the fields that transitions change, None where empty; not the unique key and not a cancel request.

    ``due`` and ``expires`` repeat times while they matter: a sparse index on them holds nothing else.
    """
    scheduled = record.status is Status.POSTPONED and not record.waiting_for
    unstarted = record.status < Status.PROCESSING and record.started_at is None
    return {
        "status": int(record.status),
        "cause": record.cause.value,
        "queue": record.queue,
        "ready_at": record.ready_at,
        "due": record.ready_at if scheduled else None,
        "expires": record.expires_at if unstarted else None,
        "rank": record.rank,
        "waiting_for": list(record.waiting_for) or None,
        "holder": record.holder and _holder(record.holder),
        "claims": record.claims,
        "failures": record.failures,
        "crashes": record.crashes,
        "unloadable_since": record.unloadable_since,
        "unloadable_times": record.unloadable_times or None,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "progress": float(record.progress),
        "progress_message": clean(record.progress_message) or None,
        "progress_at": record.progress_at,
        "state": record.state,
        "cursor": record.cursor,
        "course": record.course and courses.document(record.course),
        "result": record.result,
        "error": record.error and failure_fields(record.error),
        "attempts": [_attempt(attempt) for attempt in record.attempts] or None,
    }


def forced(record: Record) -> bool | int:
    """Return whether the job wants a child of its own; a number for one with limits, which stands apart in indexes."""
    return int(record.options.force_spawn) + 2 if record.lane else record.options.force_spawn


def lane(record: Record) -> str | None:
    """Return the queue and the lane as one text, by which claims find jobs with limits; None for others."""
    return f"{record.queue} {record.lane}" if record.lane else None


def update(record: Record) -> Document:
    """Return the update that brings a stored record to ``record``, as far as transitions go."""
    return setting(moving(record))


_DECLARED = ("priority", "tags", "options", "expires_at", "forced", "lane", "origin")


def declared(record: Record, before: Record) -> Document:
    """Return the update that also brings in what the record's class declares and ``before`` did not have."""
    whole = document(record)
    fields = moving(record) | {name: whole.get(name) for name in _DECLARED}
    if record.unique != before.unique:
        fields["unique"] = record.unique
    return setting(fields)


def setting(fields: Document) -> Document:
    """Return the update that sets these fields and removes those that are None."""
    gone = {name: "" for name, value in fields.items() if value is None}
    change: Document = {"$set": present(fields)}
    if gone:
        change["$unset"] = gone
    return change


def present(fields: Document) -> Document:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def record(kept: Document) -> Record:
    """Return the record of a document; a damaged one gives its readable fields and ``damage``."""
    try:
        _check_types(kept)
        return _record(kept)
    except Exception:
        from taskqueue.store.mongodb.damaged import damaged  # most processes never meet one

        return damaged(kept)


def _check_types(kept: Document) -> None:
    """Raise ``TypeError`` if a required field has another type than it was written with."""
    is_plain = tuple(map(type, _plain(kept))) == _PLAIN and is_rank(kept["rank"], kept["priority"])
    if not is_plain or not (_MOMENT.issuperset(map(type, map(kept.get, _MOMENTS)))):
        raise TypeError("a field is not of the type that it was written with")
    if not _TEXT.issuperset(map(type, map(kept.get, _TEXTS))):
        raise TypeError("a field that is text has another type")


_plain = operator.itemgetter(
    "_id", "job", "queue", "priority", "given", "created_at", "claims", "failures", "crashes", "progress"
)
_PLAIN = (ObjectId, str, str, int, dict, datetime, int, int, int, float)
_MOMENTS = ("ready_at", "started_at", "ended_at", "expires_at", "progress_at", "unloadable_since")
_MOMENT = frozenset((datetime, type(None)))
_TEXTS = ("unique", "lane", "state", "result", "cursor", "progress_message")
_TEXT = frozenset((str, type(None)))


def _record(kept: Document) -> Record:
    find = kept.get
    holder, cancel, error = find("holder"), find("cancel"), find("error")
    return changed(
        _BLANK,
        id=kept["_id"],
        job=kept["job"],
        data=encode(kept["data"], limit=ROOM),
        queue=kept["queue"],
        priority=kept["priority"],
        tags=tags_in(find("tags")),
        unique=find("unique"),
        options=options_in(kept["options"]),
        given=kept["given"],
        lane=lane_in(find("lane")),
        parent=id_in(find("parent")),
        depends_on=tuple(dependency_of(one) for one in find("depends_on", ())),
        origin=origins.origin(kept["origin"]) if "origin" in kept else None,
        created_at=kept["created_at"],
        expires_at=find("expires_at"),
        status=Status(kept["status"]),
        cause=Cause(kept["cause"]),
        ready_at=find("ready_at"),
        rank=int(kept["rank"]),
        waiting_for=ids_in(find("waiting_for")),
        holder=holder and Holder(**holder),
        claims=kept["claims"],
        failures=kept["failures"],
        crashes=kept["crashes"],
        cancel=cancel and CancelRequest(**cancel),
        unloadable_since=find("unloadable_since"),
        unloadable_times=find("unloadable_times", 0),
        started_at=find("started_at"),
        ended_at=find("ended_at"),
        progress=kept["progress"],
        progress_message=find("progress_message", ""),
        progress_at=find("progress_at"),
        state=find("state"),
        cursor=find("cursor"),
        course=courses.continuation_of(kept["course"]) if "course" in kept else None,
        result=find("result"),
        error=error and failure_of(error),
        attempts=tuple(attempt_of(attempt) for attempt in find("attempts", ())),
    )


def records(kept: Iterable[Document]) -> list[Record]:
    """Return the records that documents describe, in order, without those whose very id cannot be read."""
    return list(readable(kept, record, "a job with the document"))


def held_by(holder: Holder) -> Document:
    """Return the filter for the claims of this holder."""
    return {"status": int(Status.PROCESSING), "holder.seat": holder.seat, "holder.incarnation": holder.incarnation}


def cancel_request(reason: str, requested_at: datetime) -> Document:
    """Return the cancel request as it is kept in a record."""
    return {"requested_at": requested_at, "reason": clean(reason)}


def _dependency(dependency: Dependency) -> Document:
    return {"id": dependency.id, "on_failure": dependency.on_failure.value}


def dependency_of(kept: Document) -> Dependency:
    """Return the dependency that a document describes."""
    return Dependency(id=kept["id"], on_failure=OnFailure(kept["on_failure"]))


def _holder(holder: Holder) -> Document:
    return {"seat": holder.seat, "incarnation": holder.incarnation}


def _cancel(cancel: CancelRequest) -> Document:
    return cancel_request(cancel.reason, cancel.requested_at)


def _options(options: Options) -> Document:
    """Return the options; conditions whose settings are 1 and True are equal, but not the same."""
    return options_fields(options) if options.ready is not None else _known_document(options)


@functools.lru_cache(maxsize=512)
def _known_document(options: Options) -> Document:
    """Return the options, shared by all jobs that have the same; callers must not change them."""
    return options_fields(options)


def options_in(kept: Document) -> Options:
    """Return the options, once for all jobs that have the same; most have. Written out, 1 and True are two."""
    text = repr(kept)
    known = _KNOWN_OPTIONS.get(text)
    if known is None:
        if len(_KNOWN_OPTIONS) >= OPTIONS_KEPT:
            _KNOWN_OPTIONS.clear()
        known = _KNOWN_OPTIONS[text] = options_of(kept)
    return known


def _attempt(attempt: Attempt) -> Document:
    return present(
        {
            "number": attempt.number,
            "claims": attempt.claims,
            "node": attempt.node,
            "pid": attempt.pid,
            "started_at": attempt.started_at,
            "ended_at": attempt.ended_at,
            "outcome": attempt.outcome,
            "error": attempt.error and failure_fields(attempt.error),
            "exit": clean(attempt.exit) or None,
            "peak_memory": attempt.peak_memory,
        }
    )


def attempt_of(kept: Document) -> Attempt:
    """Return the attempt that a document describes."""
    error = kept.get("error")
    times = {"started_at": time_in(kept.get("started_at")), "ended_at": needed_time_in(kept["ended_at"])}
    return Attempt(**(kept | times | {"error": error and failure_of(error)}))
