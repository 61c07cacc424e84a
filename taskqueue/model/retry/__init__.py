"""Retry policies as values: given a failed attempt, when the job runs again, if at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from taskqueue.errors import InvalidOption
from taskqueue.model.retry.backoff import DEFAULT_TABLE, ENDLESS, NO_RETRY, ExponentialRetry, FixedRetry, TableRetry
from taskqueue.model.retry.by_error import Case, FilteredRetry, SelectedRetry
from taskqueue.model.retry.custom import CustomRetry
from taskqueue.model.retry.decision import AskWorker, Decision, GiveUp, Refusal, RetryIn, RetryPolicy, Situation

__all__ = [
    "DEFAULT_TABLE",
    "ENDLESS",
    "NO_RETRY",
    "AskWorker",
    "Case",
    "CustomRetry",
    "Decision",
    "ExponentialRetry",
    "FilteredRetry",
    "FixedRetry",
    "GiveUp",
    "Refusal",
    "RetryIn",
    "RetryPolicy",
    "SelectedRetry",
    "Situation",
    "TableRetry",
    "asks_a_class",
    "is_policy",
    "named_errors",
    "policy",
]

_KINDS = (FixedRetry, ExponentialRetry, TableRetry, FilteredRetry, SelectedRetry, CustomRetry)


def is_policy(value: object) -> TypeGuard[RetryPolicy]:
    """Return whether the value is a policy that can be kept with a job."""
    return isinstance(value, _KINDS)


def asks_a_class(policy: RetryPolicy) -> bool:
    """Return whether the decision may be up to a class of the user's."""
    match policy:
        case CustomRetry():
            return True
        case FilteredRetry(policy=inner):
            return asks_a_class(inner)
        case SelectedRetry(cases=cases):
            return any(asks_a_class(case.policy) for case in cases)
    return False


def named_errors(policy: RetryPolicy) -> tuple[str, ...]:
    """Return the names of exceptions that the decision depends on, as they were given."""
    match policy:
        case FilteredRetry(policy=inner, types=types):
            return (*types, *named_errors(inner))
        case SelectedRetry(cases=cases):
            return tuple(name for case in cases for name in (*case.types, *named_errors(case.policy)))
    return ()


def policy(document: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy that ``RetryPolicy.document`` described; raise ``InvalidOption`` for anything else."""
    fields = dict(document)
    name = fields.pop("policy", None)
    if name not in _READERS:
        raise InvalidOption(f"{name!r} is not a retry policy: use {', '.join(_READERS)}")
    try:
        return _READERS[name](fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidOption):
            raise
        raise InvalidOption(f"the retry policy {name!r} does not have these fields: {sorted(fields)}") from None


def _table(fields: Mapping[str, Any]) -> TableRetry:
    rows = tuple((float(age), float(pause)) for age, pause in fields["rows"])
    return TableRetry(rows, **{name: value for name, value in fields.items() if name != "rows"})


def _filtered(fields: Mapping[str, Any]) -> FilteredRetry:
    return FilteredRetry(policy(fields["inner"]), tuple(fields["types"]), tuple(fields.get("defined", ())))


def _selected(fields: Mapping[str, Any]) -> SelectedRetry:
    return SelectedRetry(tuple(map(_case, fields["cases"])))


def _case(fields: Mapping[str, Any]) -> Case:
    return Case(tuple(fields["types"]), policy(fields["inner"]), tuple(fields.get("defined", ())))


_READERS: Mapping[str, Callable[[Mapping[str, Any]], RetryPolicy]] = {
    "fixed": lambda fields: FixedRetry(**fields),
    "exponential": lambda fields: ExponentialRetry(**fields),
    "table": _table,
    "filtered": _filtered,
    "selected": _selected,
    "custom": lambda fields: CustomRetry(**fields),
}
