"""Converts a record to a MongoDB document and back; checks every field, since another program may have written it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any, TypeAlias

from bson import ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion

from taskqueue.model.lifecycle import continuation as courses
from taskqueue.model.limits import lane_of
from taskqueue.model.reading import damaged_record, figure, number, or_none, priority, rank, readable, text
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
from taskqueue.model.serializer import DATA_LIMIT, as_bson, clean, clipped, encode
from taskqueue.model.timestamps import EPOCH, whole
from taskqueue.store.codec import attempt_fields, attempt_of, failure_fields, failure_of, options_fields, options_of

ROOM = 4 * DATA_LIMIT
"""Maximum number of bytes of data that are read back."""

OPTIONS_KEPT = 1000
"""How many different options are cached."""

_KNOWN_OPTIONS: dict[str, Options] = {}


def lane_in(value: str | None) -> str:
    """Return the lane in a text that starts with the queue; raise ``ValueError`` if there is none."""
    return "" if value is None else lane_of(value.partition(" ")[2])


def time_in(value: Any) -> datetime | None:
    """Return the time, None if missing; raise ``TypeError`` for anything else, such as a time beyond the calendar."""
    if value is None or type(value) is datetime:
        return value
    raise TypeError(f"{value!r} is not a time in the years 1 to 9999")


def needed_time_in(value: Any) -> datetime:
    """Return the time; raise ``TypeError`` for anything else, such as a time beyond the calendar."""
    time = time_in(value)
    if time is None:
        raise TypeError("a time is missing")
    return time


def id_in(value: Any) -> ObjectId | None:
    """Return the id, or None if it is missing; raise ``TypeError`` for anything else."""
    if value is None or type(value) is ObjectId:
        return value
    raise TypeError(f"{value!r} is not a job id")


def ids_in(values: Any) -> tuple[ObjectId, ...]:
    """Return the ids; raise ``TypeError`` for anything else."""
    ids = tuple(values or ())
    if any(type(id) is not ObjectId for id in ids):
        raise TypeError(f"{values!r} are not job ids")
    return ids


def tags_in(values: Any) -> tuple[str, ...]:
    """Return the tags; raise ``TypeError`` for anything else."""
    return tuple(map(text, values or ()))


def data_in(data: Any) -> str:
    """Return the data as Extended JSON text: data accepted under a higher limit are returned, too."""
    return encode(data, limit=ROOM)


def dependencies_in(values: Any) -> tuple[Dependency, ...]:
    """Return the dependencies; raise for anything else."""
    return tuple(Dependency(id=value["id"], on_failure=OnFailure(value["on_failure"])) for value in values or ())


def attempts_in(values: Any) -> tuple[Attempt, ...]:
    """Return the attempts; raise for anything else."""
    return tuple(attempt_of(value, needed_time_in) for value in values or ())


def options_in(given: Mapping[str, Any]) -> Options:
    """Return the options; jobs with the same options share one object. ``repr`` tells 1 from True, a dict does not."""
    text = repr(given)
    options = _KNOWN_OPTIONS.get(text)
    if options is None:
        if len(_KNOWN_OPTIONS) >= OPTIONS_KEPT:
            _KNOWN_OPTIONS.clear()
        options = _KNOWN_OPTIONS[text] = options_of(given)
    return options


def status_in(value: Any) -> Status:
    """Return the status; an unreadable one counts as FAILED, as it does in the record."""
    return Status(value) if value in _STATUSES else Status.FAILED


_STATUSES = [int(status) for status in Status]


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise TypeError(f"{value!r} is not a document")


def _read_holder(value: Any) -> Holder:
    return Holder(seat=text(value["seat"]), incarnation=text(value["incarnation"]))


def _read_cancel(value: Any) -> CancelRequest:
    return CancelRequest(requested_at=needed_time_in(value["requested_at"]), reason=text(value["reason"]))


READERS: Mapping[str, Callable[[Any], Any]] = {
    "job": text,
    "data": data_in,
    "queue": text,
    "priority": priority,
    "tags": tags_in,
    "unique": or_none(text),
    "options": options_in,
    "given": _mapping,
    "lane": lane_in,
    "parent": id_in,
    "depends_on": dependencies_in,
    "origin": or_none(origins.origin),
    "created_at": needed_time_in,
    "expires_at": time_in,
    "status": lambda value: Status(number(value)),
    "cause": Cause,
    "ready_at": time_in,
    "rank": lambda value: rank(int(figure(value))),
    "waiting_for": ids_in,
    "holder": or_none(_read_holder),
    "claims": number,
    "failures": number,
    "crashes": number,
    "cancel": or_none(_read_cancel),
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
    "attempts": attempts_in,
}
"""How each field except the id is read from a document in which it may be missing or damaged."""


Document: TypeAlias = dict[str, Any]

CODEC: CodecOptions[Document] = CodecOptions(
    document_class=dict,
    tz_aware=True,
    tzinfo=timezone.utc,
    uuid_representation=UuidRepresentation.STANDARD,
    unicode_decode_error_handler="backslashreplace",  # one damaged value must not hide the whole answer
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)

_BLANK = Record(id=ObjectId(b"\0" * 12), job="", created_at=EPOCH, ready_at=None)

_OWN = ("id", "data", "created_at", "ready_at", "rank")
"""The fields that differ among jobs of one class with the same options."""

_SHARED = operator.attrgetter(*(field.name for field in fields(Record) if field.name not in _OWN))


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
        "depends_on": [_dependency(dependency) for dependency in record.depends_on] or None,
        "origin": record.origin and origins.document(record.origin),
    }
    whole = present(given | moving(record))
    whole["data"] = given["data"]
    return whole


def documents(records: Sequence[Record]) -> list[Document]:
    """Return the whole document of each record; it is made from the previous one if only the ``_OWN`` fields differ."""
    made: list[Document] = []
    shared: tuple[Any, ...] = ()
    for record in records:
        before, shared = shared, _SHARED(record)
        if made and record.status is Status.WAITING and all(map(operator.is_, before, shared)):
            made.append({**made[-1], **_own(record)})
        else:
            made.append(document(record))
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

    ``due`` and ``expires`` repeat times only while they matter, so that a sparse index on them holds nothing else.
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
        "holder": record.holder and holder_document(record.holder),
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
        "attempts": [present(attempt_fields(attempt, whole)) for attempt in record.attempts] or None,
    }


def forced(record: Record) -> bool | int:
    """Return whether the job needs its own child process; a number if it has limits, to keep it apart in indexes."""
    return int(record.options.is_beside_pool) + 2 if record.lane else record.options.is_beside_pool


def lane(record: Record) -> str | None:
    """Return queue and lane as one text, by which claims find jobs with limits; None for other jobs."""
    return f"{record.queue} {record.lane}" if record.lane else None


def update(record: Record) -> Document:
    """Return the update that brings a stored record to ``record``, as far as transitions go."""
    return setting(moving(record))


_DECLARED = ("priority", "tags", "options", "expires_at", "forced", "lane", "origin")


def declared(record: Record, before: Record) -> Document:
    """Return the update that also writes the options that the record's class declares and ``before`` lacked."""
    whole = document(record)
    fields = moving(record) | {name: whole.get(name) for name in _DECLARED}
    if record.unique != before.unique:
        fields["unique"] = record.unique
    return setting(fields)


