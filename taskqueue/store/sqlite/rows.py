"""Converts a record to a row and back: times as milliseconds, parts as JSON text, empty values as NULL."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle import continuation as courses
from taskqueue.model.limits import lane_of
from taskqueue.model.reading import figure, number
from taskqueue.model.record import (
    Attempt,
    CancelRequest,
    Cause,
    Dependency,
    Failure,
    Holder,
    OnFailure,
    Record,
    Status,
    is_rank,
)
from taskqueue.model.schedules import origin as origins
from taskqueue.model.serializer import clean, dumps
from taskqueue.model.timestamps import EPOCH, milliseconds, moment
from taskqueue.store.codec import failure_fields, failure_of
from taskqueue.store.reading import readable
from taskqueue.store.sqlite.options import options_of, options_text

Row = tuple[Any, ...]

COLUMNS = (
    "id, status, cause, queue, forced, rank, ready_at, seat, incarnation, claims, failures, crashes, priority, "
    "created_at, started_at, ended_at, expires_at, unique_key, waiting_for, cancel, unloadable_since, "
    "unloadable_times, progress, progress_message, progress_at, job, options, given, tags, error, attempts, "
    "state, result, lane, parent, depends_on, origin, cursor, course, data"
)

CHANGING = (
    "status = ?, cause = ?, queue = ?, rank = ?, ready_at = ?, seat = ?, incarnation = ?, failures = ?, crashes = ?, "
    "started_at = ?, ended_at = ?, waiting_for = ?, unloadable_since = ?, unloadable_times = ?, "
    "progress = ?, progress_message = ?, progress_at = ?, error = ?, attempts = ?, state = ?, result = ?, "
    "cursor = ?, course = ?"
)
"""The columns that an outcome changes; the fence, the unique key and a cancel request are the store's own."""

_STATUSES = tuple(Status)
_CAUSES = {cause.value: cause for cause in Cause}


def row(record: Record) -> Row:
    """Return the values of ``COLUMNS`` for a new record."""
    holder = record.holder
    return (
        str(record.id),
        int(record.status),
        record.cause.value,
        record.queue,
        int(record.options.force_spawn) + (2 if record.lane else 0),
        record.rank,
        instant(record.ready_at),
        holder and holder.seat,
        holder and holder.incarnation,
        record.claims,
        record.failures,
        record.crashes,
        record.priority,
        milliseconds(record.created_at),
        instant(record.started_at),
        instant(record.ended_at),
        instant(record.expires_at),
        record.unique,
        _ids_text(record.waiting_for),
        cancel_text(record.cancel),
        instant(record.unloadable_since),
        record.unloadable_times,
        record.progress,
        clean(record.progress_message),
        instant(record.progress_at),
        record.job,
        options_text(record.options),
        dumps(record.given) if record.given else None,
        dumps(record.tags) if record.tags else None,
        _failure_text(record.error),
        attempts_text(record.attempts),
        record.state,
        record.result,
        record.lane or None,
        record.parent and str(record.parent),
        _dependencies_text(record.depends_on),
        None if record.origin is None else dumps(origins.document(record.origin)),
        record.cursor,
        _course_text(record),
        record.data,
    )


def changes(record: Record) -> Row:
    """Return the values of ``CHANGING``."""
    holder = record.holder
    return (
        int(record.status),
        record.cause.value,
        record.queue,
        record.rank,
        instant(record.ready_at),
        holder and holder.seat,
        holder and holder.incarnation,
        record.failures,
        record.crashes,
        instant(record.started_at),
        instant(record.ended_at),
        _ids_text(record.waiting_for),
        instant(record.unloadable_since),
        record.unloadable_times,
        record.progress,
        clean(record.progress_message),
        instant(record.progress_at),
        _failure_text(record.error),
        attempts_text(record.attempts),
        record.state,
        record.result,
        record.cursor,
        _course_text(record),
    )


def record(row: Row) -> Record:
    """Return the record of a row with ``COLUMNS``; a damaged row gives its readable fields and ``damage``.

    A frozen dataclass sets its fields one by one; a claim of many records is built at once instead. Most claimed jobs
    have the values of new ones.
    """
    try:
        if tuple(map(type, _plain(row))) != _PLAIN or not is_rank(row[5], row[12]):
            raise TypeError("a field is not of the type that it was written with")
        return _record(row)
    except Exception:
        from taskqueue.store.sqlite.damaged import damaged  # most processes never meet one

        return damaged(row)


def records_of(rows: Iterable[Row]) -> list[Record]:
    """Return the records of these rows, in order, without those whose very id cannot be read."""
    return list(readable(rows, record, "a job with the row"))


def _record(row: Row) -> Record:
    made = Record.__new__(Record)
    seat = row[7]
    object.__setattr__(
        made,
        "__dict__",
        {
            **(_AS_NEW if (row[_STORY], row[_PARTS]) == _NOTHING else _more(row)),
            "id": ObjectId(row[0]),
            "status": _STATUSES[row[1]],
            "cause": _CAUSES[row[2]],
            "queue": row[3],
            "rank": row[5],
            "ready_at": _moment(row[6]),
            "holder": None if seat is None else _holder(seat, row[8]),
            "claims": row[9],
            "failures": row[10],
            "crashes": row[11],
            "priority": row[12],
            "created_at": moment(row[13]),
            "job": row[25],
            "options": options_of(row[26]),
            "given": {} if row[27] is None else given_of(row[27]),
            "data": row[39],
        },
    )
    return made


