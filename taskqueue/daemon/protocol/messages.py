"""What node, manager and worker tell each other: named tuples, written as one line of JSON each.

Tuples, not dataclasses: each job takes a dozen of them, made, written and read in half of the time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.model.record import Failure
from taskqueue.model.serializer import dumps

Key: TypeAlias = tuple[str, int]
"""What names a claim: the job's id and the number of the claim."""


class StartPool(NamedTuple):
    """Node to manager, first of all: the seat is ours, begin; ``url`` is what a job's own ``Scheduler`` opens."""

    url: str
    seat: str
    incarnation: str


class Run(NamedTuple):
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
    """What a retry policy of the user's own is asked with (``execution.custom_retry``); None where there is none."""
    error: dict[str, Any] | None = None
    """The fields of the failure before, without traceback; None at the first attempt."""
    continuation: dict[str, Any] | None = None
    """How far a job that runs in steps has come (``model.lifecycle.continuation``); None for others."""
    position: str | None = None
    """Where the loops of ``each`` are."""
    condition: dict[str, Any] | None = None
    """What has to hold before it (``model.conditions``); None is nothing."""
    not_before: float | None = None
    """Seconds of CLOCK_MONOTONIC at which it may begin, where it was claimed ahead of its time."""
    undeclared: bool = False
    """Added by its path: what its class declares is to be reported first, if it declares anything."""


class Stop(NamedTuple):
    """Node to manager: end this run (``reason`` cancel or lost) by the ladder, or hand it back if it has not begun."""

    id: str
    claims: int
    reason: str


class HandBack(NamedTuple):
    """Node to manager: hand back up to so many runs that no worker has begun, the latest first.

    Those with ``force_spawn`` are not counted among them and come back all.
    """

    most: int


class LeaseExtended(NamedTuple):
    """Node to manager: its claims hold until then, in seconds of CLOCK_BOOTTIME.

    Without news by then all runs must have ended.
    """

    until: float


class Shutdown(NamedTuple):
    """Node to manager: begin nothing more, hand back what has not begun, and end what runs.

    ``mode`` is ``finish`` (the ladder, from its first step), ``quick`` (SIGTERM now, then grace) or ``patient``
    (wait for the end of each run, however long).
    """

    mode: str


class Unlock(NamedTuple):
    """Node to manager: this process keeps all others from writing to the store; end the worker that it belongs to."""

    pid: int


class Recycle(NamedTuple):
    """Node to manager: replace every worker after its present run, so that new code is used."""


class OutcomeSettled(NamedTuple):
    """Node to manager to worker: the store took the outcome (or refused it), with the status it led to."""

    id: str
    claims: int
    accepted: bool
    status: int


class Ready(NamedTuple):
    """Worker to manager: its bootstrap, or the hooks of its last run, are over; the next run may come."""

    missed: int = 0
    """The number of a run that it has got and may not begin, because there is no ticket for it; 0 for none."""


class NeedsReplacement(NamedTuple):
    """Worker to manager: it begins no other run, and is to be replaced, for what this job has left behind in it."""

    id: str
    job: str
    reason: str


class Started(NamedTuple):
    """Worker to manager to node: ``start()`` is about to be called, at this time of the host's clock.

    As a rule the manager finds that in the ledger, and tells nothing of a short run before its end. With
    ``checking``, which it keeps to itself, the job is only asked whether it is ready.
    """

    id: str
    claims: int
    pid: int
    at: float
    checking: bool = False


class Progressed(NamedTuple):
    """Worker to manager to node: progress, state and cursor of a running job, each None where it is as before."""

    id: str
    claims: int
    progress: float | None
    message: str
    state: str | None
    at: float
    position: str | None = None


class Ended(NamedTuple):
    """Worker (or the manager for it) to node: how a run ended.

    ``outcome`` is the name of a class of ``model.lifecycle.outcomes`` and ``fields`` its plain fields; a failure is
    a mapping with the fields of ``model.record.Failure``.
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
    """The worker waits for ``OutcomeSettled``, because the class has hooks."""


class RunsHandedBack(NamedTuple):
    """Manager to node: these runs, as pairs of id and claims, were not begun and come back."""

    runs: list[list[Any]]


class PoolStatus(NamedTuple):
    """Manager to node: how many workers there are, for titles, STATUS and listings."""

    idle: int
    busy: int
    forced: int


class WorkerChanged(NamedTuple):
    """Manager to node: a worker was started, or has ended as ``exit`` says, and ``reason`` if that is known."""

    pid: int
    exit: str = ""
    reason: str = ""
    job: str = ""
    """The id of the job that is the reason."""


class StartupFailed(NamedTuple):
    """Manager to node: children die before their first job, again and again; ``reason`` says how.

    With ``bootstrap`` it is a module to preload, or the bootstrap file, that cannot be imported.
    """

    reason: str
    bootstrap: bool = False


Message: TypeAlias = (
    StartPool
    | Run
    | Stop
    | HandBack
    | LeaseExtended
    | Shutdown
    | Unlock
    | Recycle
    | OutcomeSettled
    | Ready
    | NeedsReplacement
    | Started
    | Progressed
    | Ended
    | RunsHandedBack
    | PoolStatus
    | WorkerChanged
    | StartupFailed
)

_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        StartPool,
        Run,
        Stop,
        HandBack,
        LeaseExtended,
        Shutdown,
        Unlock,
        Recycle,
        OutcomeSettled,
        Ready,
        NeedsReplacement,
        Started,
        Progressed,
        Ended,
        RunsHandedBack,
        PoolStatus,
        WorkerChanged,
        StartupFailed,
    )
}
_read = json.JSONDecoder().raw_decode


def encode(message: Message) -> bytes:
    """Return the message as one JSON array: its name, then its fields in order."""
    return dumps((type(message).__name__, *message)).encode("utf-8", "surrogatepass")


def failure_of(fields: Mapping[str, Any]) -> Failure:
    """Return the failure that a message carries as its fields."""
    return Failure(**{**fields, "bases": tuple(fields.get("bases", ()))})


def decode(payload: bytes) -> Message:
    """Return the message that ``encode`` was given; raise ``ChannelBroken`` for anything else."""
    try:
        (name, *values), _ = _read(payload.decode("utf-8", "surrogatepass"))
        return _TYPES[name](*values)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        told = f"what came through the channel is no message of ours ({type(error).__name__}): {payload[:40]!r}"
        raise ChannelBroken(told) from error
