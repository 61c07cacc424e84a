"""The origin of a job that no caller added: a series or a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.schedules import Again, Every, trigger
from taskqueue.model.timestamps import milliseconds, moment


@dataclass(frozen=True, kw_only=True)
class Series:
    """The series of an occurrence, and how it continues."""

    id: JobId
    """The id of the first occurrence."""
    trigger: Every | Again
    occurrence: int = 1
    until: datetime | None = None
    """No occurrence starts later."""
    max_runs: int | None = None
    stop_after_failures: int | None = None
    """The series ends when this many occurrences have failed in a row."""
    failed: int = 0
    """How many occurrences before this one have failed in a row."""
    expires_for: float | None = None
    """Seconds after it is due at which it is too late to start an occurrence."""


@dataclass(frozen=True, kw_only=True)
class FromSchedule:
    """The schedule that started a job, and the scheduled time."""

    schedule: str
    slot: datetime
    trigger: Every | Again | None = None
    """The trigger that gives the next time at the end of the job; None if that does not depend on it."""
    is_counted: bool = False
    """Whether the schedule keeps how the job ended (``stop_after_failures``)."""


Origin: TypeAlias = Series | FromSchedule


def follows_endlessly(origin: Origin | None) -> bool:
    """Return whether this is the origin of a later occurrence of a series that neither a number nor a time ends."""
    if not isinstance(origin, Series) or origin.occurrence == 1:
        return False
    return origin.max_runs is None and origin.until is None


def document(origin: Origin) -> dict[str, Any]:
    """Return the origin as plain JSON values; ids as text, times as milliseconds since 1970."""
    match origin:
        case Series():
            return {
                "kind": "series",
                "id": str(origin.id),
                "trigger": origin.trigger.document(),
                "occurrence": origin.occurrence,
                "until": None if origin.until is None else milliseconds(origin.until),
                "max_runs": origin.max_runs,
                "stop_after_failures": origin.stop_after_failures,
                "failed": origin.failed,
                "expires_for": origin.expires_for,
            }
        case FromSchedule():
            return {
                "kind": "schedule",
                "schedule": origin.schedule,
                "slot": milliseconds(origin.slot),
                "trigger": None if origin.trigger is None else origin.trigger.document(),
                **({"is_counted": True} if origin.is_counted else {}),
            }


def origin(document: Mapping[str, Any]) -> Origin:
    """Return the origin that ``document`` described."""
    fields = dict(document)
    kind = fields.pop("kind")
    given = fields["trigger"]
    fields["trigger"] = None if given is None else trigger(given)
    if kind == "schedule":
        return FromSchedule(**(fields | {"slot": moment(fields["slot"])}))
    until = fields["until"]
    return Series(**(fields | {"id": ObjectId(fields["id"]), "until": None if until is None else moment(until)}))
