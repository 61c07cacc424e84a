"""How a node takes records: what is due becomes WAITING, what has expired ends, and the lowest (rank, id) are taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from taskqueue.model.lifecycle import claimed, expired
from taskqueue.model.record import Holder, Record, Status, milliseconds, moment
from taskqueue.store import Claim, Wanted
from taskqueue.store.sqlite.rows import COLUMNS, instant, record
from taskqueue.store.sqlite.transaction import Transaction

STEP = 500
"""How many records one claim promotes, and how many it ends as expired, at most; then it asks to come back at once."""

# lifecycle.promoted: its time has come and everything else stays, so no record is read.
_PROMOTE = """
UPDATE jobs SET status = 0 WHERE rowid IN (
    SELECT rowid FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = 0 AND ready_at <= ?
    ORDER BY ready_at LIMIT ?
) RETURNING id, claims, queue
"""
_NEXT = "SELECT min(ready_at) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = 0"
_EXPIRING = f"SELECT {COLUMNS} FROM jobs WHERE expires_at IS NOT NULL AND status < 2 AND expires_at <= ? LIMIT ?"
_ANY_QUEUE = f"SELECT {COLUMNS} FROM jobs WHERE status = 0 AND forced = ? ORDER BY rank, id LIMIT ?"
_ONE_QUEUE = """
SELECT rank, id, forced, queue FROM jobs WHERE status = 0 AND queue = ? AND forced = ? ORDER BY rank, id LIMIT ?
"""
_BY_ID = f"SELECT {COLUMNS} FROM jobs WHERE id = ?"
_TAKE = """
UPDATE jobs SET status = 2, cause = ?, ready_at = ?, seat = ?, incarnation = ?, claims = ?, started_at = NULL
WHERE id = ?
"""


def claim(work: Transaction, holder: Holder, wanted: Wanted, now: datetime, until: datetime) -> Claim:
    """Take WAITING records for ``holder``, and tell when to come back."""
    busy = any((_promote(work, now), _expire(work, now)))
    found = list(_of_any_queue(work, wanted) if not wanted.queues else _of_chosen_queues(work, wanted))
    late = [waiting for waiting in found if waiting.expires_at is not None and waiting.expires_at <= now]
    for waiting in late:
        work.swap(waiting, expired(waiting, now), now)
    records = [claimed(waiting, holder, until) for waiting in found if not late or waiting not in late]
    _take(work, records, now)
    if busy or late:
        return Claim(records=records, next_at=now)
    [soonest] = work.execute(_NEXT).fetchone()
    return Claim(records=records, next_at=None if soonest is None else moment(soonest))


def _promote(work: Transaction, now: datetime) -> bool:
    """Make WAITING what is due, and tell whether more may be."""
    at = milliseconds(now)
    due = work.execute(_PROMOTE, (at, STEP)).fetchall()
    for id, claims, queue in due:
        work.count(queue, Status.POSTPONED, -1)
        work.count(queue, Status.WAITING, 1)
        work.tell(id, claims, "waiting", at, Status.WAITING)
    return len(due) == STEP


def _expire(work: Transaction, now: datetime) -> bool:
    """End what was not started in time, and tell whether more may be."""
    late = [record(row) for row in work.execute(_EXPIRING, (milliseconds(now), STEP)).fetchall()]
    for waiting in late:
        work.swap(waiting, expired(waiting, now), now)
    return len(late) == STEP


def _of_any_queue(work: Transaction, wanted: Wanted) -> Iterator[Record]:
    for forced, limit in enumerate((wanted.pooled, wanted.forced)):
        if limit > 0:
            yield from map(record, work.execute(_ANY_QUEUE, (forced, limit)).fetchall())


def _of_chosen_queues(work: Transaction, wanted: Wanted) -> Iterator[Record]:
    """Merge the index ranges of the queues: their keys first, then only the rows that are taken."""
    limits = [wanted.pooled, wanted.forced]
    bounds = {queue: max(limits) + sum(limits) if bound is None else bound for queue, bound in wanted.queues.items()}
    for _rank, id, forced, queue in sorted(_candidates(work, limits, bounds)):
        if limits[forced] > 0 and bounds[queue] > 0:
            limits[forced] -= 1
            bounds[queue] -= 1
            yield record(work.execute(_BY_ID, (id,)).fetchone())


def _candidates(work: Transaction, limits: list[int], bounds: dict[str, int]) -> Iterable[tuple[int, str, int, str]]:
    for queue, bound in bounds.items():
        for forced, limit in enumerate(limits):
            if min(limit, bound) > 0:
                yield from work.execute(_ONE_QUEUE, (queue, forced, min(limit, bound))).fetchall()


def _take(work: Transaction, records: list[Record], now: datetime) -> None:
    at = milliseconds(now)
    for taken in records:
        holder = taken.holder
        assert holder is not None
        until = instant(taken.ready_at)
        values = (taken.cause.value, until, holder.seat, holder.incarnation, taken.claims, str(taken.id))
        work.execute(_TAKE, values)
        work.count(taken.queue, Status.WAITING, -1)
        work.count(taken.queue, Status.PROCESSING, 1)
        work.told(taken, at)
