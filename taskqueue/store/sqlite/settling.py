"""How claims end: outcomes swapped in where the fence still holds, and wishes to cancel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskqueue.model.ending import obeying
from taskqueue.model.lifecycle import canceled
from taskqueue.model.record import Cause, JobId, Record, Status, changed
from taskqueue.store import Settlement
from taskqueue.store.sqlite.rows import CHANGING, attempts_text, cancel_request, changes, instant
from taskqueue.store.sqlite.transaction import Transaction

_FENCE = "id = ? AND status = 2 AND claims = ? AND seat = ? AND incarnation = ?"
_SETTLE = f"UPDATE jobs SET {CHANGING} WHERE {_FENCE} AND cancel IS NULL"
# What most jobs come to: DONE, with nothing to tell but the result. Other columns need no values then, and the
# indexes that they are in no look (measured: 7 us, not 16).
_SETTLE_DONE = f"""
UPDATE jobs SET status = 3, cause = 'returned', ready_at = NULL, seat = NULL, incarnation = NULL, started_at = ?,
    ended_at = ?, waiting_for = NULL, progress = 100.0, progress_message = '', progress_at = NULL, error = NULL,
    attempts = ?, state = NULL, result = ?, cursor = NULL, course = NULL
WHERE {_FENCE} AND cancel IS NULL
"""
_WISH = f"SELECT cancel FROM jobs WHERE {_FENCE}"
_SETTLE_ASKED = f"UPDATE jobs SET {CHANGING} WHERE {_FENCE}"


def settle(work: Transaction, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
    """Swap in each record whose claim still holds and return the ids of those."""
    accepted = set()
    for settlement in settlements:
        after = settlement.after
        holder = settlement.holder
        if settlement.lease_end is not None and not _is_lease(work, settlement):
            continue
        fence = (str(after.id), settlement.claims, holder.seat, holder.incarnation)
        # Hardly anybody asks to cancel: the swap is tried as if nobody did, and only then is the record looked at.
        if _swap(work, after, fence) == 0:
            found = work.execute(_WISH, fence).fetchone()
            if found is None:
                continue
            wish = cancel_request(found[0])
            after = changed(obeying(after, wish, now), cancel=wish)
            work.execute(_SETTLE_ASKED, (*changes(after), *fence))
        accepted.add(after.id)
        work.moved(Status.PROCESSING, after, now)
        if after.waiting_for:
            work.await_others(after)
            work.look_again(after, now)
    return accepted


def _swap(work: Transaction, after: Record, fence: tuple[str, int, str, str]) -> int:
    """Put the record in the place of its claim, if that still holds, and return how many were changed."""
    is_plain = after.status is Status.DONE and after.cause is Cause.RETURNED and after.error is None
    told = after.progress_at or after.progress_message or after.state or after.cursor or after.course
    if not is_plain or told or after.progress != 100.0:
        return work.execute(_SETTLE, (*changes(after), *fence)).rowcount
    values = (instant(after.started_at), instant(after.ended_at), attempts_text(after.attempts), after.result)
    return work.execute(_SETTLE_DONE, (*values, *fence)).rowcount


def _is_lease(work: Transaction, settlement: Settlement) -> bool:
    present = work.record(settlement.after.id)
    return present is not None and present.ready_at == settlement.lease_end


def cancel(work: Transaction, id: JobId, reason: str, now: datetime) -> Record | None:
    """Cancel a pending record, or write the wish down where it runs; return the record as it is then."""
    before = work.record(id)
    if before is None or before.status.is_final:
        return before
    after = canceled(before, reason, now)
    if before.status is Status.PROCESSING:
        work.wish(after)
    else:
        work.swap(before, after, now)
    return after
