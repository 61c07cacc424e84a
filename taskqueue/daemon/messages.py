"""What node, manager and worker tell each other: frozen messages, written as one line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeAlias

from taskqueue.model.record import Failure


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Node to manager, first of all: the seat is ours, begin; ``url`` is what a job's own ``Scheduler`` opens."""

    url: str
    seat: str
    incarnation: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """Node to manager to worker: run this claim."""

    id: str
    claims: int
    job: str
    data: str
    state: str | None
    attempt: int
    is_last: bool
    timeout: float | None
    force_spawn: bool
    stall_timeout: float | None = None
    """Seconds that may pass without progress or a checkpoint."""
    retry: dict[str, Any] | None = None
    """What a retry policy of the user's own is asked with (``scheduler.deciding``); None where there is none."""
    error: dict[str, Any] | None = None
    """The fields of the failure before, without traceback; None at the first attempt."""
    course: dict[str, Any] | None = None
    """How far a job that runs in steps has come (``model.course``); None for others."""
    cursor: str | None = None
    """Where the loops of ``each`` are."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Node to manager: end this run (``reason`` cancel or lost) by the ladder, or hand it back if it has not begun."""

    id: str
    claims: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Return:
    """Node to manager: hand back up to so many runs that no worker has begun, the latest first."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Node to manager: its claims hold until then, in seconds of CLOCK_BOOTTIME.

    Without news by then all runs must have ended.
    """

    until: float


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Node to manager: begin nothing more, hand back what has not begun, and end what runs.

    ``how`` is ``finish`` (the ladder, from its first step), ``quick`` (SIGTERM now, then grace) or ``patient``
    (wait for the end of each run, however long).
    """

    how: str


@dataclass(frozen=True, kw_only=True)
class Recycle:
    """Node to manager: replace every worker after its present run, so that new code is used."""


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """Node to manager to worker: the store took the outcome (or refused it), with the status it led to."""

    id: str
    claims: int
    accepted: bool
    status: int


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Worker to manager: its bootstrap, or the hooks of its last run, are over; the next run may come."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """Worker to manager to node: ``start()`` is about to be called, at this time of the host's clock."""

    id: str
    claims: int
    pid: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Noted:
    """Worker to manager to node: progress, state and cursor of a running job, each None where it is as before."""

    id: str
    claims: int
    progress: float | None
    message: str
    state: str | None
    at: float
    cursor: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Worker (or the manager for it) to node: how a run ended.

    ``outcome`` is the name of a class of ``model.lifecycle`` and ``fields`` its plain JSON fields; a failure is a
    mapping with the fields of ``model.record.Failure``.
    """

    id: str
    claims: int
    outcome: str
    fields: dict[str, Any]
    pid: int | None
    started_at: float | None
    took: float | None = None
    """Seconds from start to end, on the worker's monotonic clock."""
    exit: str = ""
    peak_memory: int | None = None
    confirm: bool = False
    """The worker waits for ``Confirmed``, because the class has hooks."""


@dataclass(frozen=True, kw_only=True)
class Untaken:
    """Manager to node: these runs, as pairs of id and claims, were not begun and come back."""

    runs: list[list[Any]]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Manager to node: how many workers there are, for titles, STATUS and listings."""

    idle: int
    busy: int
    forced: int


@dataclass(frozen=True, kw_only=True)
class Staffing:
    """Manager to node: a worker was started, or has ended as ``exit`` says."""

    pid: int
    exit: str = ""


@dataclass(frozen=True, kw_only=True)
class Hopeless:
    """Manager to node: children die before their first job, again and again; ``reason`` says how.

    With ``bootstrap`` it is a module to preload, or the bootstrap file, that cannot be imported.
    """

    reason: str
    bootstrap: bool = False


Message: TypeAlias = (
    Arm
    | Run
    | Stop
    | Return
    | Trust
    | Drain
    | Recycle
    | Confirmed
    | Ready
    | Started
    | Noted
    | Ended
    | Untaken
    | Pool
    | Staffing
    | Hopeless
)

_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        Arm,
        Run,
        Stop,
        Return,
        Trust,
        Drain,
        Recycle,
        Confirmed,
        Ready,
        Started,
        Noted,
        Ended,
        Untaken,
        Pool,
        Staffing,
        Hopeless,
    )
}
_NAMES = {kind: tuple(field.name for field in fields(kind)) for kind in _TYPES.values()}
_VALUES = {kind: attrgetter(*names) if len(names) > 1 else None for kind, names in _NAMES.items()}
_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


def encode(message: Message) -> bytes:
    """Return the message as one JSON array: its name, then its fields in order."""
    kind = type(message)
    values = _VALUES[kind]
    row = (kind.__name__, *(values(message) if values else (getattr(message, name) for name in _NAMES[kind])))
    return _write(row).encode("utf-8", "surrogatepass")


def failure_of(fields: Mapping[str, Any]) -> Failure:
    """Return the failure that a message carries as its fields."""
    return Failure(**{**fields, "bases": tuple(fields.get("bases", ()))})


def decode(payload: bytes) -> Message:
    """Return the message that ``encode`` was given."""
    name, *values = json.loads(payload.decode("utf-8", "surrogatepass"))
    kind = _TYPES[name]
    message = object.__new__(kind)
    vars(message).update(zip(_NAMES[kind], values, strict=True))  # half of the time that a frozen class's own way takes
    return message
