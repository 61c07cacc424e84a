"""Settles claims with the options that the job's class declares: the whole row changes, the unique key too."""

from __future__ import annotations

from datetime import datetime

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.settle import obeying
from taskqueue.model.options.apply_declared import outdone
from taskqueue.model.record import Record, changed
from taskqueue.store import Settlement
from taskqueue.store.sqlite import limits
from taskqueue.store.sqlite.columns import COLUMNS, NAMES, Row, row
from taskqueue.store.sqlite.rows import record
from taskqueue.store.sqlite.transaction import Transaction

FENCE = "id = ? AND status = 2 AND claims = ? AND seat = ? AND incarnation = ?"

_CLAIMED = f"SELECT {COLUMNS} FROM jobs WHERE {FENCE}"
_SETTLE = f"UPDATE jobs SET ({COLUMNS}) = ({', '.join('?' * len(NAMES))}) WHERE {FENCE}"
_KEEPER = "SELECT id FROM jobs WHERE unique_key = ? AND status <= 2 AND id <> ?"


def settle(work: Transaction, settlement: Settlement, defined: Record, fence: Row, now: datetime) -> Record | None:
    """Write the record with its present options and return it; None if the claim is lost."""
    found = work.execute(_CLAIMED, fence).fetchone()
    if found is None:
        return None
    kept, after = record(found), settlement.after
    if after.unique == defined.unique:
        after = changed(after, unique=kept.unique)
    after = changed(obeying(after, kept.cancel, now), cancel=kept.cancel)
    keeper = None if after.unique is None else work.execute(_KEEPER, (after.unique, str(after.id))).fetchone()
    if keeper is not None and not after.status.is_final:
        after = outdone(after, JobId(keeper[0]), now)
    work.queue_changes(kept.queue, after.queue)
    work.execute(_SETTLE, (*row(after), *fence))
    limits.free(work.execute, changed(after, lane=defined.lane), now, is_unseen=False)
    return after
