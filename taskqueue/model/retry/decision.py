"""The questions and answers of retry policies: plain values that cross processes as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol, TypeAlias

from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.retry.public_names import defining_name

LONGEST_PAUSE = 10 * 366 * 86_400.0
"""The longest pause in seconds: formulas that grow beyond it would leave the calendar."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A failed attempt as a policy sees it. Times are aware UTC."""

    failures: int
    """Failed attempts so far, this one included, from 1."""
    created_at: datetime
    """When the job was added."""
    due_at: datetime
    """When it was first due."""
    now: datetime
    """The current time, by the store's clock."""
    errors: tuple[str, ...] = ()
    """Dotted names of the error's class and of its bases, the class first; empty when nothing has failed yet."""
    message: str = ""
    """The error's message."""
    timed_out: bool = False
    """Whether the attempt took too long, or stalled."""
    chance: float = 0.0
    """A number from 0 up to 1, for jitter."""

    def is_a(self, name: str) -> bool:
        """Return whether the error is of the class with this dotted name, or of one derived from it.

        Any name under which a loaded module has the class will do: ``requests.Timeout``.
        """
        return name in self.errors or defining_name(name) in self.errors


class Refusal(str, Enum):
    """Why there is no further attempt."""

    SPENT = "spent"
    NOT_RETRIABLE = "not_retriable"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class RetryIn:
    """Try again ``after`` this many seconds, in another ``queue`` if one is named."""

    after: float
    queue: str | None = None


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Do not try again, for this ``reason``."""

    refusal: Refusal = Refusal.SPENT
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class AskWorker:
    """Ask the user's class, in the worker that ran the attempt."""

    path: str
    settings: Mapping[str, Any]


Decision: TypeAlias = RetryIn | GiveUp | AskWorker


def strictest(decisions: Iterable[Decision]) -> Decision:
    """Return the decision on several errors of one attempt: the first refusal, or else the longest pause."""
    pauses: list[RetryIn] = []
    for decision in decisions:
        if not isinstance(decision, RetryIn):
            return decision
        pauses.append(decision)
    return max(pauses, key=lambda pause: pause.after)


class RetryPolicy(Protocol):
    """A decision about failed attempts; evaluated wherever the outcome is known, so it imports nothing."""

    def decide(self, situation: Situation) -> Decision:
        """Return the decision after a failed attempt."""

    def is_last(self, situation: Situation) -> bool:
        """Return whether a failure of attempt number ``failures`` will be the last; its error is not known yet."""

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values, for ``policy`` to read back."""

    def __str__(self) -> str:
        """Return the policy in words, for ``why``."""


def decision_document(decision: RetryIn | GiveUp) -> dict[str, Any]:
    """Return the decision as plain JSON values."""
    match decision:
        case RetryIn(after=after, queue=queue):
            return {"after": after, "queue": queue}
        case GiveUp(refusal=refusal, reason=reason):
            return {"refusal": refusal.value, "reason": reason}


def decision_of(document: Mapping[str, Any]) -> RetryIn | GiveUp:
    """Return the decision that ``decision_document`` described."""
    if "after" in document:
        return RetryIn(after=document["after"], queue=document["queue"])
    return GiveUp(refusal=Refusal(document["refusal"]), reason=document["reason"])


def within(created_at: datetime, seconds: float, now: datetime) -> bool:
    """Return whether at most that many seconds have passed, the bound included."""
    return created_at >= now - timedelta(seconds=seconds)
