"""Reads the fields of documents, and checks them: other programs may have written them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from bson import ObjectId

from taskqueue.model.lifecycle import continuation as courses
from taskqueue.model.limits import lane_of
from taskqueue.model.reading import figure, number, or_none, priority, rank, text
from taskqueue.model.record import Attempt, CancelRequest, Cause, Dependency, Holder, OnFailure, Options, Status
from taskqueue.model.schedules import origin as origins
from taskqueue.model.serializer import DATA_LIMIT, encode
from taskqueue.store.codec import attempt_of, failure_of, options_of

ROOM = 4 * DATA_LIMIT
"""The bound for data read back."""

OPTIONS_KEPT = 1000
"""Different options that are remembered at once."""

_KNOWN_OPTIONS: dict[str, Options] = {}


def lane_in(kept: str | None) -> str:
    """Return the lane of a text that starts with the queue; raise ``ValueError`` if it is none."""
    return "" if kept is None else lane_of(kept.partition(" ")[2])


def time_in(kept: Any) -> datetime | None:
    """Return the time, None for none; raise ``TypeError`` for anything else, such as one out of the calendar."""
    if kept is None or type(kept) is datetime:
        return kept
    raise TypeError(f"{kept!r} is no time in the years 1 to 9999")


def needed_time_in(kept: Any) -> datetime:
    """Return the time; raise ``TypeError`` for anything else, such as one out of the calendar."""
    found = time_in(kept)
    if found is None:
        raise TypeError("a time is missing")
    return found


def id_in(kept: Any) -> ObjectId | None:
    """Return the id, None for none; raise ``TypeError`` for anything else."""
    if kept is None or type(kept) is ObjectId:
        return kept
    raise TypeError(f"{kept!r} is no id of a job")


def ids_in(kept: Any) -> tuple[ObjectId, ...]:
    """Return the ids; raise ``TypeError`` for anything else."""
    ids = tuple(kept or ())
    if any(type(id) is not ObjectId for id in ids):
        raise TypeError(f"{kept!r} are no ids of jobs")
    return ids


def tags_in(kept: Any) -> tuple[str, ...]:
    """Return the tags; raise ``TypeError`` for anything else."""
    return tuple(map(text, kept or ()))


def data_in(kept: Any) -> str:
    """Return the data as Extended JSON text: accepted data are returned, also under a raised limit."""
    return encode(kept, limit=ROOM)


def dependencies_in(kept: Any) -> tuple[Dependency, ...]:
    """Return the dependencies; raise for anything else."""
    return tuple(Dependency(id=one["id"], on_failure=OnFailure(one["on_failure"])) for one in kept or ())


def attempts_in(kept: Any) -> tuple[Attempt, ...]:
    """Return the attempts; raise for anything else."""
    return tuple(attempt_of(one, needed_time_in) for one in kept or ())


def options_in(kept: Mapping[str, Any]) -> Options:
    """Return the options, once for all jobs that have the same; most have. Written out, 1 and True are two."""
    text = repr(kept)
    known = _KNOWN_OPTIONS.get(text)
    if known is None:
        if len(_KNOWN_OPTIONS) >= OPTIONS_KEPT:
            _KNOWN_OPTIONS.clear()
        known = _KNOWN_OPTIONS[text] = options_of(kept)
    return known


def status_in(kept: Any) -> Status:
    """Return the status; one that cannot be read counts as FAILED, as in its record."""
    return Status(kept) if kept in _STATUSES else Status.FAILED


_STATUSES = [int(status) for status in Status]


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise TypeError(f"{value!r} is no document")


def _holder(value: Any) -> Holder:
    return Holder(seat=text(value["seat"]), incarnation=text(value["incarnation"]))


def _cancel(value: Any) -> CancelRequest:
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
    "attempts": attempts_in,
}
"""How each field but the id is read, of a document that may lack it or have it damaged."""
