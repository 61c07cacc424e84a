"""Copies a job that has ended, to run it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace as replaced
from datetime import datetime

from taskqueue.errors import WrongStatus
from taskqueue.model.ids import ID_TEXT, JobId, copy_id
from taskqueue.model.lifecycle.pending import behind
from taskqueue.model.options.new_record import expiry
from taskqueue.model.record import Cause, Dependency, OnFailure, Record, Status, changed
from taskqueue.model.schedules.origin import FromSchedule
from taskqueue.model.unique_period import PERIOD

ORIGIN = "recovered_from"
"""Where ``given`` of the copy names the job that it is a copy of."""

BEFORE = "recovered_before"
"""Where ``given`` of a copy of a copy names the jobs before that one: some may be removed, and one be waited for."""

COPY = "recovered_as"
"""Where ``given`` of the job names its last copy, which the store notes as it adds that."""

KEY = "key"
"""Where ``given`` of a copy has the key for effects outside that it shares with the job that it is a copy of."""

SCHEDULED = "scheduled_time"
"""Where ``given`` of the copy of a job that a schedule started has the scheduled time, in ISO form."""

_OF_ONE_RECORD = (ID_TEXT, "at", ORIGIN, BEFORE, COPY, KEY, PERIOD)


def copy(record: Record, id: JobId, at: datetime | None, now: datetime) -> Record:
    """Return a new record of the same job with the same data and options, but without counters and history.

    It runs from ``at`` on; None means at once. An expiry is kept if it counts from that time, or is later than it. The
    copy of a job without success has its key, so that an external effect that the job had before it failed is
    recognised. Raises ``WrongStatus`` for a record that has not ended.
    """
    if not record.status.is_final:
        raise WrongStatus(record.id, record.status.name, "be recovered once it has ended")
    later = at is not None and at > now
    ready_at = now if at is None else at
    given = {name: value for name, value in record.given.items() if name not in _OF_ONE_RECORD}
    if later:
        given["at"] = ready_at.isoformat(timespec="milliseconds")
    given[ORIGIN] = str(record.id)
    if before := origins_of(record):
        given[BEFORE] = [str(id) for id in before]
    if scheduled := scheduled_time_of(record):
        given[SCHEDULED] = scheduled.isoformat(timespec="milliseconds")
    if record.status is not Status.DONE:
        given[KEY] = key_of(record) or str(record.id)
    expires_at = expiry(record, max(ready_at, now))
    return Record(
        id=id,
        job=record.job,
        data=record.data,
        queue=record.queue,
        priority=record.priority,
        tags=record.tags,
        unique=record.unique,
        options=record.options,
        given=given,
        lane=record.lane,
        depends_on=record.depends_on,
        created_at=now,
        expires_at=expires_at if expires_at is not None and expires_at > max(ready_at, now) else None,
        status=Status.POSTPONED if later else Status.WAITING,
        cause=Cause.SCHEDULED if later else Cause.ADDED,
        ready_at=ready_at,
    ).at_rank()


def origin_of(record: Record) -> JobId | None:
    """Return the id of the job that the record is a copy of, None if it is not a copy."""
    return _id_in(record.given.get(ORIGIN))


def scheduled_time_of(record: Record) -> datetime | None:
    """Return the scheduled time for which a schedule started the job, or the job that it is a copy of; else None."""
    if isinstance(record.origin, FromSchedule):
        return record.origin.slot
    scheduled_time = record.given.get(SCHEDULED) if record.given else None
    try:
        return datetime.fromisoformat(scheduled_time) if isinstance(scheduled_time, str) else None
    except ValueError:
        return None


def key_of(record: Record) -> str | None:
    """Return the key for external effects that a copy took over, None if it is the id of the record."""
    key = record.given.get(KEY) if record.given else None
    return key if isinstance(key, str) else None


def with_own_key(record: Record) -> Record:
    """Return the copy with its id as its key: it does something different from the original job."""
    return changed(record, given={name: value for name, value in record.given.items() if name != KEY})


def copy_of(record: Record) -> JobId | None:
    """Return the id of the last copy of the record, None if it was not recovered."""
    return _id_in(record.given.get(COPY))


def origins_of(record: Record) -> tuple[JobId, ...]:
    """Return the jobs of which the record is a direct or indirect copy, latest first; its success counts for them."""
    return origins_in(record.given)


def origins_in(given: object) -> tuple[JobId, ...]:
    """Return the ids that ``given`` of a record names; a damaged value names none."""
    if not isinstance(given, Mapping):
        return ()
    before = given.get(BEFORE)
    ids = map(_id_in, (given.get(ORIGIN), *(before if isinstance(before, list) else ())))
    return tuple(id for id in ids if id is not None)


def last_copy(id: JobId, members: Mapping[JobId, Record]) -> JobId:
    """Return the id of the last copy of a job among these; of a job that is DONE its own, because its result counts."""
    while (record := members.get(id)) is not None and record.status is not Status.DONE:
        copied = copy_of(record)
        if copied is None or copied not in members:
            break
        id = copied
    return id


def failed_part(members: Mapping[JobId, Record]) -> dict[JobId, Record]:
    """Return the members of a workflow that failed, and the members that were canceled only because of them.

    Members that were recovered before are left out: their copies are members, too.
    """
    unrecovered = [record for record in members.values() if copy_of(record) is None]
    part = {record.id: record for record in unrecovered if record.status in (Status.FAILED, Status.TIMEOUT)}
    canceled = [record for record in unrecovered if record.cause is Cause.DEPENDENCY]
    while more := [
        record
        for record in canceled
        if record.id not in part and all(_can_end_well(job, part, members) for job in record.depends_on)
    ]:
        part |= {record.id: record for record in more}
    return part


def _can_end_well(dependency: Dependency, part: Mapping[JobId, Record], members: Mapping[JobId, Record]) -> bool:
    awaited = members.get(last_copy(dependency.id, members))
    if awaited is None or awaited.id in part or dependency.on_failure is OnFailure.IGNORE:
        return True
    return awaited.status.is_pending or awaited.status is Status.DONE


def copies_of_part(part: Mapping[JobId, Record], members: Mapping[JobId, Record], now: datetime) -> Iterator[Record]:
    """Yield a copy of each member of the part, which waits for the copies of the members that it depends on."""
    ids = {id: copy_id(id, record.ended_at or record.created_at) for id, record in part.items()}
    for id, record in part.items():
        new, depends_on = copy(record, ids[id], None, now), []
        for dependency in record.depends_on:
            last = last_copy(dependency.id, members)
            awaited = ids.get(last, last)
            depends_on.append(replaced(dependency, id=awaited))
            if last in part or (last in members and members[last].status.is_pending):
                new = behind(new, awaited)
        yield changed(new, depends_on=tuple(depends_on))


def _id_in(kept: object) -> JobId | None:
    return JobId(kept) if isinstance(kept, str) and JobId.is_valid(kept) else None
