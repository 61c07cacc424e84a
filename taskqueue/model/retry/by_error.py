"""Policies by error: dotted names of classes and bases, so that no class is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.main_module import main_module
from taskqueue.model.retry.decision import Decision, GiveUp, Refusal, RetryPolicy, Situation
from taskqueue.model.shown_text import as_code

TIMEOUT = "taskqueue.JobTimeout"
"""The error name of an attempt that took too long, besides ``Exception``."""

_NAME_SHAPE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_NOT_RETRIABLE = GiveUp(refusal=Refusal.NOT_RETRIABLE)


@dataclass(frozen=True)
class FilteredRetry:
    """Applies another policy to errors of some types only; a timeout is left to that policy."""

    policy: RetryPolicy
    types: tuple[str, ...] = ("Exception",)
    """Dotted names of classes; their subclasses count too."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        _check_names(self.types)

    def decide(self, situation: Situation) -> Decision:
        """Return the other policy's decision, if the error is one of the types."""
        if situation.timed_out or any(situation.is_a(name) for name in self.types):
            return self.policy.decide(situation)
        return _NOT_RETRIABLE

    def is_last(self, situation: Situation) -> bool:
        """Return the other policy's answer."""
        return self.policy.is_last(situation)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "filtered", "types": list(self.types), "inner": self.policy.document()}

    def __str__(self) -> str:
        """Return the policy in words."""
        return f"{self.policy}, after {' or '.join(self.types)} only"


@dataclass(frozen=True)
class Case:
    """A policy for errors of some types."""

    types: tuple[str, ...]
    policy: RetryPolicy

    def __post_init__(self) -> None:
        check_policy(self.policy)
        _check_names(self.types)


@dataclass(frozen=True)
class SelectedRetry:
    """The first case whose types the error is one of decides; without one there is no retry."""

    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        if not self.cases:
            raise InvalidOption("a retry policy by exception has no cases: pass at least one when(…).then(…)")
        for case in self.cases:
            if not isinstance(case, Case):
                raise InvalidOption(f"{as_code(case)} is no case of a retry policy: pass when(…).then(…)")

    def decide(self, situation: Situation) -> Decision:
        """Return the decision of the first case that fits."""
        for case in self.cases:
            if any(situation.is_a(name) for name in case.types):
                return case.policy.decide(situation)
        return _NOT_RETRIABLE

    def is_last(self, situation: Situation) -> bool:
        """Return whether every policy says so."""
        return all(case.policy.is_last(situation) for case in self.cases)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {
            "policy": "selected",
            "cases": [{"types": list(case.types), "inner": case.policy.document()} for case in self.cases],
        }

    def __str__(self) -> str:
        """Return the policy in words."""
        return "; ".join(f"after {' or '.join(case.types)}: {case.policy}" for case in self.cases)


def names_of(types: Iterable[object]) -> tuple[str, ...]:
    """Return the dotted names of exception classes; names as text stay as they are.

    Raises ``InvalidOption`` for anything else, and where there is none.
    """
    found = tuple(dict.fromkeys(_name_of(kind) for kind in types))
    _check_names(found)
    return found


def known_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of an error's classes, as policies compare them."""
    return tuple(_public(name) for name in names)


def timed_out_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that the error of an attempt counts as which took too long."""
    return (*names, TIMEOUT, "Exception")


def _name_of(kind: object) -> str:
    if isinstance(kind, str):
        return _public(kind)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        raise InvalidOption(
            f"{as_code(kind)} is no exception class: pass one, or its dotted name such as 'app.errors.Refused'"
        )
    module = kind.__module__
    if module == "__main__":
        module = main_module() or module
    return _public(f"{module}.{kind.__qualname__}")


def _public(name: str) -> str:
    """Return the name under which users know the class."""
    if name.startswith("taskqueue.model.job."):
        return f"taskqueue.{name.rpartition('.')[2]}"
    return name.removeprefix("builtins.")


def check_policy(policy: object) -> None:
    """Raise ``InvalidOption`` for a value that cannot decide; a class of the user's is named by ``custom``."""
    if isinstance(policy, type):
        raise InvalidOption(f"{policy.__qualname__} is a class, no retry policy: pass retry.custom({policy.__name__})")
    if not callable(getattr(policy, "decide", None)):
        raise InvalidOption(f"{as_code(policy)} is no retry policy: pass one such as retry.exponential(8)")


def _check_names(names: Iterable[str]) -> None:
    named = list(names)
    if not named:
        raise InvalidOption("a retry policy is bound to no types: pass exception classes or their dotted names")
    for name in named:
        if not isinstance(name, str) or not re.fullmatch(_NAME_SHAPE, name):
            raise InvalidOption(
                f"{name!r} is no dotted name of an exception class: write one such as 'app.errors.Refused'"
            )
