"""The stored named schedule: template, trigger, state, and missed times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Protocol

from bson import ObjectId

from taskqueue.errors import InvalidOption, Unreadable
from taskqueue.model.ids import JobId
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.reading import Reading, figure, number, or_none, text
from taskqueue.model.record import Record
from taskqueue.model.schedules import Trigger, UnreadableTrigger, trigger
from taskqueue.model.serializer import clean
from taskqueue.model.timestamps import EPOCH, milliseconds, moment

NAME_SHAPE = r"[^\s/]{1,200}"
"""A schedule's name: no spaces and no slashes, so that it works on a command line and in a URL."""

RECENT = 100
"""How many of the last jobs a schedule remembers."""

MISSES = 20
"""How many missed periods it remembers, each with the times missed together."""


class Stage(str, Enum):
    """Whether a schedule starts jobs."""

    __str__ = str.__str__

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class Overlap(str, Enum):
    """What a schedule does at a scheduled time while one of its jobs waits or runs."""

    __str__ = str.__str__

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"


@dataclass(frozen=True, kw_only=True)
class Miss:
    """Missed times, and why they started no job."""

    first: datetime
    last: datetime
    count: int
    """How many they are, counted up to a thousand."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class NamedSchedule:
    """A named schedule. ``version`` grows with every change; a change applies only to the version it was made from."""

    name: str
    trigger: Trigger
    template: Record
    """A job as it was when the schedule was defined; each scheduled time starts one like it."""
    expires_for: float | None = None
    overlap: Overlap = Overlap.SKIP
    misfire: str = "once"
    """``once``, ``skip`` or ``all(N)``: which of the missed times are made up for."""
    grace: float = 60.0
    """Seconds for which a scheduled time counts as on time."""
    until: datetime | None = None
    max_runs: int | None = None
    stop_after_failures: int | None = None
    application: str | None = None
    """The application that declares it in its code; None if a call or a command has defined it."""

    stage: Stage = Stage.ACTIVE
    reason: str = ""
    """Why it ended, or was paused."""
    next_run_at: datetime | None = None
    awaits: JobId | None = None
    """The job whose end decides the next time."""
    fired: int = 0
    """How many scheduled times have started a job."""
    missed: int = 0
    misses: tuple[Miss, ...] = ()
    recent: tuple[JobId, ...] = ()
    """The last jobs that it started, the newest last."""
    ended: Mapping[JobId, bool] = field(default_factory=dict)
    """Which of these have run to their end, and whether they failed; only with ``stop_after_failures``."""
    created_at: datetime
    version: int = 1
    damage: str = ""
    """The unreadable parts, and why; such a schedule starts no jobs."""
    kept: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """The stored document of a damaged schedule, so that nothing is lost."""


def next_version(schedule: NamedSchedule, **changes: Any) -> NamedSchedule:
    """Return the next version of the schedule, with other values in some fields."""
    return replace(schedule, version=schedule.version + 1, **changes)


def misfires(value: Any) -> str:
    """Return ``once``, ``skip`` or ``all(N)`` as it is kept; raise ``InvalidOption``."""
    text = re.sub(r"\s", "", value) if isinstance(value, str) else ""
    if text in ("once", "skip"):
        return text
    if text == "all":
        return f"all({AT_MOST})"
    most = re.fullmatch(r"all\((?:max=)?([0-9]{1,4})\)", text)
    if most is None or not 1 <= int(most[1]) <= AT_MOST:
        raise InvalidOption(f"misfire={value!r}: pass 'once', 'skip' or 'all(N)' with N up to {AT_MOST:,}")
    return f"all({int(most[1])})"


def made_up(misfire: str) -> int:
    """Return how many missed times are made up for."""
    if misfire.startswith("all("):
        return int(misfire[4:-1])
    return 1 if misfire == "once" else 0


_SIMPLE = (
    *("misfire", "grace", "expires_for", "max_runs", "stop_after_failures", "application"),
    *("reason", "fired", "missed"),
)


def set_aside(schedule: NamedSchedule) -> NamedSchedule:
    """Return the next version of the unreadable schedule, paused for that reason."""
    version = schedule.version if type(schedule.version) is int else 0
    return replace(
        schedule, version=version + 1, stage=Stage.PAUSED, reason=schedule.damage, next_run_at=None, awaits=None
    )


def document(schedule: NamedSchedule) -> dict[str, Any]:
    """Return the other stored fields, all except name, template, next time, awaited job and version, as JSON values."""
    if schedule.damage:
        return {**(schedule.kept or {}), "stage": schedule.stage.value, "reason": clean(schedule.reason)}
    return {
        **{name: getattr(schedule, name) for name in _SIMPLE},
        "reason": clean(schedule.reason),
        "trigger": schedule.trigger.document(),
        "overlap": schedule.overlap.value,
        "stage": schedule.stage.value,
        "until": None if schedule.until is None else milliseconds(schedule.until),
        "misses": [_missed(miss) for miss in schedule.misses],
        "recent": [str(id) for id in schedule.recent],
        "ended": {str(id): schedule.ended[id] for id in schedule.recent if id in schedule.ended},
        "created_at": milliseconds(schedule.created_at),
    }


def schedule_of(
    name: str,
    version: Any,
    *,
    about: Callable[[], Mapping[str, Any]],
    template: Callable[[], Record],
    next_run_at: Callable[[], datetime | None],
    awaits: Callable[[], JobId | None],
) -> NamedSchedule:
    """Return the schedule of a ``document``, each part as its function reads it.

    A schedule that cannot be read completely has its ``damage``, and counts as paused.
    """
    reading = Reading()
    blank = Record(id=JobId(), job="?", created_at=EPOCH, ready_at=None)
    job = reading.field("job", template, blank)
    reading.field("job", lambda: _undamaged(job), None)
    reading.field("version", lambda: number(version), 0)
    nothing: dict[str, Any] = {}
    stored = reading.field("definition", lambda: dict(about()), nothing)
    read_fields: dict[str, Any] = {
        field: reading.field(field, partial(read, stored.get(field)), None) for field, read in _READERS.items()
    }
    made = NamedSchedule(
        name=name,
        version=version,
        template=job,
        next_run_at=reading.field("next time", next_run_at, None),
        awaits=reading.field("awaited job", awaits, None),
        **{name: value for name, value in read_fields.items() if name in stored and value is not None},
        **{name: value for name, value in _UNKNOWN.items() if read_fields[name] is None},
    )
    if not reading.damage:
        return made
    stage = Stage.ENDED if made.stage is Stage.ENDED else Stage.PAUSED
    return replace(made, stage=stage, reason=reading.damage, damage=reading.damage, kept=stored)


def _undamaged(job: Record) -> None:
    if job.damage:
        raise Unreadable(job.damage)


def _misses(kept: Any) -> tuple[Miss, ...]:
    return tuple(
        Miss(
            first=moment(miss["first"]),
            last=moment(miss["last"]),
            count=number(miss["count"]),
            reason=text(miss["reason"]),
        )
        for miss in kept
    )


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "trigger": trigger,
    "overlap": Overlap,
    "misfire": misfires,
    "grace": figure,
    "expires_for": or_none(figure),
    "until": or_none(moment),
    "max_runs": or_none(number),
    "stop_after_failures": or_none(number),
    "application": or_none(text),
    "stage": Stage,
    "reason": text,
    "fired": number,
    "missed": number,
    "misses": _misses,
    "recent": lambda ids: tuple(map(ObjectId, ids)),
    "ended": lambda ended: {ObjectId(id): bool(failed) for id, failed in (ended or {}).items()},
    "created_at": moment,
}
_UNKNOWN: Mapping[str, Any] = {"trigger": UnreadableTrigger(), "created_at": EPOCH}


def definition(schedule: NamedSchedule) -> dict[str, Any]:
    """Return what defines the schedule, part by part, whatever its current state and whoever declares it."""
    defined = ("trigger", "expires_for", "overlap", "misfire", "grace", "until", "max_runs", "stop_after_failures")
    moving = ("id", "created_at", "ready_at", "rank", "expires_at")
    template = schedule.template
    return {
        **{name: getattr(schedule, name) for name in defined},
        **{field.name: getattr(template, field.name) for field in fields(template) if field.name not in moving},
    }


def same_definition(one: NamedSchedule, other: NamedSchedule) -> bool:
    """Return whether both have the same definition, whatever their current state."""
    return definition(one) == definition(other)


def _missed(miss: Miss) -> dict[str, Any]:
    return {
        "first": milliseconds(miss.first),
        "last": milliseconds(miss.last),
        "count": miss.count,
        "reason": clean(miss.reason),
    }


AT_MOST = 1000
"""Maximum number of times that one call returns; it only counts that many more."""

_FIRST_LOOK = timedelta(minutes=1)


class Clockwork(Protocol):
    """A trigger whose times depend on no run."""

    def after(self, reference: datetime) -> datetime | None:
        """Return the first time strictly after ``reference``."""


def come(trigger: Clockwork, first: datetime, now: datetime, limit: int = AT_MOST) -> list[datetime]:
    """Return the newest ``limit`` times from ``first``, a time itself, to ``now``, in order, at a bounded cost."""
    back = _FIRST_LOOK
    while True:
        since = max(now - back, first)
        times = [first] if since == first and first <= now else []
        times += _until(trigger, since, now)
        if since == first or len(times) >= limit:
            return times[-limit:]
        back *= 2


def count(trigger: Clockwork, first: datetime, before: datetime, limit: int = AT_MOST) -> int:
    """Return how many times there are from ``first``, which is one, to before ``before``, ``limit`` at most."""
    number, time = 0, first
    while time < before and number < limit:
        number += 1
        following = trigger.after(time)
        if following is None:
            break
        time = following
    return number


def _until(trigger: Clockwork, since: datetime, now: datetime) -> Iterator[datetime]:
    time = trigger.after(since)
    while time is not None and time <= now:
        yield time
        time = trigger.after(time)
