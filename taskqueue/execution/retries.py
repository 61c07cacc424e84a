"""What retry policies need from the process that ran the attempt: names of exceptions, and answers of custom classes.

A faulty class harms only its job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.execution.failures import kept, message_of, with_type
from taskqueue.model.exception_names import defining_name, known_names, timed_out_names
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.lifecycle.outcomes import Failed, Outcome, TimedOut
from taskqueue.model.lifecycle.settle import in_parts
from taskqueue.model.options import checked
from taskqueue.model.record import Failure
from taskqueue.model.retry import (
    CustomRetry,
    Decision,
    FilteredRetry,
    GiveUp,
    Refusal,
    RetryIn,
    RetryPolicy,
    SelectedRetry,
    Situation,
    policy,
    strictest,
)
from taskqueue.model.schedules import seconds_of
from taskqueue.model.shown_text import as_code
from taskqueue.model.timestamps import moment

log = logging.getLogger(__name__)

UNKNOWN_LIMIT = 20
"""Maximum number of unknown names that are stored with a failure."""

Finder = Callable[[str], type]
"""Finds the class that an import path names."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to ask if an attempt fails: its policy, with the user's classes in it, and the situation."""

    policy: RetryPolicy
    situation: Situation
    retry_on_timeout: bool

    @property
    def is_last(self) -> bool:
        """Return whether a failure of this attempt will be the last."""
        return self.policy.is_last(self.situation)


def question_of(document: Mapping[str, Any], find: Finder) -> Question:
    """Return the question that ``run.question_document`` describes."""
    return Question(
        policy=bound(policy(document["policy"]), find),
        situation=Situation(
            failures=document["failures"],
            created_at=moment(document["created_at"]),
            due_at=moment(document["due_at"]),
            now=moment(document["now"]),
        ),
        retry_on_timeout=document["retry_on_timeout"],
    )


def with_decision(question: Question, outcome: Outcome, took: float, chance: float) -> Outcome:
    """Return the outcome of an attempt that took this many seconds, with the policy's decision if it failed."""
    if not isinstance(outcome, Failed | TimedOut):
        return outcome
    timed_out = isinstance(outcome, TimedOut)
    if timed_out and not question.retry_on_timeout:
        return outcome
    names = known_names((outcome.failure.type, *outcome.failure.bases))
    asked = replace(
        question.situation,
        now=question.situation.now + timedelta(seconds=took),
        errors=timed_out_names(names) if timed_out else names,
        message=outcome.failure.message,
        timed_out=timed_out,
        chance=chance,
    )
    decision = strictest(map(question.policy.decide, in_parts(asked, outcome)))
    assert isinstance(decision, RetryIn | GiveUp), "every class of the user's is bound here"
    return replace(outcome, decision=decision)


def bound(policy: RetryPolicy, find: Finder) -> RetryPolicy:
    """Return the policy with each custom part replaced by one that asks the user's class."""
    match policy:
        case CustomRetry():
            return _Asking(policy, find)
        case FilteredRetry(policy=inner):
            return replace(policy, policy=bound(inner, find))
        case SelectedRetry(cases=cases):
            return SelectedRetry(tuple(replace(case, policy=bound(case.policy, find)) for case in cases))
    return policy


class _Asking:
    """A policy that instantiates the user's class and asks it."""

    def __init__(self, policy: CustomRetry, find: Finder) -> None:
        self._policy = policy
        self._find = find

    def decide(self, situation: Situation) -> Decision:
        """Return the answer of the class; an exception or an invalid answer ends the job."""
        try:
            return _understood(self._make().decide(situation))
        except (Exception, SystemExit) as error:
            reason = kept(f"its retry policy {self._policy.path} failed: {with_type(error, message_of(error))}")
            return GiveUp(refusal=Refusal.UNDECIDED, reason=reason)

    def is_last(self, situation: Situation) -> bool:
        """Return the answer of the class; if there is none, another attempt follows."""
        try:
            return bool(self._make().is_last(situation))
        except (Exception, SystemExit):
            return False

    def document(self) -> dict[str, Any]:
        """Return the policy as it is stored."""
        return self._policy.document()

    def __str__(self) -> str:
        return str(self._policy)

    def _make(self) -> Any:
        return self._find(self._policy.path)(**self._policy.settings)


def _understood(answer: object) -> RetryIn | GiveUp:
    match answer:
        case None:
            return GiveUp()
        case GiveUp():
            return GiveUp(reason=kept(str(answer.reason)))
        case RetryIn():
            queue = None if answer.queue is None else checked({"queue": answer.queue}, "RetryIn")["queue"]
            return RetryIn(after=seconds_of(answer.after), queue=queue)
        case bool() | str():
            raise InvalidOption(f"it answered {as_code(answer)}: return seconds, RetryIn(after=…), GiveUp() or None")
    return RetryIn(after=seconds_of(answer))


def with_public_names(outcome: Outcome, names: Sequence[str], path: str) -> Outcome:
    """Return the outcome with the names that match its errors, and the names of which this process knows no class.

    ``path`` is the job's path, for the warning about names that no loaded module has.
    """
    if not isinstance(outcome, Failed | TimedOut):
        return outcome
    defined = {name: defining_name(name) for name in names}
    parts = outcome.parts if isinstance(outcome, Failed) else ()
    error_names = {name for failure in (outcome.failure, *parts) for name in _names(failure)}
    unknown = tuple(name for name, defining in defined.items() if defining is None and name not in error_names)
    for name in unknown:
        _warn(path, name)
    failure = replace(_named(outcome.failure, defined), unknown_names=unknown[:UNKNOWN_LIMIT])
    if isinstance(outcome, TimedOut):
        return replace(outcome, failure=failure)
    return replace(outcome, failure=failure, parts=tuple(_named(part, defined) for part in parts))


def _named(failure: Failure, defined: dict[str, str | None]) -> Failure:
    """Return the failure with more names among its bases: those under which other modules have its classes."""
    names = _names(failure)
    others = tuple(name for name, defining in defined.items() if defining in names and name not in names)
    return replace(failure, bases=(*failure.bases, *others))


def _names(failure: Failure) -> set[str]:
    return set(known_names((failure.type, *failure.bases)))


@lru_cache(1000)
def _warn(path: str, name: str) -> None:
    """Warn about each name only once: it is looked up after every failure."""
    log.warning(
        "the retry policy of %s names %s, which is not an exception class in any loaded module: "
        "check the name, or import its module in the job's module",
        path,
        name,
    )
