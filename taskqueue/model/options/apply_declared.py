"""Applies a class's declared options to a job added by its import path. Options of the call win."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.conditions import Condition, both
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.claim_end import end_as, put_back
from taskqueue.model.lifecycle.recovered_copy import ORIGIN
from taskqueue.model.limits import lane, with_concurrency
from taskqueue.model.options import check_interval, checked
from taskqueue.model.options.new_record import check_concurrency, checked_expiry, expiry, policy_of
from taskqueue.model.options.readers import split
from taskqueue.model.options.table import OPTIONS, RUNNING, Scope
from taskqueue.model.record import Cause, Failure, Record, Status, changed
from taskqueue.model.retry import FixedRetry, RetryPolicy
from taskqueue.model.schedules import is_later, moment_of, series
from taskqueue.model.schedules.origin import FromSchedule, Series
from taskqueue.model.serializer import as_bson
from taskqueue.model.timestamps import whole

_RETRYING = ("retry", "retry_interval", "retry_on")
_PLACING = ("queue", "priority", "tags", "unique")
_RECURRING = ("interval", "interval_reference", "until", "max_runs", "stop_after_failures")


def as_declared(record: Record, declared: Mapping[str, Any], now: datetime) -> Record:
    """Return the claimed record, back in its place, with the options that its class declares, plain JSON values.

    It has failed if these options are invalid, or conflict with the options of the call.
    """
    try:
        options_of_class = checked(declared, f"options of {record.job}", Scope.CLASS)
        return _with(
            record,
            {name: value for name, value in options_of_class.items() if name not in record.given},
            options_of_class,
            now,
        )
    except InvalidOption as refused:
        failure = Failure(type="taskqueue.InvalidOption", message=str(refused))
        return end_as(record, Status.FAILED, Cause.UNLOADABLE, now, failure)


def outdone(record: Record, holder: JobId, now: datetime) -> Record:
    """Return the record, with the unique key that its class declares, as ended: another pending job has that key."""
    message = f"the unique key of its class, {record.unique!r}, belongs to job {holder}"
    return end_as(record, Status.CANCELED, Cause.REPLACED, now, Failure(type="Canceled", message=message))


def _with(record: Record, new: Mapping[str, Any], declared: Mapping[str, Any], now: datetime) -> Record:
    options = replace(
        record.options,
        undeclared=False,
        retry=_retry(record, new, declared),
        ready=_ready(record, new),
        **{name: new[name] for name in RUNNING if name in new},
    )
    placed = {name: new[name] for name in _PLACING if name in new}
    if options.concurrency > 1:
        check_concurrency(vars(options))
    lane_of_limits = lane(new["limits"], record.job, as_bson(record.data)) if "limits" in new else record.lane
    placed["lane"] = with_concurrency(lane_of_limits, record.job, options.concurrency)
    waiting = put_back(record, Cause.ADDED, now)
    return _timed(changed(waiting, options=options, **placed), new, now).at_rank()


def _retry(record: Record, new: Mapping[str, Any], declared: Mapping[str, Any]) -> RetryPolicy:
    if not any(name in new for name in _RETRYING):
        return record.options.retry
    policy, types = split(record.options.retry)
    retrying: dict[str, Any] = {"retry": policy, "retry_interval": OPTIONS["retry_interval"].default, "retry_on": types}
    if isinstance(policy, FixedRetry):
        retrying |= {"retry": policy.times, "retry_interval": policy.interval}
    merged = {**retrying, **{name: new[name] for name in _RETRYING if name in new}}
    if not isinstance(merged["retry"], int):
        check_interval(merged["retry"], record.given, declared)
    return policy_of(merged)


def _ready(record: Record, new: Mapping[str, Any]) -> Condition | None:
    """Return the condition of a run: the condition of the class, and the conditions among ``depends_on``."""
    if "ready" not in new:
        return record.options.ready
    return both(new["ready"], record.options.ready if "depends_on" in record.given else None)


def _timed(record: Record, new: Mapping[str, Any], now: datetime) -> Record:
    """Return the record with its times and its series; a job of a schedule, and a copy, have their own."""
    due = record.ready_at
    assert due is not None
    is_one_time = isinstance(record.origin, FromSchedule) or ORIGIN in record.given
    series_options = {} if is_one_time else _series_options(record, new)
    trigger = series.trigger(series_options, record.created_at) if series_options else None
    at = None if is_one_time or new.get("at") is None else moment_of(new["at"], record.created_at)
    if at is None and "at" not in record.given:
        at = series.first(trigger, record.created_at)
    expires_at = record.expires_at if at is None else expiry(record, at)
    if "expires" in new:
        expires_at = checked_expiry(new["expires"], at or due, "declare")
    timed = changed(record, expires_at=expires_at)
    if at is not None and is_later(at, now):
        timed = changed(timed, status=Status.POSTPONED, cause=Cause.SCHEDULED, ready_at=whole(at))
    if trigger is None:
        return timed
    begun = series.series(series_options, trigger, changed(timed, ready_at=at or due), record.created_at)
    if isinstance(record.origin, Series):
        before = record.origin
        begun = replace(begun, id=before.id, occurrence=before.occurrence, failed=before.failed)
    return changed(timed, origin=begun)


def _series_options(record: Record, new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of recurrence, and the expiry, if the class declares one of them; otherwise nothing."""
    names = (*_RECURRING, "expires")
    if not any(name in new for name in names):
        return {}
    given = checked({name: record.given[name] for name in names if name in record.given}, record.job)
    return {name: new.get(name, given.get(name, OPTIONS[name].default)) for name in names}
