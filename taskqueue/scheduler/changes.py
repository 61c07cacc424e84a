"""Changes jobs for their owner: updates waiting jobs, cancels many, and recovers ended ones as copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from taskqueue.errors import InvalidJob, JobNotFound, KeyTaken, WrongStatus
from taskqueue.execution.declared_options import known_types
from taskqueue.insight import records
from taskqueue.model.ids import JobId, copy_id, new_id
from taskqueue.model.lifecycle.pending import given_up
from taskqueue.model.lifecycle.recovered_copy import copies_of_part, copy, copy_of, failed_part, with_own_key
from taskqueue.model.meta import META
from taskqueue.model.options import checked
from taskqueue.model.options.update import checked_changes, revised
from taskqueue.model.query import FINAL, PENDING, And, Compare, Operator, Query, parse
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.schedules import moment_of
from taskqueue.model.serializer import encode, same
from taskqueue.model.timestamps import milliseconds
from taskqueue.model.unique_period import end_of
from taskqueue.scheduler.add import existed
from taskqueue.store import Store
from taskqueue.store.tries import Tries

BATCH = 500

STAGE = "taskqueue.scheduler.bulk_actions:BulkAction"
"""The class of the stages of bulk actions. A copy of one would add copies that belong to no bulk action."""

NO_STAGE = Compare("job", Operator.NE, STAGE)

WAITS_AGAIN: Mapping[str, Any] = {
    "status": {"$lt": int(Status.PROCESSING)},
    "waiting_for": {"$exists": False},
    "error.type": {"$exists": True},
    "cause": {"$ne": Cause.CLEAN_UP},
}
"""Jobs that wait to run again after an error. Jobs that clean up before their end wait for that, not for a retry."""

SAME_DATA: Any = ...
"""Stands for the data of the original job."""


class Recovered(NamedTuple):
    """What became of the jobs that match a query and had ended."""

    copies: list[Record]
    """The copies that were added."""
    left_out: int
    """How many were recovered before."""
    taken: int
    """How many were not recovered because another pending job has their unique key."""


def update(store: Store, id: JobId, changes: Mapping[str, Any], meta: Mapping[str, str] | None = None) -> Record:
    """Return the record after the changes; raise ``WrongStatus``, ``InvalidJob`` or a kind of it, ``JobNotFound``.

    The keys of ``meta`` are added to the job's meta at that moment; ``changes`` may replace all of it instead.
    """
    options = checked_changes({**changes, META: meta} if meta else changes)
    data: str | None = None
    tries = Tries(store.url, f"job {id}")
    while True:  # a turn fails only if another process has moved the job
        tries.another()
        [before] = records.read(store, [id])
        if data is None and "data" in changes:
            data = _encoded(before, changes["data"])
        if meta:
            options |= checked({META: {**before.meta, **meta}}, "update_job")
        now = store.now()
        after = revised(before, options, data, now)
        if store.update(before, after, now):
            return after


def after_update(record: Record, changes: Mapping[str, Any], now: datetime) -> Record:
    """Return the record as ``update`` would leave it; raise as it does, and change nothing."""
    data = _encoded(record, changes["data"]) if "data" in changes else None
    return revised(record, checked_changes(changes), data, now)


def typed_data(job: str, value: Any) -> Any:
    """Return data that came as JSON as the type that the job declares, if this process has imported it.

    Raises ``InvalidJob`` with the path of a misfit.
    """
    types = known_types(job)
    return value if types is None else types.decoded(value)


def is_data_of(record: Record, given: Any) -> bool:
    """Return whether the job has these data."""
    return same(_encoded(record, given), record.data)


def recover(store: Store, id: JobId, at: Any, data: Any = SAME_DATA) -> Record:
    """Return the copy that was added; raise ``JobNotFound``, ``WrongStatus`` and ``InvalidJob`` or a kind of it.

    If another pending job has the unique key, nothing is added: raise ``KeyTaken``.
    """
    [ended] = records.read(store, [id])
    if ended.job == STAGE:
        raise InvalidJob(f"job {id} is a stage of a bulk action: `taskqueue bulk NAME --rest` adds another stage")
    now = store.now()
    again = copy(ended, new_id(), _moment(at, now), now)
    if data is not SAME_DATA:
        text = _encoded(again, data)
        again = revised(again if _is_same(text, ended) else with_own_key(again), {}, text, now)
    [stored] = store.add([again])
    if stored.id != again.id:
        way_out = f"recover job {id} once that one has ended"
        raise KeyTaken(again.unique, stored.id, stored.job, stored.status.name, end_of(stored), way_out)
    return stored


def recoverable(store: Store, query: Query) -> tuple[list[JobId], int]:
    """Return the ids of all jobs that match, have ended, and were not recovered before, and how many were.

    Stages of bulk actions do not count.
    """
    ids: list[JobId] = []
    left_out = 0
    for ended in records.matching(store, And((query, FINAL, NO_STAGE))):
        if copy_of(ended) is None:
            ids.append(ended.id)
        else:
            left_out += 1
    return ids, left_out


def recover_all(store: Store, query: Query, at: Any) -> Recovered:
    """Add copies of all records that match and had ended when this started, in the order of their ids.

    Leave out jobs that were recovered before, so that recovered successes do not run again, and jobs whose unique key
    another pending job has. Where several processes recover a job at once, its copy has the same id for all of them,
    and so is added once: by the first one, and left out by the others.
    """
    matching, left_out = recoverable(store, query)  # all before the first copy, which may end and then match too
    added: list[Record] = []
    taken = 0
    for start in range(0, len(matching), BATCH):
        present = records.present(store, matching[start : start + BATCH])
        new = [ended for ended in present if copy_of(ended) is None]
        copies = _copies(store, [(ended, copy_id(ended.id, ended.ended_at or ended.created_at)) for ended in new], at)
        stored = store.add(copies) if copies else []
        mine = [record for copy, record in zip(copies, stored, strict=True) if record.id == copy.id]
        own = [record for copy, record in zip(copies, stored, strict=True) if not existed(copy, record)]
        added += own
        left_out += len(present) - len(copies) + len(mine) - len(own)
        taken += len(stored) - len(mine)
    return Recovered(added, left_out, taken)


def recover_workflow(store: Store, id: JobId) -> list[Record]:
    """Add copies of the members of a workflow that failed, and of members canceled because of them; return the copies.

    All are added in one step. If several processes do this at once, each copy has the same id for all of them, and only
    the process that adds it returns it. Raises ``JobNotFound``.
    """
    of_workflow = records.matching(store, parse({"workflow": workflow_member(store, id).workflow}))
    members = {record.id: record for record in of_workflow}
    copies = list(copies_of_part(failed_part(members), members, store.now()))
    stored = store.add(copies) if copies else []
    return [record for new, record in zip(copies, stored, strict=True) if not existed(new, record)]


def workflow_member(store: Store, id: JobId) -> Record:
    """Return the member with this id, or another member of the workflow with this id; raise ``JobNotFound``."""
    members = records.present(store, [id]) or store.find(parse({"workflow": id}), limit=1)
    if members and members[0].workflow is not None:
        return members[0]
    raise JobNotFound(id, "the job is not a member of a workflow") if members else JobNotFound(id)


def cancel_all(store: Store, query: Query, reason: str) -> tuple[int, int]:
    """Cancel all records that match, are pending, and were added before this started, a batch in one step of the store.

    Return how many are canceled, and how many that had started were asked to end.
    """
    pending = And((query, PENDING, Compare("created_at", Operator.LTE, milliseconds(store.now()))))
    canceled = asked = 0
    for page in records.pages(store, pending, BATCH):
        now_canceled, now_asked = cancel_each(store, [record.id for record in page], reason)
        canceled, asked = canceled + now_canceled, asked + now_asked
    return canceled, asked


def cancel_each(store: Store, ids: Sequence[JobId], reason: str) -> tuple[int, int]:
    """Cancel the records with these ids that are pending still, and return counts as ``cancel_all`` does."""
    canceled = asked = 0
    for start in range(0, len(ids), BATCH):
        now = store.now()
        for record in store.cancel_many(ids[start : start + BATCH], reason, now):
            canceled += (
                record.status is Status.CANCELED and record.ended_at == now
            )  # otherwise another caller was first
            asked += record.status.is_pending
    return canceled, asked


def give_up(store: Store, id: JobId, reason: str) -> Record:
    """End a job that waits to run again as FAILED, and return it; raise ``JobNotFound`` and ``WrongStatus``."""
    tries = Tries(store.url, f"job {id}")
    while True:  # a turn fails only if another process has moved the job
        tries.another()
        [before] = records.read(store, [id])
        now = store.now()
        after = given_up(before, reason, now)
        if after is before:
            raise WrongStatus(id, before.status.name, "be given up while it waits to run again after an error")
        if store.update(before, after, now):
            return after


def give_up_each(store: Store, ids: Sequence[JobId], reason: str) -> int:
    """Give up the jobs with these ids that still wait to run again, and return how many."""
    number = 0
    for id in ids:
        with suppress(WrongStatus, JobNotFound):  # it has just started, or ended
            give_up(store, id, reason)
            number += 1
    return number


def give_up_all(store: Store, query: Query, reason: str) -> int:
    """Give up all jobs that match and wait to run again, and return how many."""
    pages = records.pages(store, And((query, parse(WAITS_AGAIN))), BATCH)
    return sum(give_up_each(store, [record.id for record in page], reason) for page in pages)


def _copies(store: Store, ended: list[tuple[Record, JobId]], at: Any) -> list[Record]:
    now = store.now()
    moment = _moment(at, now)
    return [copy(record, id, moment, now) for record, id in ended]


def _moment(at: Any, now: datetime) -> datetime | None:
    asked = checked({"at": at}, "recover_job")["at"]
    return None if asked is None else moment_of(asked, now)


def _is_same(text: str, record: Record) -> bool:
    try:
        return same(text, record.data)
    except ValueError:  # the old data cannot be read
        return False


def _encoded(record: Record, given: Any) -> str:
    """Return new data of the job in their stored form, checked against its types where these are known here."""
    types = known_types(record.job)
    if record.options.receives and record.depends_on:
        from taskqueue.model import received  # few jobs receive anything

        given = received.known_part(types, given, record.options.receives, "data")
    elif types is not None:
        given = types.encoded(given, "data")
    return encode(given, "data")
