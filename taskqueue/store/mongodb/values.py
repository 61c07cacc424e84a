"""Checks the values of documents when they are read: other programs may have written them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bson import ObjectId

from taskqueue.model.limits import lane_of
from taskqueue.model.reading import text
from taskqueue.model.record import Status


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


def status_in(kept: Any) -> Status:
    """Return the status; one that cannot be read counts as FAILED, as in its record."""
    return Status(kept) if kept in _STATUSES else Status.FAILED


_STATUSES = [int(status) for status in Status]
