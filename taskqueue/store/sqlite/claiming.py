"""How a node takes records: what is due becomes WAITING, what has expired ends, and the lowest (rank, id) are taken."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import itemgetter

from taskqueue.model.control import NONE, Controls
from taskqueue.model.lifecycle import claimed, expired, is_late
from taskqueue.model.record import Holder, Record, Status, milliseconds, moment
from taskqueue.store import Claim, Wanted
from taskqueue.store.sqlite.controlling import controls
from taskqueue.store.sqlite.rows import COLUMNS, instant, record
from taskqueue.store.sqlite.slots import Places
from taskqueue.store.sqlite.transaction import Transaction

STEP = 500
"""How many records one claim promotes, and how many it ends as expired, at most; then it asks to come back at once."""

LANES_AT_ONCE = 1000
"""At how many lanes one claim looks."""

# lifecycle.promoted: its time has come and everything else stays, so no record is read.
_PROMOTE = """
UPDATE jobs SET status = 0 WHERE rowid IN (
    SELECT rowid FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = 0 AND ready_at <= ?
    ORDER BY ready_at LIMIT ?
) RETURNING id, claims, queue
"""
_SOONEST = """
SELECT (SELECT min(ready_at) FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = 0),
    (SELECT min(lane) FROM jobs WHERE status = 0 AND lane IS NOT NULL),
    (SELECT min(expires_at) FROM jobs WHERE expires_at IS NOT NULL AND status < 2 AND started_at IS NULL),
    EXISTS (SELECT 1 FROM controls)
