"""Builds the record of a new job from options, and reads options back from a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from bson import ObjectId

from taskqueue.errors import InvalidOption
from taskqueue.model.conditions import Condition, both, document, is_condition
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import behind
from taskqueue.model.limits import Limit, Rate, lane, limit_keys_of
from taskqueue.model.record import Cause, Dependency, OnCrash, OnFailure, Options, Record, Status, rank_of
from taskqueue.model.record import changed as replaced
from taskqueue.model.retry import FilteredRetry, FixedRetry, RetryPolicy, is_policy
from taskqueue.model.schedules import is_later, is_relative, moment_of, series
from taskqueue.model.serializer import as_bson


def record(
    *, job: str, data: str, options: Mapping[str, Any], given: Mapping[str, Any], id: JobId, now: datetime
) -> Record:
    """Return the record of a new job: ``options`` from ``merged``, ``given`` what the call passed, both checked."""
    trigger = series.trigger(options, now)
    if trigger is None and "interval_reference" in given:
        raise InvalidOption(
            f"interval_reference={given['interval_reference']!s} counts an interval: pass interval as well"
        )
    at = _moment(options["at"], now) or series.first(trigger, now)
    ready_at = now if at is None else at  # one in the past has its place in the queue by that time
    later = is_later(ready_at, now)
    starts_at = ready_at if later else now
    expires_at = _moment(options["expires"], starts_at)
    if expires_at is not None and expires_at <= starts_at:
        raise InvalidOption(
            f"expires={options['expires']!s} is not after the time at which the job may start: pass a later one"
        )
    made = Record(
        id=options["id"] or id,
        job=job,
        data=data,
        queue=options["queue"],
        priority=options["priority"],
        tags=options["tags"],
        unique=options["unique"],
        options=Options(
            retry=policy_of(options),
            timeout=options["timeout"],
            stall_timeout=options["stall_timeout"],
            retry_on_timeout=options["retry_on_timeout"],
            crash_retries=options["crash_retries"],
            on_crash=options["on_crash"],
            force_spawn=options["force_spawn"],
            ready=_condition(options),
        ),
        given={name: stated(value) for name, value in given.items() if name != "id"},
        lane=lane(options["limits"], job, as_bson(data)) if options["limits"] else "",
        parent=options["parent"],
        depends_on=_dependencies(options),
        created_at=now,
        expires_at=expires_at,
        status=Status.POSTPONED if later else Status.WAITING,
        cause=Cause.SCHEDULED if later else Cause.ADDED,
        ready_at=ready_at,
    ).at_rank()
    if trigger is not None:
        made = replace(made, origin=series.series(options, trigger, made, now))
    for awaited in made.depends_on:
        made = behind(made, awaited.id)
    return made


def another(like: Record, *, id: JobId, data: str, now: datetime) -> Record:
    """Return the record of a new job with the same options as ``like``, which says nothing of data or times.

    Measured, this takes a tenth of the time of ``record``.
    """
    return replaced(like, id=id, data=data, created_at=now, ready_at=now, rank=rank_of(now, like.priority))


def changed(record: Record, given: Mapping[str, Any]) -> list[str]:
    """Return the names of a call's options whose values differ from those of the record.

    Only what the call passed is compared, each as it is kept, so that neither order nor notation counts.
    """
    return [name for name, value in given.items() if _differs(record, name, value)]


def expiry(record: Record, ready_at: datetime) -> datetime | None:
    """Return when the job expires if it may start at ``ready_at``: what the call named relative moves with that."""
    named = record.given.get("expires")
    return moment_of(named, ready_at) if is_relative(named) else record.expires_at


def in_force(record: Record) -> dict[str, Any]:
    """Return the options of a record as plain JSON values, by the names of ``OPTIONS``."""
    retry, types = split(record.options.retry)
    return {
        "at": record.given.get("at"),
        "retry": retry.times if isinstance(retry, FixedRetry) else retry.document(),
        **({"retry_interval": retry.interval} if isinstance(retry, FixedRetry) else {}),
        "retry_on": list(types),
        "retry_on_timeout": record.options.retry_on_timeout,
        "timeout": record.options.timeout,
        "stall_timeout": record.options.stall_timeout,
        "priority": record.priority,
        "queue": record.queue,
        "tags": list(record.tags),
        "unique": record.unique,
        "force_spawn": record.options.force_spawn,
        "crash_retries": record.options.crash_retries,
        "on_crash": record.options.on_crash.value,
        "expires": record.given.get("expires"),
        **series.in_force(record),
        "limits": [str(limit_key) for limit_key in limit_keys_of(record.lane)],
        "parent": None if record.parent is None else str(record.parent),
        "depends_on": {str(one.id): one.on_failure.value for one in record.depends_on},
        "ready": record.options.ready and document(record.options.ready),
    }


def _differs(record: Record, name: str, value: Any) -> bool:
    if name in series.in_force(record):
        return series.differs(record, name, value)
    return name in _DIFFERS and _DIFFERS[name](record, value)


def _moment(value: Any, now: datetime) -> datetime | None:
    return None if value is None else moment_of(value, now)


def _dependencies(options: Mapping[str, Any]) -> tuple[Dependency, ...]:
    usual = options["on_dependency_failure"]
    return tuple(Dependency(id=id, on_failure=what or usual) for id, what in _jobs(options["depends_on"]))


def _jobs(depends_on: Sequence[Any]) -> list[tuple[JobId, OnFailure | None]]:
    return [one for one in depends_on if not is_condition(one)]


def _condition(options: Mapping[str, Any]) -> Condition | None:
    """Return the condition of a run, from all options that set one."""
    condition: Condition | None = options["ready"]
    for one in options["depends_on"]:
        condition = both(condition, one) if is_condition(one) else condition
    return condition


def policy_of(options: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy that the options of retrying mean together."""
    retry: int | RetryPolicy = options["retry"]
    policy = FixedRetry(times=retry, interval=options["retry_interval"]) if isinstance(retry, int) else retry
    return FilteredRetry(policy, options["retry_on"]) if options["retry_on"] else policy


