"""How records come in: all or none, the same job twice is one job, and one live holder for each unique key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskqueue.errors import DuplicateId
from taskqueue.model.data import same
from taskqueue.model.lifecycle import behind, canceled, relieved
from taskqueue.model.record import Cause, Record, Status
from taskqueue.store import STOPS
from taskqueue.store.sqlite.rows import COLUMNS, cancel_text, record
from taskqueue.store.sqlite.transaction import Transaction

_HOLDER = f"SELECT {COLUMNS} FROM jobs WHERE unique_key = ? AND status <= 2"


def add(work: Transaction, records: Sequence[Record]) -> list[Record]:
    """Insert all records and return for each the one that is kept."""
    kept = [_inserted(work, new) for new in records]
    return [_looked_at_again(work, new) if new.waiting_for else new for new in kept]


def replace(work: Transaction, new: Record, old: Record, cancel_running: str | None, now: datetime) -> Record | None:
    """Put ``new`` in the place of ``old``, or behind it while it runs; None if ``old`` has moved meanwhile."""
    present = work.record(old.id)
    if present is None or (present.status, present.claims, present.unique) != (old.status, old.claims, old.unique):
        return None
    if present.status.is_final:
        return None
    if present.status is not Status.PROCESSING:
        work.swap(present, canceled(present, "", now, Cause.REPLACED), now)
        kept = _inserted(work, new)
        return _looked_at_again(work, kept) if kept.waiting_for else kept
    wish = present.cancel if cancel_running is None else canceled(present, cancel_running, now).cancel
    work.execute("UPDATE jobs SET unique_key = NULL, cancel = ? WHERE id = ?", (cancel_text(wish), str(old.id)))
    if wish is not None:
        work.topics.add(STOPS)
    return _inserted(work, behind(new, old.id))


def _inserted(work: Transaction, new: Record) -> Record:
    if work.insert(new):
        return new
    present = work.record(new.id)
    if present is not None:
        if present.job == new.job and same(present.data, new.data):
            return present
        raise DuplicateId(new.id)
    return record(work.execute(_HOLDER, (new.unique,)).fetchone())


def _looked_at_again(work: Transaction, waiting: Record) -> Record:
    """Return the record without those that ended, or were removed, before it was in."""
    after = waiting
    for awaited in waiting.waiting_for:
        present = work.record(awaited)
        if present is None or present.status.is_final:
            status = None if present is None else present.status
            after = relieved(after, awaited, status, after.created_at)
    if after is not waiting:
        work.swap(waiting, after, after.created_at)
    return after