def setting(fields: Document) -> Document:
    """Return the update that sets these fields and removes fields that are None."""
    gone = {name: "" for name, value in fields.items() if value is None}
    change: Document = {"$set": present(fields)}
    if gone:
        change["$unset"] = gone
    return change


def present(fields: Document) -> Document:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def record(stored: Document) -> Record:
    """Return the record of a document; a damaged one gives its readable fields and ``damage``."""
    try:
        return _record(stored)
    except Exception:
        return _damaged(stored)


def _record(stored: Document) -> Record:
    """Return the record; raise if a field is not of the type that it was written with."""
    if tuple(map(type, _plain(stored))) != _PLAIN or not is_rank(stored["rank"], stored["priority"]):
        raise TypeError("a field is not of the type that it was written with")
    return changed(
        _BLANK,
        **{name: READERS[name](stored[name]) for name in _OTHERS.intersection(stored)},
        id=stored["_id"],
        job=stored["job"],
        data=data_in(stored["data"]),
        queue=stored["queue"],
        priority=stored["priority"],
        options=options_in(stored["options"]),
        given=stored["given"],
        created_at=stored["created_at"],
        status=Status(stored["status"]),
        cause=Cause(stored["cause"]),
        rank=int(stored["rank"]),
        claims=stored["claims"],
        failures=stored["failures"],
        crashes=stored["crashes"],
        progress=stored["progress"],
    )


