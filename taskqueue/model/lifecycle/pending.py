"""The transitions of a record that is not running."""

from __future__ import annotations

from dataclasses import replace as replaced
from datetime import datetime
from math import inf

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.claim_end import end_as, waits_since
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.promise import has_started
from taskqueue.model.record import CancelRequest, Cause, Failure, Holder, OnFailure, Record, Status, changed, replace
from taskqueue.model.schedules import is_later
from taskqueue.model.serializer import clipped
from taskqueue.model.timestamps import whole

TREE_ENDS = (Status.CANCELED, Status.TIMEOUT)
"""The ends of a job that end its children too; a FAILED job leaves them alone."""


def behind(record: Record, awaited: JobId) -> Record:
    """Return the record, not added yet, so that it waits until the job ``awaited`` has ended."""
    ready_at = record.ready_at if record.status is Status.POSTPONED else None
    waiting_for = (*record.waiting_for, awaited)
    return replace(record, status=Status.POSTPONED, cause=Cause.BEHIND, ready_at=ready_at, waiting_for=waiting_for)


def in_place_of(new: Record, old: Record) -> Record:
    """Return the record that replaces ``old``; it also waits for the running job that the old one was queued after."""
    if old.cause is Cause.CHILDREN:
        return new
    depends_on = {dependency.id for dependency in old.depends_on}
    for id in old.waiting_for:
        if id not in depends_on and id not in new.waiting_for:
            new = behind(new, id)
    return new


def promoted(record: Record) -> Record:
    """Return the postponed record as WAITING; its time has come and its rank stays."""
    return replace(record, status=Status.WAITING)


def relieved(record: Record, ended: JobId, status: Status | None, now: datetime) -> Record:
    """Return the record after a job it waits for has ended or is gone (None), as the dependency says."""
    if ended not in record.waiting_for:
        return record
    edge = next((dependency.on_failure for dependency in record.depends_on if dependency.id == ended), OnFailure.IGNORE)
    if status is Status.DONE or edge is OnFailure.IGNORE:
        return released(record, ended, now)
    if edge is OnFailure.WAIT or record.status is not Status.POSTPONED:
        return record
    reason = f"it depends on job {ended}, which {'is gone' if status is None else f'ended as {status.name}'}"
    return canceled(record, reason, now, Cause.DEPENDENCY)


def released(record: Record, ended: JobId, now: datetime) -> Record:
    """Return the record, no longer waiting for the job ``ended``; WAITING when that was the last."""
    still_waiting_for = tuple(id for id in record.waiting_for if id != ended)
    if still_waiting_for or record.status is not Status.POSTPONED:
        return replace(record, waiting_for=still_waiting_for)
    if record.ready_at is not None and record.ready_at > now:
        return replace(record, waiting_for=(), cause=Cause.SCHEDULED)
    if record.cause is Cause.CHILDREN:
        return replace(record, waiting_for=(), status=Status.WAITING, ready_at=waits_since(record))
    return replace(record, waiting_for=(), status=Status.WAITING, cause=Cause.ADDED, ready_at=whole(now)).at_rank()


def claimed(record: Record, holder: Holder, until: datetime) -> Record:
    """Return the record held by ``holder`` until its lease ends."""
    return replace(
        record,
        status=Status.PROCESSING,
        cause=Cause.CLAIMED,
        ready_at=whole(until),
        holder=holder,
        claims=record.claims + 1,
        started_at=None,
    )


def planned(record: Record, at: datetime, now: datetime) -> Record:
    """Return the waiting record, due from ``at`` on; a time in the past determines its place in the queue."""
    if is_later(at, now):
        cause = Cause.BEHIND if record.waiting_for else Cause.SCHEDULED
        return replace(record, status=Status.POSTPONED, cause=cause, ready_at=whole(at)).at_rank()
    if record.waiting_for:
        return replace(record, ready_at=None)
    return replace(record, status=Status.WAITING, cause=Cause.SCHEDULED, ready_at=whole(at)).at_rank()


def canceled(record: Record, reason: str, now: datetime, cause: Cause = Cause.CANCELED) -> Record:
    """Return the record canceled, or with a cancel request while it runs; a final one unchanged."""
    if record.status.is_final:
        return record
    if record.status is Status.PROCESSING:
        if record.phase is Phase.FAILING:
            return record
        request = record.cancel or CancelRequest(requested_at=whole(now), reason=clipped(reason))
        return replace(record, cancel=request)
    error = record.error if not reason else Failure(type="Canceled", message=clipped(reason))
    return end_as(record, Status.CANCELED, cause, now, error)


def waits_again(record: Record) -> bool:
    """Return whether the record waits to run again after an error, or for its class to be loaded."""
    if record.status not in (Status.WAITING, Status.POSTPONED) or record.waiting_for or record.error is None:
        return False
    return record.phase is not Phase.FAILING or record.cause is Cause.UNLOADABLE


def given_up(record: Record, reason: str, now: datetime) -> Record:
    """Return the record that waits to run again as FAILED with its last error; any other one unchanged.

    It has no start: the time until now would count as a run.
    """
    if not waits_again(record) or record.error is None:
        return record
    error = replaced(record.error, message=f"{record.error.message} ({clipped(reason)})") if reason else record.error
    return end_as(replace(record, started_at=None), Status.FAILED, Cause.GIVEN_UP, now, error)


def orphaned(child: Record, parent: JobId, status: Status, now: datetime) -> Record:
    """Return the record after its parent has ended in one of ``TREE_ENDS``: canceled, or asked to end."""
    if child.phase is Phase.FAILING:
        return child
    return canceled(child, f"its parent {parent} ended as {status.name}", now)


def is_late(record: Record, now: datetime) -> bool:
    """Return whether a pending record should have started by now and never did."""
    return record.expires_at is not None and record.started_at is None and record.expires_at <= now


def expired(record: Record, now: datetime) -> Record:
    """Return the record, not started in time, as CANCELED; it was late for its class only if it was due."""
    error = Failure(type="Expired", message=f"was not started before {record.expires_at or now:%Y-%m-%d %H:%M:%S} UTC")
    was_due = not record.waiting_for and record.cause is not Cause.NOT_READY and not has_started(record)
    return changed(end_as(record, Status.CANCELED, Cause.EXPIRED, now, error), waited=inf if was_due else None)
