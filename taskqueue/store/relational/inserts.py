"""Inserts and updates records: all or none; a job added twice is one job; one pending job per unique key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskqueue.model.lifecycle.pending import behind, canceled, in_place_of
from taskqueue.model.lifecycle.recovered_copy import COPY, ORIGIN
from taskqueue.model.reading import readable
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.serializer import dumps
from taskqueue.model.timestamps import milliseconds
from taskqueue.model.unique_period import is_of, keeps_out, without
from taskqueue.store.arguments import existing
from taskqueue.store.bell import STOPS, WORK
from taskqueue.store.relational import claim_cache, effects
from taskqueue.store.relational.columns import COLUMNS, assignments, cancel_text, given_of
from taskqueue.store.relational.counts import ADD_TO_TALLY
from taskqueue.store.relational.rows import record, records_of, short_rows
from taskqueue.store.relational.transaction import Transaction

_OWNERS, _values = assignments(
    "status", "cause", "queue", "rank", "ready_at", "expires_at", "priority", "given", "period", "tags", "data"
)
_UPDATE = f"UPDATE jobs SET {_OWNERS} WHERE id = ?"


def update(work: Transaction, before: Record, after: Record, now: datetime) -> bool:
    """Replace ``before`` by ``after``; False if it has moved in the meantime."""
    if work.record(before.id) != before:
        return False
    if after.status.is_final or after.course != before.course:
        work.replace(before, after, now)
        return True
    work.queue_changes(before.queue, after.queue)
    work.execute(_UPDATE, (*_values(after), str(after.id)))
    work.count(before.queue, before.status, -1)
    work.count(after.queue, after.status, 1)
    if after.status is not before.status:
        work.status_event(after, milliseconds(now))
    elif after.status is Status.WAITING and (after.queue, after.rank) != (before.queue, before.rank):
        claim_cache.note(work.execute)
    work.topics.add(WORK)
    return True


_GIVEN = "SELECT given FROM jobs WHERE id = ?"
_NAME_COPY = "UPDATE jobs SET given = ? WHERE id = ?"

_OF_PERIOD = f"SELECT {COLUMNS} FROM jobs WHERE period = ? AND period IS NOT NULL"
_PERIODS, _period_values = assignments("given", "period")
_SET_PERIOD = f"UPDATE jobs SET {_PERIODS} WHERE id = ?"

_HOLDER = f"SELECT {COLUMNS} FROM jobs WHERE unique_key = ? AND status <= 2"

RELEASED = -3
"""Stands in ``tally`` for a status, with an empty queue: how often a running job gave up a key of ``add_job_once``."""


def add(work: Transaction, records: Sequence[Record]) -> list[Record]:
    """Insert all records and return the stored record for each."""
    stored = list(records)
    rows = short_rows(records)
    if rows is None or not work.insert_all(rows):
        stored = [_rechecked(work, new) for new in [_inserted(work, new) for new in records]]
    for copy in stored:
        if ORIGIN in copy.given:
            _name_copy(work, copy.given[ORIGIN], copy)
    return stored


def replace(work: Transaction, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
    """Replace ``old`` by ``new``, or queue ``new`` after it while it runs; None if ``old`` has moved."""
    present = work.record(old.id)
    if present is None or (present.status, present.claims, present.unique) != (old.status, old.claims, old.unique):
        return None
    if present.status.is_final:
        return None
    if present.status is not Status.PROCESSING:
        work.replace(present, canceled(present, "", now, Cause.REPLACED), now)
        inserted = _inserted(work, in_place_of(new, present))
        return _rechecked(work, inserted)
    request = present.cancel if cancel_running is None else canceled(present, cancel_running, now).cancel
    work.execute(
        "UPDATE jobs SET unique_key = NULL, period = NULL, cancel = ? WHERE id = ?", (cancel_text(request), str(old.id))
    )
    if request is not None:
        work.topics.add(STOPS)
    if is_of(old.job, old.unique):
        work.execute(ADD_TO_TALLY, ("", RELEASED, 1))
    return _inserted(work, behind(new, old.id))


def _inserted(work: Transaction, new: Record) -> Record:
    while not work.insert(new):
        present = work.record(new.id)
        if present is not None:
            return existing(new, present)
        holder = work.execute(_HOLDER, (new.unique,)).fetchone()
        if holder is not None:
            return record(holder)
        of_period = record(work.execute(_OF_PERIOD, (new.unique,)).fetchone())
        if keeps_out(of_period, new):
            return of_period
        work.execute(_SET_PERIOD, (*_period_values(without(of_period)), str(of_period.id)))
    return new


def take_period(work: Transaction, new: Record) -> Record | None:
    """Set the period of a record that was inserted without it; return the record that keeps it out, if there is one."""
    for of_period in records_of(work.execute(_OF_PERIOD, (new.unique,)).fetchall()):
        if keeps_out(of_period, new):
            return of_period
        work.execute(_SET_PERIOD, (*_period_values(without(of_period)), str(of_period.id)))
    work.execute(_SET_PERIOD, (*_period_values(new), str(new.id)))
    return None


def _name_copy(work: Transaction, origin: str, copy: Record) -> None:
    """Name this last copy in the original job, if that still exists."""
    for given in readable(work.execute(_GIVEN, (origin,)).fetchall(), lambda row: given_of(*row), "what was given"):
        work.execute(_NAME_COPY, (dumps({**given, COPY: str(copy.id)}), origin))


def _rechecked(work: Transaction, new: Record) -> Record:
    """Return the record after checking whether its parent and dependencies had already ended."""
    return effects.recheck(work, new, new.created_at) if new.waiting_for or new.parent is not None else new
