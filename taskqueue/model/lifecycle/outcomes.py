"""Outcomes of runs and claims, as facts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from taskqueue.model.ids import JobId
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.record import Failure, Record
from taskqueue.model.retry import GiveUp, RetryIn


@dataclass(frozen=True, kw_only=True)
class Done:
    """``start()`` returned; ``result`` is its value as Extended JSON text.

    ``reports`` are the reports of the last step of a ``StepwiseJob``, as Extended JSON text; None: unchanged.
    """

    result: str | None = None
    reports: str | None = None


@dataclass(frozen=True, kw_only=True)
class Failed:
    """``start()`` raised; ``delay`` in seconds overrides the policy's pause (``raise Retry``).

    ``decision`` is the answer of a user-defined policy, here and below. ``parts`` are the errors of an exception
    group that the policy is asked about, one of each class; if there is none, it is asked about ``failure``.
    """

    failure: Failure
    delay: float | None = None
    decision: RetryIn | GiveUp | None = None
    parts: tuple[Failure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """``start()`` raised ``Fail``: no further attempt, the policy is not asked."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Snoozed:
    """``start()`` raised ``Snooze``: run again after ``delay`` seconds; not counted."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class NotReady:
    """The condition of the job does not hold, as ``reason`` says; not counted."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckFailed:
    """The job could not be asked whether it is ready: its predicate raised, or took too long."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A step of a ``StepwiseJob`` has ended and ``phase`` is next, after all waiting jobs; not counted.

    ``state`` and ``reports`` of the step are Extended JSON text; None means unchanged.
    """

    phase: Phase
    state: str | None = None
    reports: str | None = None


@dataclass(frozen=True, kw_only=True)
class Awaiting:
    """``start()`` called ``wait_children`` while these were open: it runs again when they have ended; not counted."""

    ids: tuple[JobId, ...]


@dataclass(frozen=True, kw_only=True)
class TimedOut:
    """The attempt was ended because it exceeded its timeout."""

    failure: Failure
    decision: RetryIn | GiveUp | None = None


@dataclass(frozen=True, kw_only=True)
class Stalled:
    """The attempt was ended because it gave no sign of progress for too long."""

    failure: Failure
    decision: RetryIn | GiveUp | None = None


@dataclass(frozen=True, kw_only=True)
class Canceled:
    """The run was ended because the job was canceled."""


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The run was ended because the node or its worker shuts down.

    ``failure`` describes an interruption that neither node nor manager had requested.
    """

    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class HandedBack:
    """The claim was returned before the run started."""


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """The worker, manager or node died while the job ran; ``failure`` describes it."""

    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The class of a job that was added by its path was loaded, and declares these options, plain JSON values."""

    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Unloadable:
    """The class could not be loaded here; after ``retry_for`` of trying the job fails."""

    failure: Failure
    retry_for: timedelta


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """The record, or its data, cannot be read by this version or on this host: the job has failed."""

    failure: Failure


Outcome: TypeAlias = (
    Done
    | Failed
    | GivenUp
    | Snoozed
    | NotReady
    | CheckFailed
    | Stepped
    | Awaiting
    | TimedOut
    | Stalled
    | Canceled
    | Interrupted
    | HandedBack
    | Crashed
    | Declared
    | Unloadable
    | Unreadable
)


class Run(NamedTuple):
    """The facts of one run other than its outcome."""

    node: str
    pid: int | None = None
    started_at: datetime | None = None
    exit: str = ""
    peak_memory: int | None = None
    stack: str = ""
    chance: float = 0.0
    """A random number from 0 up to 1, for the jitter of a pause."""


def unreadable(record: Record) -> Unreadable:
    """Return the outcome of a claim on a record that cannot be read."""
    return Unreadable(failure=Failure(type="taskqueue.Unreadable", message=record.damage))