_plain = operator.itemgetter(
    "_id", "job", "queue", "priority", "given", "created_at", "claims", "failures", "crashes", "progress"
)
_PLAIN = (ObjectId, str, str, int, dict, datetime, int, int, int, float)
_OTHERS = frozenset(READERS).difference(
    ("job", "data", "queue", "priority", "options", "given", "created_at", "status", "cause", "rank", "claims"),
    ("failures", "crashes", "progress"),
)
"""The fields that some documents lack."""


def _damaged(stored: Document) -> Record:
    """Return the readable fields of a document, and the names of the others; raise if its id is invalid."""
    id = stored["_id"]
    if not isinstance(id, ObjectId):
        raise TypeError(f"{id!r} is not a job id")
    return damaged_record(id, {name: functools.partial(read, stored.get(name)) for name, read in READERS.items()})


def records(stored: Iterable[Document]) -> list[Record]:
    """Return the records that the documents describe, in order, without any whose id cannot be read."""
    return list(readable(stored, record, "a job with the document"))


def unmoved(before: Record) -> Document:
    """Return the filter that matches a record unchanged since it was read, as far as it is readable.

    A pending record must have every source from which its derived fields are written: its owner may change them.
    """
    if before.damage:
        return {"_id": before.id, "status": int(before.status)}
    where: Document = {
        "_id": before.id,
        "status": int(before.status),
        "claims": before.claims,
        "cancel": {"$exists": before.cancel is not None},
    }
    if before.status not in (Status.WAITING, Status.POSTPONED):
        return where
    where["waiting_for"] = list(before.waiting_for) or {"$in": [None, []]}
    where |= {"queue": before.queue, "rank": before.rank, "ready_at": before.ready_at}
    return where | {"given": dict(before.given)}


def held_by(holder: Holder) -> Document:
    """Return the filter for the claims of this holder."""
    return {"status": int(Status.PROCESSING), "holder.seat": holder.seat, "holder.incarnation": holder.incarnation}


def cancel_request(reason: str, requested_at: datetime) -> Document:
    """Return the cancel request as it is stored in a record."""
    return {"requested_at": requested_at, "reason": clipped(reason)}


def _dependency(dependency: Dependency) -> Document:
    return {"id": dependency.id, "on_failure": dependency.on_failure.value}


def holder_document(holder: Holder) -> Document:
    """Return the holder as it is kept with a job or a lease."""
    return {"seat": holder.seat, "incarnation": holder.incarnation}


def _cancel(cancel: CancelRequest) -> Document:
    return cancel_request(cancel.reason, cancel.requested_at)


def _options(options: Options) -> Document:
    """Return the options; two conditions with the settings 1 and True are equal, but not the same."""
    return options_fields(options) if options.ready is not None else _known_document(options)


@functools.lru_cache(maxsize=512)
def _known_document(options: Options) -> Document:
    """Return the options, shared by all jobs that have the same; callers must not change them."""
    return options_fields(options)