def _more(row: Row) -> Mapping[str, Any]:
    """Return the fields that are in ``_STORY`` and ``_PARTS``."""
    if not _TEXTS.issuperset(map(type, _texts(row))):
        raise TypeError("a field that is text has another type")
    return {
        "started_at": _moment(row[14]),
        "ended_at": _moment(row[15]),
        "expires_at": _moment(row[16]),
        "unique": row[17],
        "waiting_for": () if row[18] is None else tuple(map(ObjectId, json.loads(row[18]))),
        "cancel": cancel_request(row[19]),
        "unloadable_since": _moment(row[20]),
        "unloadable_times": number(row[21]),
        "progress": figure(row[22]),
        "progress_message": row[23],
        "progress_at": _moment(row[24]),
        "tags": () if row[28] is None else tags_of(row[28]),
        "error": None if row[29] is None else failure_of(json.loads(row[29])),
        "attempts": () if row[30] is None else tuple(map(attempt_of, json.loads(row[30]))),
        "state": row[31],
        "result": row[32],
        "lane": "" if row[33] is None else lane_of(row[33]),
        "parent": row[34] and ObjectId(row[34]),
        "depends_on": dependencies_of(row[35]),
        "origin": None if row[36] is None else origins.origin(json.loads(row[36])),
        "cursor": row[37],
        "course": None if row[38] is None else courses.continuation_of(json.loads(row[38])),
        "damage": "",
    }


@functools.lru_cache(maxsize=16)
def _holder(seat: str, incarnation: str) -> Holder:
    """Return the holder, the same one for all records of a claim."""
    return Holder(seat=seat, incarnation=incarnation)


def instant(time: datetime | None) -> int | None:
    """Return the time as it is stored, in milliseconds since 1970."""
    return None if time is None else milliseconds(time)


def cancel_text(cancel: CancelRequest | None) -> str | None:
    """Return the cancel request as text."""
    if cancel is None:
        return None
    return dumps({"requested_at": milliseconds(cancel.requested_at), "reason": clean(cancel.reason)})


def cancel_request(text: str | None) -> CancelRequest | None:
    """Return the cancel request of its text."""
    if text is None:
        return None
    fields = json.loads(text)
    return CancelRequest(requested_at=moment(fields["requested_at"]), reason=fields["reason"])


def given_of(text: str | None) -> Mapping[str, Any]:
    """Return the options as they were given, of their text."""
    given = {} if text is None else json.loads(text)
    if type(given) is not dict:
        raise TypeError("what was given is no mapping")
    return given


def tags_of(text: str | None) -> tuple[str, ...]:
    """Return the tags of their text."""
    tags = () if text is None else tuple(json.loads(text))
    if any(type(tag) is not str for tag in tags):
        raise TypeError("a tag is no text")
    return tags


def _moment(stored: int | None) -> datetime | None:
    return None if stored is None else moment(stored)


def _ids_text(ids: Sequence[ObjectId]) -> str | None:
    return dumps([str(id) for id in ids]) if ids else None


def _dependencies_text(dependencies: Sequence[Dependency]) -> str | None:
    return dumps([[str(one.id), one.on_failure.value] for one in dependencies]) if dependencies else None


def dependencies_of(text: str | None) -> tuple[Dependency, ...]:
    """Return the dependencies of their text."""
    pairs = () if text is None else json.loads(text)
    return tuple(Dependency(id=ObjectId(id), on_failure=OnFailure(what)) for id, what in pairs)


def _course_text(record: Record) -> str | None:
    return None if record.course is None else dumps(courses.document(record.course))


def _failure_text(failure: Failure | None) -> str | None:
    return None if failure is None else dumps(failure_fields(failure))


def attempts_text(attempts: Sequence[Attempt]) -> str | None:
    """Return the attempts as text."""
    return dumps([_attempt_fields(attempt) for attempt in attempts]) if attempts else None


def _attempt_fields(attempt: Attempt) -> Mapping[str, Any]:
    fields = {
        "number": attempt.number,
        "claims": attempt.claims,
        "node": attempt.node,
        "pid": attempt.pid,
        "started_at": instant(attempt.started_at),
        "ended_at": milliseconds(attempt.ended_at),
        "outcome": attempt.outcome,
    }
    if attempt.error is not None:
        fields["error"] = failure_fields(attempt.error)
    if attempt.exit:
        fields["exit"] = clean(attempt.exit)
    if attempt.peak_memory is not None:
        fields["peak_memory"] = attempt.peak_memory
    return fields


def attempt_of(fields: Mapping[str, Any]) -> Attempt:
    """Return the attempt of its fields."""
    error = fields.get("error")
    return Attempt(
        number=fields["number"],
        claims=fields["claims"],
        node=fields["node"],
        pid=fields["pid"],
        started_at=_moment(fields["started_at"]),
        ended_at=moment(fields["ended_at"]),
        outcome=fields["outcome"],
        error=None if error is None else failure_of(error),
        exit=fields.get("exit", ""),
        peak_memory=fields.get("peak_memory"),
    )


_plain = itemgetter(3, 5, 9, 10, 11, 12, 25, 39)
_PLAIN = (str, int, int, int, int, int, str, str)  # queue, rank, claims, failures, crashes, priority, job, data
_texts = itemgetter(17, 23, 31, 32, 33, 37)
_TEXTS = frozenset((str, type(None)))  # unique, progress_message, state, result, lane, cursor
_STORY = slice(14, 25)  # what may have happened to a job: started_at to progress_at
_PARTS = slice(28, 39)  # what there may be to a job, or have come of it: tags to course
_NEW = Record(id=JobId(), job="", created_at=EPOCH, ready_at=None)
_AS_NEW = vars(_NEW)
_NOTHING = (row(_NEW)[_STORY], row(_NEW)[_PARTS])
