"""Reads options back from a record as plain JSON, and compares them with the options of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from bson import ObjectId

from taskqueue.model.conditions import document, is_condition
from taskqueue.model.ids import JobId
from taskqueue.model.limits import Limit, Rate, lane, limit_keys_of
from taskqueue.model.record import RUN_FIELDS, OnCrash, OnFailure, Options, Record
from taskqueue.model.retry import FilteredRetry, FixedRetry, RetryPolicy, is_policy, policy
from taskqueue.model.schedules import series
from taskqueue.model.serializer import as_bson


def stated(value: Any) -> Any:
    """Return a checked value as plain JSON, equal for equal meanings."""
    match value:
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case OnCrash() | OnFailure():
            return value.value
        case ObjectId() | Limit() | Rate():
            return str(value)
        case tuple():
            return [stated(item) for item in value]
        case _ if is_condition(value):
            return document(value)
    return value.document() if is_policy(value) else value


def stated_options(options: Options) -> dict[str, Any]:
    """Return the options of a run as plain JSON."""
    return {name: stated(getattr(options, name)) for name in RUN_FIELDS}


def split(policy: RetryPolicy) -> tuple[RetryPolicy, tuple[str, ...]]:
    """Return the policy that was passed as ``retry``, and the types of errors that it is for."""
    return (policy.policy, policy.types) if isinstance(policy, FilteredRetry) else (policy, ())


def jobs_in(depends_on: Sequence[Any]) -> list[tuple[JobId, OnFailure | None]]:
    """Return the jobs of ``depends_on``, without its conditions."""
    return [job for job in depends_on if not is_condition(job)]


class Reader(NamedTuple):
    """How one option is read back."""

    read: Callable[[Record, str], Any] | None
    """Returns the value of a record as plain JSON; None for an option that is not shown."""
    differs: Callable[[Record, str, Any], bool]
    """Returns whether a checked value of a call differs from the value of a record."""


def _policy(record: Record) -> RetryPolicy:
    return split(record.options.retry)[0]


def _retry_differs(record: Record, _: str, value: Any) -> bool:
    present = _policy(record)
    if isinstance(value, int):
        return not isinstance(present, FixedRetry) or present.times != value
    return policy(value.document()) not in (record.options.retry, present)  # a document may have other numbers


def _retry(record: Record, _: str) -> Any:
    policy = _policy(record)
    return policy.times if isinstance(policy, FixedRetry) else policy.document()


def _retry_interval(record: Record, _: str) -> float | None:
    policy = _policy(record)
    return policy.interval if isinstance(policy, FixedRetry) else None


def _given_differs(record: Record, name: str, value: Any) -> bool:
    return bool(record.given.get(name) != stated(value))


def _run_option(record: Record, name: str) -> Any:
    return stated(getattr(record.options, name))


def _field(record: Record, name: str) -> Any:
    return stated(getattr(record, name))


RUN_OPTION = Reader(_run_option, lambda record, name, value: getattr(record.options, name) != value)
"""An option that is a field of ``Record.options``."""

FIELD = Reader(_field, lambda record, name, value: getattr(record, name) != value)
"""An option that is a field of the record."""

KEY = Reader(_field, lambda *_: False)
"""A field by which the record is found, so that a call cannot name another."""

GIVEN = Reader(lambda record, name: record.given.get(name), _given_differs)
"""An option that is compared, and shown, as the caller passed it: a relative time says more than the resulting time."""

OF_CALL = Reader(lambda record, name: record.given.get(name), lambda *_: False)
"""An option of adding, stored as it was then."""

META = Reader(lambda record, _: dict(record.meta), lambda *_: False)
"""The meta, which does not matter for whether a job that is added once is equal."""

SERIES = Reader(lambda record, name: series.in_force(record)[name], series.differs)
"""An option of recurrence."""

UNREAD = Reader(None, lambda *_: False)
"""An option of the call that the record does not store under this name."""

READY = Reader(_run_option, _given_differs)
"""The condition of the record includes the conditions of ``depends_on``; only the caller's own is compared."""

RETRY = Reader(_retry, _retry_differs)
"""The number of further attempts, or the document of another policy than the fixed one."""

RETRY_INTERVAL = Reader(_retry_interval, lambda record, name, value: _retry_interval(record, name) not in (None, value))
"""The pause in seconds; None for a policy with pauses of its own."""

RETRY_ON = Reader(
    lambda record, _: list(split(record.options.retry)[1]),
    lambda record, _, value: split(record.options.retry)[1] != value,
)
"""The names of the exceptions that are retried."""

LIMITS = Reader(
    lambda record, _: [str(limit_key) for limit_key in limit_keys_of(record.lane)],
    lambda record, _, value: limit_keys_of(lane(value, record.job, as_bson(record.data))) != limit_keys_of(record.lane),
)
"""The limit keys of the job, which the limits give with its data."""

DEPENDS_ON = Reader(
    lambda record, _: {str(dependency.id): dependency.on_failure.value for dependency in record.depends_on},
    lambda record, _, value: {dependency.id for dependency in record.depends_on} != {id for id, _ in jobs_in(value)},
)
"""The effect of each dependency's failure, by its id; the ids are compared."""

ON_DEPENDENCY_FAILURE = Reader(None, lambda record, _, value: any(job.on_failure != value for job in record.depends_on))
"""The effect of a dependency's failure; ``depends_on`` shows it."""