def split(policy: RetryPolicy) -> tuple[RetryPolicy, tuple[str, ...]]:
    """Return what was passed as ``retry``, and the types of errors that it is for."""
    return (policy.policy, policy.types) if isinstance(policy, FilteredRetry) else (policy, ())


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
            return [stated(one) for one in value]
        case _ if is_condition(value):
            return document(value)
    return value.document() if is_policy(value) else value


def _retry_differs(record: Record, value: Any) -> bool:
    kept = record.options.retry
    policy, _ = split(kept)
    if isinstance(value, int):
        return not isinstance(policy, FixedRetry) or policy.times != value
    return stated(value) not in (kept.document(), policy.document())


def _interval_differs(record: Record, value: float) -> bool:
    policy, _ = split(record.options.retry)
    return isinstance(policy, FixedRetry) and bool(policy.interval != value)


_DIFFERS: Mapping[str, Callable[[Record, Any], bool]] = {
    "at": lambda record, value: record.given.get("at") != stated(value),
    "expires": lambda record, value: record.given.get("expires") != stated(value),
    "retry": _retry_differs,
    "retry_interval": _interval_differs,
    "retry_on": lambda record, value: split(record.options.retry)[1] != value,
    "retry_on_timeout": lambda record, value: record.options.retry_on_timeout != value,
    "timeout": lambda record, value: record.options.timeout != value,
    "stall_timeout": lambda record, value: record.options.stall_timeout != value,
    "priority": lambda record, value: record.priority != value,
    "queue": lambda record, value: record.queue != value,
    "tags": lambda record, value: record.tags != value,
    "force_spawn": lambda record, value: record.options.force_spawn != value,
    "crash_retries": lambda record, value: record.options.crash_retries != value,
    "limits": lambda record, value: lane(value, record.job, as_bson(record.data)) != record.lane,
    "parent": lambda record, value: record.parent != value,
    "depends_on": lambda record, value: {one.id for one in record.depends_on} != {id for id, _ in _jobs(value)},
    "ready": lambda record, value: record.given.get("ready") != stated(value),
    "on_dependency_failure": lambda record, value: any(one.on_failure != value for one in record.depends_on),
    "on_crash": lambda record, value: record.options.on_crash != value,
}
"""How an option of a call is compared with a record; ``id``, ``unique`` and ``ignore_data`` say which record it is."""
