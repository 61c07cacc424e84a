"""Builds the record of a new job from options, and reads options back from a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.conditions import Condition, both, is_condition
from taskqueue.model.exception_names import defining_names
from taskqueue.model.ids import ID_TEXT, WORKFLOW, JobId, id_of_text, workflow_of
from taskqueue.model.lifecycle.pending import behind
from taskqueue.model.limits import lane, with_concurrency
from taskqueue.model.options.readers import jobs_in, stated
from taskqueue.model.options.table import OPTIONS, RUNNING
from taskqueue.model.record import Cause, Dependency, Options, Record, Status
from taskqueue.model.retry import FilteredRetry, FixedRetry, RetryPolicy
from taskqueue.model.schedules import is_later, is_relative, moment_of, series
from taskqueue.model.serializer import as_bson
from taskqueue.model.unique_period import PERIOD, period, starts_at


def record(
    *, job: str, data: str, options: Mapping[str, Any], given: Mapping[str, Any], id: JobId, now: datetime
) -> Record:
    """Return the record of a new job; ``options`` are all active ones, ``given`` the call's own, both checked."""
    trigger = series.trigger(options, now)
    if trigger is None and "interval_reference" in given:
        raise InvalidOption(
            f"interval_reference={given['interval_reference']!s} applies to an interval: pass interval as well"
        )
    at = _moment(options["at"], now) or series.first(trigger, now)
    ready_at = now if at is None else at  # a time in the past ranks the job by that time
    later = is_later(ready_at, now)
    starts_at = ready_at if later else now
    expires_at = checked_expiry(options["expires"], starts_at, "pass")
    chosen = options["id"]
    stated_options = {name: stated(value) for name, value in given.items() if name != ID_TEXT or isinstance(value, str)}
    if options["tags"] and (workflow := workflow_of(options["tags"])) is not None:
        stated_options[WORKFLOW] = str(workflow)
    new = Record(
        id=id_of_text(job, chosen) if isinstance(chosen, str) else chosen or id,
        job=job,
        data=data,
        queue=options["queue"],
        priority=options["priority"],
        tags=options["tags"],
        unique=options["unique"],
        options=Options(
            retry=policy_of(options), ready=_condition(options), **{name: options[name] for name in RUNNING}
        ),
        given=stated_options,
        lane=_lane(job, data, options),
        parent=options["parent"],
        depends_on=_dependencies(options),
        created_at=now,
        expires_at=expires_at,
        status=Status.POSTPONED if later else Status.WAITING,
        cause=Cause.SCHEDULED if later else Cause.ADDED,
        ready_at=ready_at,
    ).at_rank()
    if options["unique_for"] is not None or options["on_duplicate"] != "return":
        new = _of_key(new, options, trigger is not None)
    if trigger is not None:
        new = replace(new, origin=series.series(options, trigger, new, now))
    for awaited in new.depends_on:
        new = behind(new, awaited.id)
    return new


def _of_key(new: Record, options: Mapping[str, Any], recurs: bool) -> Record:
    """Return the record with the rules of its unique key."""
    seconds, action = options["unique_for"], options["on_duplicate"]
    named = f"on_duplicate={action!r}" if seconds is None else f"unique_for={seconds:g}"
    if new.unique is None:
        raise InvalidOption(f"{named} applies to a unique key: pass unique as well")
    if recurs:
        raise InvalidOption(f"{named} is for jobs that run once: leave out interval, or {named.partition('=')[0]}")
    given = {**new.given, "on_duplicate": action}
    if seconds is not None:
        given |= {"unique_for": seconds, PERIOD: period(new.unique, seconds, starts_at(new))}
    return replace(new, given=given)


def _lane(job: str, data: str, options: Mapping[str, Any]) -> str:
    limits, concurrency = options["limits"], options["concurrency"]
    if concurrency > 1:
        check_concurrency(options)
    return with_concurrency(lane(limits, job, as_bson(data)) if limits else "", job, concurrency)


def check_concurrency(options: Mapping[str, Any]) -> None:
    """Refuse ``concurrency`` for a job that has a worker of its own."""
    if options["force_spawn"]:
        raise InvalidOption(
            f"concurrency={options['concurrency']} runs jobs of the class in one worker, but force_spawn runs each in "
            "a worker of its own: pass only one of the two"
        )


def changed(record: Record, given: Mapping[str, Any]) -> list[str]:
    """Return the names of a call's options whose values differ from the record's.

    Only options of the call are compared, in their stored form, so that neither order nor notation counts.
    """
    return [name for name, value in given.items() if OPTIONS[name].read.differs(record, name, value)]


def expiry(record: Record, ready_at: datetime) -> datetime | None:
    """Return when the job expires if it may start at ``ready_at``; a relative time counts from there."""
    named = record.given.get("expires")
    return moment_of(named, ready_at) if is_relative(named) else record.expires_at


def in_force(record: Record) -> dict[str, Any]:
    """Return the options of a record as plain JSON values, by the names of ``OPTIONS``.

    A policy has its own pauses, so there is no ``retry_interval`` beside it.
    """
    options = {name: option.read.read(record, name) for name, option in OPTIONS.items() if option.read.read is not None}
    if options["retry_interval"] is None:
        del options["retry_interval"]
    return options


def _moment(value: Any, now: datetime) -> datetime | None:
    return None if value is None else moment_of(value, now)


def checked_expiry(value: Any, starts_at: datetime, way_out: str) -> datetime | None:
    """Return when the job expires, None for never; refuse a time that is not after its start, and name the way out."""
    if value is None:
        return None
    at = moment_of(value, starts_at)
    if at <= starts_at:
        raise InvalidOption(
            f"expires={value!s} is not after the time at which the job may start: {way_out} a later one"
        )
    return at


def _dependencies(options: Mapping[str, Any]) -> tuple[Dependency, ...]:
    usual = options["on_dependency_failure"]
    return tuple(Dependency(id=id, on_failure=what or usual) for id, what in jobs_in(options["depends_on"]))


def _condition(options: Mapping[str, Any]) -> Condition | None:
    """Return the condition of a run, from all options that set one."""
    condition: Condition | None = options["ready"]
    for dependency in options["depends_on"]:
        condition = both(condition, dependency) if is_condition(dependency) else condition
    return condition


def policy_of(options: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy that the options of retrying mean together."""
    retry: int | RetryPolicy = options["retry"]
    policy = FixedRetry(times=retry, interval=options["retry_interval"]) if isinstance(retry, int) else retry
    types = options["retry_on"]
    return FilteredRetry(policy, types, defining_names(types)) if types else policy
