"""Settles claims if the fence still holds, also with options that only the job's class declares, and cancels jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import canceled
from taskqueue.model.lifecycle.settle import obeying
from taskqueue.model.options.apply_declared import outdone
from taskqueue.model.reading import readable
from taskqueue.model.record import CancelRequest, Cause, Record, Status, changed
from taskqueue.model.serializer import dumps
from taskqueue.store import Settlement
from taskqueue.store.bell import LONGEST_RING, PLAIN_RING
from taskqueue.store.relational import effects, limits, log_lines, waits
from taskqueue.store.relational.columns import (
    ALL_COLUMNS,
    ALL_NAMES,
    CHANGING,
    COLUMNS,
    GROUPS,
    Row,
    attempts_text,
    cancel_request,
    changes,
    instant,
    whole_row,
)
from taskqueue.store.relational.rows import record
from taskqueue.store.relational.transaction import Transaction

FENCE = "id = ? AND status = 2 AND claims = ? AND seat = ? AND incarnation = ?"

_CLAIMED = f"SELECT {COLUMNS} FROM jobs WHERE {FENCE}"
_SETTLE_WHOLE = f"UPDATE jobs SET ({ALL_COLUMNS}) = ({', '.join('?' * len(ALL_NAMES))}) WHERE {FENCE}"
_KEEPER = "SELECT id FROM jobs WHERE unique_key = ? AND status <= 2 AND id <> ?"


def settle_declared(
    work: Transaction, settlement: Settlement, defined: Record, fence: Row, now: datetime
) -> Record | None:
    """Write the record with its current options and return it; None if the claim is lost."""
    row = work.execute(_CLAIMED, fence).fetchone()
    if row is None:
        return None
    before, after = record(row), settlement.after
    if after.unique == defined.unique:
        after = changed(after, unique=before.unique)
    after = changed(obeying(after, before.cancel, now), cancel=before.cancel)
    keeper = None if after.unique is None else work.execute(_KEEPER, (after.unique, str(after.id))).fetchone()
    if keeper is not None and not after.status.is_final:
        after = outdone(after, JobId(keeper[0]), now)
    work.queue_changes(before.queue, after.queue)
    work.execute(_SETTLE_WHOLE, (*whole_row(after), *fence))
    limits.free(work.execute, changed(after, lane=defined.lane), now, is_unseen=False)
    return after


_FENCE = FENCE
_SETTLE = f"UPDATE jobs SET {CHANGING} WHERE {_FENCE} AND cancel IS NULL"
# The outcome of most jobs: DONE, with only a result. Then other columns need no values, and their
# indexes no lookup (measured: 7 us, not 16). The values are those of done_values and _fence.
DONE = """
UPDATE jobs SET status = 3, cause = 'returned', ready_at = NULL, seat = NULL, incarnation = NULL, started_at = {0},
    ended_at = {1}, waiting_for = NULL, progress = 100.0, progress_message = '', progress_at = NULL, error = NULL,
    attempts = {2}, state = NULL, result = {3}, cursor = NULL, course = NULL
{from_rows}
WHERE id = {4} AND status = 2 AND claims = {5} AND seat = {6} AND incarnation = {7} AND cancel IS NULL
"""
_SETTLE_DONE = DONE.format(*"?" * 8, from_rows="")
_SETTLE_DONE_AND_TELL = f"{_SETTLE_DONE} RETURNING {COLUMNS}"
_SETTLE_ALL = {
    size: DONE.format(
        *(f"new.column{number}" for number in range(1, 9)),
        from_rows=f"FROM (VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?)'] * size)}) AS new",
    )
    for size in GROUPS
}
_REQUEST_CANCEL = f"SELECT cancel FROM jobs WHERE {_FENCE}"
_QUEUE = f"SELECT queue FROM jobs WHERE {_FENCE}"
_SETTLE_ASKED = f"UPDATE jobs SET {CHANGING} WHERE {_FENCE}"


def settle(work: Transaction, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
    """Write each outcome whose claim still holds and return the ids of those."""
    accepted = _settle_plain(work, settlements, now)
    for settlement in settlements:
        if settlement.after.id in accepted:
            continue
        after = _settle_one(work, settlement, now)
        if after is None:
            continue
        accepted.add(after.id)
        work.status_changed(Status.PROCESSING, after, now, is_unseen=settlement.is_unseen)
        if after.waiting_for:
            waits.add(work, after)
            effects.recheck(work, after, now)
    for settlement in settlements:
        if settlement.lines is not None and settlement.after.id in accepted:
            log_lines.keep(work, str(settlement.after.id), settlement.claims, settlement.lines)
    return accepted


def _settle_plain(work: Transaction, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
    """Write all plain DONE outcomes at once; write none if one claim does not hold.

    They come before the others, whatever the order in which they ended.
    """
    plain = [
        settlement for settlement in settlements if settlement.lease_end is None and is_plainly_done(settlement.after)
    ]
    rows = [(*done_values(settlement.after), *_fence(settlement)) for settlement in plain]
    if rows:
        work.asked = work.execute(waits.ANY)
    if not rows or not (
        _settle_and_tell(work, plain[0].after, rows[0]) if len(rows) == 1 else work.execute_all(_SETTLE_ALL, rows)
    ):
        return set()
    work.all_done([settlement.after for settlement in plain], now)
    return {settlement.after.id for settlement in plain}


def _settle_and_tell(work: Transaction, after: Record, row: Row) -> bool:
    """Write a plain outcome that somebody may await, and put it into the ring; return False if the claim is lost.

    Reading the row costs up to 50 us here, after a pause, and saves the waiter two reads.
    """
    if not work.tells_ends or len(after.data) + len(after.result or "") > LONGEST_RING:
        return work.execute(_SETTLE_DONE, row).rowcount == 1
    written = work.execute(_SETTLE_DONE_AND_TELL, row).fetchall()
    if written:
        work.end_notice = end_notice(written[0])
    return bool(written)


def _settle_one(work: Transaction, settlement: Settlement, now: datetime) -> Record | None:
    """Write the record and return it; None if the claim does not hold."""
    after = settlement.after
    if settlement.lease_end is not None and not _is_lease(work, settlement):
        return None
    fence = _fence(settlement)
    if settlement.defined is not None:
        return settle_declared(work, settlement, settlement.defined, fence, now)
    if after.status < Status.PROCESSING:  # a retry may name another queue
        for [queue] in work.execute(_QUEUE, fence).fetchall():
            work.queue_changes(queue, after.queue)
    # Cancel requests are rare: the write assumes none, and only if it fails is the record read.
    statement, values = (_SETTLE_DONE, done_values(after)) if is_plainly_done(after) else (_SETTLE, changes(after))
    if work.execute(statement, (*values, *fence)).rowcount:
        return after
    row = work.execute(_REQUEST_CANCEL, fence).fetchone()
    if row is None:
        return None
    request = next(readable(row, cancel_request, "a cancel request"), CancelRequest(requested_at=now))
    after = changed(obeying(after, request, now), cancel=request)
    work.execute(_SETTLE_ASKED, (*changes(after), *fence))
    return after


def is_plainly_done(after: Record) -> bool:
    """Return whether ``DONE`` writes everything."""
    if after.status is not Status.DONE or after.cause is not Cause.RETURNED or after.error is not None:
        return False
    progressed = after.progress_at or after.progress_message or after.state or after.cursor or after.course
    return not progressed and after.progress == 100.0


def done_values(after: Record) -> Row:
    """Return the first values of ``DONE``."""
    return instant(after.started_at), instant(after.ended_at), attempts_text(after.attempts), after.result


def _fence(settlement: Settlement) -> Row:
    holder = settlement.holder
    return str(settlement.after.id), settlement.claims, holder.seat, holder.incarnation


def _is_lease(work: Transaction, settlement: Settlement) -> bool:
    present = work.record(settlement.after.id)
    return present is not None and present.ready_at == settlement.lease_end


def cancel(work: Transaction, id: JobId, reason: str, now: datetime) -> Record | None:
    """Cancel a pending record, or record a cancel request for a running one; return the changed record."""
    before = work.record(id)
    if before is None or before.status.is_final:
        return before
    after = canceled(before, reason, now)
    if before.status is Status.PROCESSING:
        work.request_cancel(after)
    else:
        work.replace(before, after, now)
    return after


def end_notice(row: Row) -> bytes:
    """Return the ring that carries this row; a plain ring if it would be too long, or the row is damaged."""
    try:
        notice = dumps(row).encode()
    except (TypeError, ValueError):  # bytes, or text that is not Unicode, which another program has put there
        return PLAIN_RING
    return notice if len(notice) <= LONGEST_RING else PLAIN_RING


def record_of(notice: bytes) -> Record | None:
    """Return the record of a ring; None if it is incomplete or has not ended.

    The ring comes through a socket to which only those who may write the database can send, and is decoded as strictly
    as a row.
    """
    try:
        ended = record(tuple(json.loads(notice)))
    except Exception:  # whatever another program has sent: the waiter reads the store
        return None
    return ended if ended.status.is_final and not ended.damage else None