"""
_EXPIRING = f"""
SELECT {COLUMNS} FROM jobs
WHERE expires_at IS NOT NULL AND status < 2 AND started_at IS NULL AND expires_at <= ? LIMIT ?
"""
_WAITING = tuple(
    f"SELECT {COLUMNS} FROM jobs WHERE status = 0 AND queue = ? AND forced = {forced} ORDER BY rank, id LIMIT ?"
    for forced in (0, 1)
)
_WAITING_IN_LANE = (
    f"SELECT {COLUMNS} FROM jobs WHERE status = 0 AND lane = ? AND queue = ? AND forced = ? ORDER BY rank, id LIMIT ?"
)
_NEXT_LANE = "SELECT min(lane) FROM jobs WHERE status = 0 AND lane > ?"
_NEXT_QUEUE_OF_LANE = "SELECT min(queue) FROM jobs WHERE status = 0 AND lane = ? AND queue > ?"
_LANE = COLUMNS.split(", ").index("lane")
_RANK_AND_ID = itemgetter(5, 0)
_FIRST_QUEUE = "SELECT min(queue) FROM jobs WHERE status = 0"
_NEXT_QUEUE = "SELECT min(queue) FROM jobs WHERE status = 0 AND queue > ?"
_TAKE = """
UPDATE jobs SET status = 2, cause = ?, ready_at = ?, seat = ?, incarnation = ?, claims = ?, started_at = NULL
WHERE id = ?
"""


def claim(
    work: Transaction, holder: Holder, wanted: Wanted, rotation: Rotation, now: datetime, until: datetime
) -> Claim:
    """Take WAITING records for ``holder``, and tell when to come back."""
    soonest, first_lane, first_to_expire, is_controlled = work.execute(_SOONEST).fetchone()
    at = milliseconds(now)
    busy = soonest is not None and soonest <= at and _promote(work, at)
    busy |= first_to_expire is not None and first_to_expire <= at and _expire(work, now)
    in_force = controls(work.execute) if is_controlled else NONE
    places = Places(work.execute, at, in_force)
    found: list[Record] = []
    if not in_force.is_closed_to(holder.seat):
        lanes = [] if first_lane is None else [lane for lane in rotation.lanes(work) if places.free(lane) > 0]
        found = list(_lowest(work, wanted, lanes, places, in_force))
    late = [waiting for waiting in found if is_late(waiting, now)]
    for waiting in late:
        work.swap(waiting, expired(waiting, now), now)
    records = [claimed(waiting, holder, until) for waiting in found if not late or waiting not in late]
    _take(work, records, places, at)
    if busy or late:
        return Claim(records=records, next_at=now)
    if soonest is not None and soonest <= at:
        soonest = work.execute(_SOONEST).fetchone()[0]
    moments = [time for time in (soonest, places.next_at()) if time is not None]
    return Claim(records=records, next_at=moment(min(moments)) if moments else None)


def _promote(work: Transaction, at: int) -> bool:
    """Make WAITING what is due, and tell whether more may be."""
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


class Rotation:
    """Where one node looks for jobs with limits: at so many lanes at once, each time behind the last ones."""

    def __init__(self) -> None:
        self._behind = ""

    def lanes(self, work: Transaction) -> Iterator[str]:
        """Return lanes that have waiting jobs, each found by one step in the index."""
        start, last, left = self._behind, self._behind, LANES_AT_ONCE
        for low, high in ((start, None), ("", start)):
            [lane] = work.execute(_NEXT_LANE, (low,)).fetchone()
            while lane is not None and (high is None or lane <= high):
                if left == 0:
                    self._behind = last
                    return
                yield lane
                last, left = lane, left - 1
                [lane] = work.execute(_NEXT_LANE, (lane,)).fetchone()
        self._behind = ""


def _lowest(
    work: Transaction, wanted: Wanted, lanes: Sequence[str], places: Places, in_force: Controls
) -> Iterator[Record]:
    """Return the lowest waiting records: the index ranges of the queues and lanes, merged as far as they are read."""
    limits = [wanted.pooled, wanted.forced]
    everything = sum(limits)
    chosen = wanted.queues or dict.fromkeys(_queues(work))
    bounds = {queue: everything if bound is None else bound for queue, bound in chosen.items()}
    if in_force.pauses_any:
        bounds = {queue: bounds[queue] for queue in in_force.open(bounds)}
    ranges = [
        work.execute(_WAITING[forced], (queue, min(limit, bound)))
        for queue, bound in bounds.items()
        for forced, limit in enumerate(limits)
        if min(limit, bound) > 0
    ]
    for lane in lanes:
        queues = bounds if wanted.queues else [queue for queue in _queues_of(work, lane) if queue in bounds]
        ranges += _in_lane(work, lane, {queue: bounds[queue] for queue in queues}, limits, places.free(lane))
    for row in heapq.merge(*ranges, key=_RANK_AND_ID) if len(ranges) > 1 else chain(*ranges):
        queue, forced = row[3], row[4] & 1
        if limits[forced] > 0 and bounds[queue] > 0 and places.reserve(row[_LANE] or ""):
            limits[forced] -= 1
            bounds[queue] -= 1
            yield record(row)
        if not any(limits):
            return


def _in_lane(
    work: Transaction, lane: str, bounds: Mapping[str, int], limits: Sequence[int], free: int
) -> Iterator[sqlite3.Cursor]:
    """Return the index ranges of a lane, with the most to take from each queue."""
    for queue, bound in bounds.items():
        for forced, limit in enumerate(limits):
            most = min(limit, free, bound)
            if most > 0:
                yield work.execute(_WAITING_IN_LANE, (lane, queue, forced + 2, most))


def _queues_of(work: Transaction, lane: str) -> Iterator[str]:
    [queue] = work.execute(_NEXT_QUEUE_OF_LANE, (lane, "")).fetchone()
    while queue is not None:
        yield queue
        [queue] = work.execute(_NEXT_QUEUE_OF_LANE, (lane, queue)).fetchone()


def _queues(work: Transaction) -> Iterator[str]:
    """Return the queues that have waiting records, each found by one step in the index."""
    [queue] = work.execute(_FIRST_QUEUE).fetchone()
    while queue is not None:
        yield queue
        [queue] = work.execute(_NEXT_QUEUE, (queue,)).fetchone()


def _take(work: Transaction, records: list[Record], places: Places, at: int) -> None:
    for taken in records:
        holder = taken.holder
        assert holder is not None
        until = instant(taken.ready_at)
        values = (taken.cause.value, until, holder.seat, holder.incarnation, taken.claims, str(taken.id))
        work.execute(_TAKE, values)
        places.take(taken)
        work.count(taken.queue, Status.WAITING, -1)
        work.count(taken.queue, Status.PROCESSING, 1)
        work.told(taken, at)
