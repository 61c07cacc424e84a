"""Policies by error: dotted names of classes and bases, so that no class is imported."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import field
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.retry.decision import Decision, GiveUp, Refusal, RetryPolicy, Situation
from taskqueue.model.retry.public_names import defining_name, name_of, public
from taskqueue.model.shown_text import as_code

TIMEOUT = "taskqueue.JobTimeout"
"""The error name of an attempt that took too long, in addition to ``Exception``."""

_NAME_SHAPE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_NOT_RETRIABLE = GiveUp(refusal=Refusal.NOT_RETRIABLE)


@dataclass(frozen=True)
class FilteredRetry:
    """Applies another policy to errors of some types only; a timeout is left to that policy."""

    policy: RetryPolicy
    types: tuple[str, ...] = ("Exception",)
    """Dotted names of classes; their subclasses count too."""
    defined: tuple[str, ...] = field(default=(), compare=False)
    """The names of these classes in the modules that define them, as far as the client had loaded them."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        _check_names(self.types)

    def decide(self, situation: Situation) -> Decision:
        """Return the other policy's decision, if the error is one of the types."""
        if situation.timed_out or any(map(situation.is_a, (*self.types, *self.defined))):
            return self.policy.decide(situation)
        return _NOT_RETRIABLE

    def is_last(self, situation: Situation) -> bool:
        """Return the other policy's answer."""
        return self.policy.is_last(situation)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "filtered", **_named(self), "inner": self.policy.document()}

    def __str__(self) -> str:
        """Return the policy in words."""
        return f"{self.policy}, after {' or '.join(self.types)} only"


@dataclass(frozen=True)
class Case:
    """A policy for errors of some types."""

    types: tuple[str, ...]
    policy: RetryPolicy
    defined: tuple[str, ...] = field(default=(), compare=False)
    """As of ``FilteredRetry``."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        _check_names(self.types)


@dataclass(frozen=True)
class SelectedRetry:
    """The first case that has the type of the error decides; if there is none, there is no retry."""

    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        if not self.cases:
            raise InvalidOption("a retry policy by exception has no cases: pass at least one when(…).then(…)")
        for case in self.cases:
            if not isinstance(case, Case):
                raise InvalidOption(f"{as_code(case)} is not a case of a retry policy: pass when(…).then(…)")

    def decide(self, situation: Situation) -> Decision:
        """Return the decision of the first case that fits."""
        for case in self.cases:
            if any(map(situation.is_a, (*case.types, *case.defined))):
                return case.policy.decide(situation)
        return _NOT_RETRIABLE

    def is_last(self, situation: Situation) -> bool:
        """Return whether every policy says so."""
        return all(case.policy.is_last(situation) for case in self.cases)

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {
            "policy": "selected",
            "cases": [{**_named(case), "inner": case.policy.document()} for case in self.cases],
        }

    def __str__(self) -> str:
        """Return the policy in words."""
        return "; ".join(f"after {' or '.join(case.types)}: {case.policy}" for case in self.cases)


def _named(bound: FilteredRetry | Case) -> dict[str, list[str]]:
    """Return the names of the classes as plain JSON values."""
    return {"types": list(bound.types), **({"defined": list(bound.defined)} if bound.defined else {})}


def names_of(types: Iterable[object]) -> tuple[str, ...]:
    """Return the dotted names of exception classes; names as text stay as they are.

    Raises ``InvalidOption`` for anything else, and if there is none.
    """
    found = tuple(dict.fromkeys(_name_of(kind) for kind in types))
    _check_names(found)
    return found


def defining_names(names: Collection[str]) -> tuple[str, ...]:
    """Return the defining names of these classes, if they are loaded here under other names."""
    found = (defining_name(name) for name in names)
    return tuple(dict.fromkeys(name for name in found if name is not None and name not in names))


def known_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of an error's classes, as policies compare them."""
    return tuple(public(name) for name in names)


def timed_out_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that the error of an attempt counts as which took too long."""
    return (*names, TIMEOUT, "Exception")


def _name_of(kind: object) -> str:
    if isinstance(kind, str):
        return public(kind)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        raise InvalidOption(
            f"{as_code(kind)} is not an exception class: pass one, or its dotted name such as 'app.errors.Refused'"
        )
    return name_of(kind)


def check_policy(policy: object) -> None:
    """Raise ``InvalidOption`` for a value that cannot decide; a class of the user's is named by ``custom``."""
    if isinstance(policy, type):
        raise InvalidOption(
            f"{policy.__qualname__} is a class, not a retry policy: pass retry.custom({policy.__name__})"
        )
    if not callable(getattr(policy, "decide", None)):
        raise InvalidOption(f"{as_code(policy)} is not a retry policy: pass one such as retry.exponential(8)")


def _check_names(names: Iterable[str]) -> None:
    named = list(names)
    if not named:
        raise InvalidOption("a retry policy is bound to no types: pass exception classes or their dotted names")
    for name in named:
        if not isinstance(name, str) or not re.fullmatch(_NAME_SHAPE, name):
            raise InvalidOption(
                f"{name!r} is not a dotted name of an exception class: write one such as 'app.errors.Refused'"
            )
