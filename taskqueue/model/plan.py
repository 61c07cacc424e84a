"""What is kept of a named schedule: what it starts and when, how far it is, and what it has missed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import Enum
from typing import Any

from bson import ObjectId

from taskqueue.errors import InvalidOption
from taskqueue.model.record import JobId, Record, milliseconds, moment
from taskqueue.model.schedule import Trigger, trigger
from taskqueue.model.schedule.slots import AT_MOST
from taskqueue.model.text import clean

NAME_SHAPE = re.compile(r"[^\s/]{1,200}")
"""A schedule's name: no spaces and no slashes, so that it can stand on a command line and in an address."""

RECENT = 100
"""How many of the last jobs a schedule remembers."""

MISSES = 20
"""How many of the last misses it remembers, each with the slots that were missed together."""


class Stage(str, Enum):
    """Whether a schedule starts jobs."""

    __str__ = str.__str__

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class Overlap(str, Enum):
    """What a slot does whose schedule has a job that waits or runs (X-14)."""

    __str__ = str.__str__

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"


@dataclass(frozen=True, kw_only=True)
class Miss:
    """Slots that came and started nothing, and why."""

    first: datetime
    last: datetime
    count: int
    """How many they are, counted up to a thousand."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A named schedule. ``version`` grows with every change; a change applies only to the version it was made from."""

    name: str
    trigger: Trigger
    template: Record
    """A job as it was when the schedule was defined; each slot starts one like it."""
    expires_for: float | None = None
    overlap: Overlap = Overlap.SKIP
    misfire: str = "once"
    """``once``, ``skip`` or ``all(N)``: which of the slots that were missed are made up for (X-15)."""
    grace: float = 60.0
    """Seconds for which a slot is on time."""
    until: datetime | None = None
    max_runs: int | None = None
    stop_after_failures: int | None = None

    stage: Stage = Stage.ACTIVE
    reason: str = ""
    """Why it ended, or who paused it."""
    next_run_at: datetime | None = None
    awaits: JobId | None = None
    """The job whose end says when it runs next."""
    fired: int = 0
    """How many slots have started a job."""
    missed: int = 0
    misses: tuple[Miss, ...] = ()
    recent: tuple[JobId, ...] = ()
    """The last jobs that it started, the newest last."""
    ended: Mapping[JobId, bool] = field(default_factory=dict)
    """Which of these have run to their end, and whether they failed; only with ``stop_after_failures``."""
    created_at: datetime
    version: int = 1


def next_version(plan: Plan, **changes: Any) -> Plan:
    """Return the plan with other values in some fields, as the version that follows."""
    return replace(plan, version=plan.version + 1, **changes)


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
    """Return how many missed slots are made up for."""
    if misfire.startswith("all("):
        return int(misfire[4:-1])
    return 1 if misfire == "once" else 0


_SIMPLE = ("misfire", "grace", "expires_for", "max_runs", "stop_after_failures", "reason", "fired", "missed")


def document(plan: Plan) -> dict[str, Any]:
    """Return what is kept beside name, template, next time, awaited job and version, as plain JSON values."""
    return {
        **{name: getattr(plan, name) for name in _SIMPLE},
        "reason": clean(plan.reason),
        "trigger": plan.trigger.document(),
        "overlap": plan.overlap.value,
        "stage": plan.stage.value,
        "until": None if plan.until is None else milliseconds(plan.until),
        "misses": [_missed(one) for one in plan.misses],
        "recent": [str(id) for id in plan.recent],
        "ended": {str(id): plan.ended[id] for id in plan.recent if id in plan.ended},
        "created_at": milliseconds(plan.created_at),
    }


def plan(
    about: Mapping[str, Any],
    *,
    name: str,
    template: Record,
    next_run_at: datetime | None,
    awaits: JobId | None,
    version: int,
) -> Plan:
    """Return the plan that ``document`` described, with what is kept beside it."""
    until = about["until"]
    return Plan(
        name=name,
        template=template,
        next_run_at=next_run_at,
        awaits=awaits,
        version=version,
        trigger=trigger(about["trigger"]),
        overlap=Overlap(about["overlap"]),
        stage=Stage(about["stage"]),
        until=None if until is None else moment(until),
        misses=tuple(
            Miss(first=moment(one["first"]), last=moment(one["last"]), count=one["count"], reason=one["reason"])
            for one in about["misses"]
        ),
        recent=tuple(map(ObjectId, about["recent"])),
        ended={ObjectId(id): failed for id, failed in about.get("ended", {}).items()},
        created_at=moment(about["created_at"]),
        **{name: about[name] for name in _SIMPLE},
    )


def same_definition(one: Plan, other: Plan) -> bool:
    """Tell whether both were defined alike, whatever has become of them since."""
    defined = ("trigger", "expires_for", "overlap", "misfire", "grace", "until", "max_runs", "stop_after_failures")
    if any(getattr(one, name) != getattr(other, name) for name in defined):
        return False
    return _as_defined(one.template) == _as_defined(other.template)


def _as_defined(template: Record) -> dict[str, Any]:
    moving = ("id", "created_at", "ready_at", "rank", "expires_at")
    return {one.name: getattr(template, one.name) for one in fields(template) if one.name not in moving}


def _missed(miss: Miss) -> dict[str, Any]:
    return {
        "first": milliseconds(miss.first),
        "last": milliseconds(miss.last),
        "count": miss.count,
        "reason": clean(miss.reason),
    }
