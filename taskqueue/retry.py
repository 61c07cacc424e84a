"""Retry policies for the option ``retry``, as ``from taskqueue import retry`` offers them; durations as everywhere."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from taskqueue.errors import InvalidOption
from taskqueue.execution.exception_groups import leaves
from taskqueue.execution.failures import INSTRUCTIONS, message_of
from taskqueue.execution.loader import load_policy
from taskqueue.execution.retries import bound
from taskqueue.model import other_systems
from taskqueue.model.exception_names import defining_names, known_names, names_of
from taskqueue.model.job_path import dotted
from taskqueue.model.main_module import defining_module, standard_namesake
from taskqueue.model.retry import (
    DEFAULT_TABLE,
    NO_RETRY,
    Case,
    CustomRetry,
    ExponentialRetry,
    FilteredRetry,
    FixedRetry,
    GiveUp,
    RetryIn,
    RetryPolicy,
    SelectedRetry,
    Situation,
    TableRetry,
    check_policy,
    strictest,
)
from taskqueue.model.schedules import Duration, seconds_of
from taskqueue.model.shown_text import as_code

Returned = TypeVar("Returned")

__all__ = [
    "GiveUp",
    "RetryIn",
    "RetryPolicy",
    "Situation",
    "When",
    "by_exception",
    "call",
    "custom",
    "exponential",
    "for_an_interval",
    "forever",
    "many_times",
    "never",
    "only_on",
    "time_table",
    "when",
]


def never() -> RetryPolicy:
    """Return the policy without any further attempt, which is the default."""
    return NO_RETRY


@other_systems.explained
def many_times(times: int, interval: Duration = 60) -> RetryPolicy:
    """Return the policy of this many further attempts, each at this interval after the previous failure."""
    return FixedRetry(times, seconds_of(interval))


@other_systems.explained
def forever(interval: Duration = 60) -> RetryPolicy:
    """Return the policy that never gives up."""
    return FixedRetry(-1, seconds_of(interval))


@other_systems.explained
def exponential(
    times: int, interval: Duration = 60, *, factor: float = 2, longest: Duration | None = None, jitter: float = 0
) -> RetryPolicy:
    """Return the policy whose n-th pause is ``interval * factor ** (n - 1)``, at most ``longest``.

    Each pause is shortened at random by up to the fraction ``jitter`` (0 to 1). ``times=-1`` means no limit.
    """
    return ExponentialRetry(
        times, seconds_of(interval), factor, None if longest is None else seconds_of(longest), jitter
    )


def for_an_interval(span: Duration, interval: Duration = 60) -> RetryPolicy:
    """Return the exponential policy whose pauses, the first of ``interval``, add up to about ``span``.

    There are ``round(log2(span / interval))`` further attempts, none if ``span`` is the shorter one.
    """
    return ExponentialRetry.for_an_interval(seconds_of(span), seconds_of(interval))


def time_table(table: Mapping[Duration, Duration] | None = None, *, since: str = "due") -> RetryPolicy:
    """Return the policy whose pause depends on the job's age: ``{"5m": "1m", "1h": "5m", "24h": "1h"}`` is the default.

    Up to an age of 5 minutes it is tried each minute, and so on; after the last age it is not tried again. Ages grow
    from row to row; they count from the time the job was to run first, with ``since="created"`` from when it was added.
    """
    if table is None:
        return TableRetry(DEFAULT_TABLE, since)
    if not isinstance(table, Mapping):
        raise InvalidOption(
            f"table={as_code(table)} of a retry policy: pass a mapping such as {{'5m': '1m', '1h': '5m'}}"
        )
    return TableRetry(tuple((seconds_of(age), seconds_of(pause)) for age, pause in table.items()), since)


def only_on(policy: RetryPolicy, *types: type[BaseException] | str) -> RetryPolicy:
    """Return the policy for errors of these classes and those derived from them; after others there is no retry.

    Classes are named by themselves or by dotted names, ``"app.errors.Refused"``. A timeout is left to ``policy``.
    """
    names = names_of(types)
    return FilteredRetry(policy, names, defining_names(names))


class When:
    """The first half of a case of ``by_exception``."""

    def __init__(self, types: tuple[str, ...]) -> None:
        self._types = types

    def then(self, policy: RetryPolicy) -> Case:
        """Return the case: errors of these classes are retried as ``policy`` says."""
        return Case(self._types, policy, defining_names(self._types))


def when(*types: type[BaseException] | str) -> When:
    """Start a case of ``by_exception``: ``when(ConnectionError, "app.errors.Refused").then(policy)``."""
    return When(names_of(types))


def by_exception(*cases: Case) -> RetryPolicy:
    """Return the policy of the first case that names the error's class; if none does, there is no retry.

    A timeout counts as ``taskqueue.JobTimeout`` and as an ``Exception``.
    """
    return SelectedRetry(cases)


def custom(policy: type | str, **settings: Any) -> RetryPolicy:
    """Return the policy that a class of yours decides, ``"module:Class"`` or the class itself, made with ``settings``.

    Its ``decide(situation)`` returns the seconds to wait, ``RetryIn(…)``, ``GiveUp(…)`` or None. It is
    called in the worker that ran the attempt.
    """
    if isinstance(policy, str):
        return CustomRetry(policy, settings)
    if not isinstance(policy, type) or "." in policy.__qualname__:
        raise InvalidOption(
            f"{as_code(policy)} is not a custom retry policy: pass a class at the top level of its module"
        )
    clash = standard_namesake(policy)
    if clash:
        raise InvalidOption(f"retry policy {policy.__name__} {clash}")
    return CustomRetry(f"{defining_module(policy)}:{policy.__name__}", settings)


def call(function: Callable[[], Returned], policy: RetryPolicy) -> Returned:
    """Call the function here, again after each ``Exception`` as the policy says, and return what it returns.

    It waits in this process: for a pause of seconds inside a job, say, not for one of hours. When the policy gives up,
    the last error is raised as it was. What ends the attempt of a job is raised at once: ``Fail``, ``Retry``,
    ``Snooze`` and the end by ``wait_children``.
    """
    if not callable(function):
        raise InvalidOption(f"retry.call({as_code(function)}, …): pass a function without arguments")
    check_policy(policy)
    asked = bound(policy, load_policy)
    begun_at = datetime.now(timezone.utc)
    failures = 0
    while True:
        try:
            return function()
        except Exception as error:
            errors = leaves(error)
            if any(isinstance(leaf.error, INSTRUCTIONS) for leaf in errors):
                raise
            failures += 1
            situation = Situation(
                failures=failures,
                created_at=begun_at,
                due_at=begun_at,
                now=datetime.now(timezone.utc),
                chance=random.random(),
            )
            situations = [
                replace(situation, errors=known_names(map(dotted, leaf.classes)), message=message_of(leaf.error))
                for leaf in errors
            ]
            decision = strictest(map(asked.decide, situations))
            if not isinstance(decision, RetryIn):
                raise
        time.sleep(decision.after)
