"""Claims records for a node: promotes due ones, ends expired ones, takes the lowest (rank, id)."""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from bson import ObjectId

from taskqueue.model.controls import NONE, Controls
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.pending import expired
from taskqueue.model.record import Cause, Holder, Record, Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import Claim, ClaimRequest
from taskqueue.store.bell import NEWS, WORK
from taskqueue.store.queue_shares import in_turn
from taskqueue.store.relational.claim_cache import Candidate, ClaimCache, first_of
from taskqueue.store.relational.columns import COLUMNS, LARGEST, NAMES, Row
from taskqueue.store.relational.controls import controls
from taskqueue.store.relational.engine import Rows
from taskqueue.store.relational.limits import LimitRoom
from taskqueue.store.relational.rows import records_of
from taskqueue.store.relational.transaction import Transaction
from taskqueue.store.selection import Budget, bounds, is_beyond, other_lanes_at

# pending.claimed. A row is read as the claim leaves it, so that it need not be read again after it was written
# (measured in a batch: 5.9 us a row, and 8.4 with ``RETURNING``, for which SQLite keeps a copy of each).
CLAIMED = {
    "status": "2",
    "cause": "'claimed'",
    "ready_at": ":until",
    "seat": ":seat",
    "incarnation": ":incarnation",
    "claims": "claims + 1",
    "started_at": "NULL",
}
# The number of the row, whether it is pending.is_late, and the columns of a record.
_ROW = "jobs.rowid, expires_at IS NOT NULL AND expires_at <= :at AND started_at IS NULL, " + ", ".join(
    CLAIMED.get(name, f"jobs.{name}") for name in NAMES
)
_NUMBER, _IS_LATE, _RECORD = 0, 1, slice(2, None)
_FORCED, _DATA, *_RANK_AND_ID = (2 + NAMES.index(name) for name in ("forced", "data", "rank", "id"))

_THESE = f"SELECT {_ROW} FROM json_each(:numbers) AS these CROSS JOIN jobs ON jobs.rowid = these.value"
# Jobs beside the pool come first: the bytes of the demand limit only the others, which are not read further.
_OF_QUEUE = " UNION ALL ".join(
    f"SELECT * FROM (SELECT {_ROW} FROM jobs WHERE status = 0 AND queue = :queue AND forced = {forced} "
    f"AND rank <= {LARGEST} ORDER BY rank, id LIMIT {most}) AS kind{forced}"
    for forced, most in ((1, ":forced"), (0, ":pooled"))
)
_TAKE_ONE, _TAKE = (
    f"UPDATE jobs SET {', '.join(f'{name} = {value}' for name, value in CLAIMED.items())} WHERE rowid {these}"
    for these in ("= :numbers", "IN (SELECT value FROM json_each(:numbers))")
)
_HELD_IDS = "SELECT rowid, id, queue FROM jobs WHERE status = 2 AND seat = ? AND incarnation = ?"
_END_NAMELESS = "UPDATE jobs SET status = ?, cause = ?, ended_at = ?, ready_at = NULL, seat = NULL WHERE rowid = ?"

_in_order = itemgetter(*_RANK_AND_ID)
_claims = attrgetter("claims")


class ClaimTerms(NamedTuple):
    """For whom a call claims, until when, and at which time ``at``, as the rows that it takes have these."""

    until: int
    seat: str
    incarnation: str
    at: int


def of_queue(work: Transaction, terms: ClaimTerms, queue: str, demand: ClaimRequest) -> Iterable[Row]:
    """Return the lowest waiting rows of the queue, without limits, those beside the pool first."""
    bounds = {"queue": queue, "forced": demand.forced, "pooled": demand.pooled}
    return work.execute(_OF_QUEUE, {**terms._asdict(), **bounds})


def numbered(work: Transaction, terms: ClaimTerms, numbers: Sequence[int]) -> Iterable[Row]:
    """Return the rows with these numbers, in this order."""
    return work.execute(_THESE, {**terms._asdict(), "numbers": str(numbers)}) if numbers else ()


def within_data(rows: Iterable[Row], demand: ClaimRequest) -> tuple[list[Row], bool]:
    """Return the rows up to the byte limit of the demand, and whether there are more.

    Later rows are not read.
    """
    found: list[Row] = []
    total = count = 0
    for row in rows:
        if not row[_FORCED] & 1:
            total, count = total + len(row[_DATA]), count + 1
            if is_beyond(total, count, demand):
                return found, True
        found.append(row)
    return found, False


def take(work: Transaction, terms: ClaimTerms, found: Sequence[Row], was: Status = Status.WAITING) -> list[Record]:
    """Make the records PROCESSING, except for late ones, and return them in order."""
    rows = sorted((row for row in found if not row[_IS_LATE]), key=_in_order)
    numbers = [row[_NUMBER] for row in rows]
    statement, these = (_TAKE_ONE, numbers[0]) if len(rows) == 1 else (_TAKE, str(numbers))
    work.execute(statement, {**terms._asdict(), "numbers": these})
    records = records_of([row[_RECORD] for row in rows])
    if len(records) < len(rows):
        end_nameless(work, terms)
    for taken in records if was is not Status.WAITING else ():
        work.count(taken.queue, was, -1)
    for claims, alike in groupby(records, _claims):
        work.silent_events([str(taken.id) for taken in alike], claims, "processing", terms.at, Status.PROCESSING)
    return records


def end_nameless(work: Transaction, terms: ClaimTerms) -> None:
    """End the taken records whose id is invalid as FAILED, since no caller could name them."""
    for rowid, id, queue in work.execute(_HELD_IDS, (terms.seat, terms.incarnation)).fetchall():
        if not ObjectId.is_valid(id):
            work.execute(_END_NAMELESS, (Status.FAILED, Cause.UNREADABLE.value, terms.at, rowid))
            work.count(queue, Status.FAILED, 1)


STEP = 500
"""Maximum number of records that one claim promotes, and that it ends as expired; the next claim follows at once."""

EARLY_BY = timedelta(milliseconds=5)
"""The early-claim window: the time an idle node needs to bring a job to a worker."""

EARLY_CANDIDATES = 64
"""The number of soon-due jobs that one claim considers."""

LANES_AT_ONCE = 1000
"""Maximum number of lanes that one claim considers."""

_LATEST = milliseconds(LATEST)

# pending.promoted: only the status changes, so no record is read.
_PROMOTE = """
UPDATE jobs SET status = 0 WHERE rowid IN (
    SELECT rowid FROM jobs WHERE status = 1 AND (waiting_for IS NOT NULL) = FALSE AND ready_at <= ?
    ORDER BY ready_at LIMIT ?
) RETURNING id, claims, queue
"""
LOOK = f"""
SELECT (SELECT min(ready_at) FROM jobs
        WHERE status = 1 AND (waiting_for IS NOT NULL) = FALSE AND ready_at <= {LARGEST}),
    (SELECT min(expires_at) FROM jobs
        WHERE expires_at IS NOT NULL AND status < 2 AND started_at IS NULL AND expires_at <= {LARGEST}),
    (SELECT min(lane) FROM jobs WHERE status = 0 AND lane IS NOT NULL),
    (SELECT min(queue) FROM jobs WHERE status = 0),
    (SELECT max(queue) FROM jobs WHERE status = 0),
    EXISTS (SELECT 1 FROM controls)
"""
_ABOUT_DUE = """
SELECT rank, id, queue, forced, '', priority, number FROM (
    SELECT rank, id, queue, forced, lane, priority, rowid AS number FROM jobs
    WHERE status = 1 AND (waiting_for IS NOT NULL) = FALSE AND ready_at <= ? ORDER BY ready_at LIMIT ?
) AS about_due WHERE lane IS NULL
"""
_EXPIRING = f"""
SELECT {COLUMNS} FROM jobs
WHERE expires_at IS NOT NULL AND status < 2 AND started_at IS NULL AND expires_at <= ? LIMIT ?
"""
# A damaged rank that is no number
# sorts after all numbers and cannot be compared with them: its record waits until it is canceled.
_WAITING = tuple(
    "SELECT rank, id, queue, forced, '', priority, rowid FROM jobs "
    f"WHERE status = 0 AND queue = ? AND forced = {forced} AND rank <= {LARGEST} ORDER BY rank, id LIMIT ?"
    for forced in (0, 1)
)
_WAITING_IN_LANE = (
    "SELECT rank, id, queue, forced, lane, priority, rowid FROM jobs "
    f"WHERE status = 0 AND lane = ? AND queue = ? AND forced = ? AND rank <= {LARGEST} ORDER BY rank, id LIMIT ?"
)
_ONE_WAITING = (
    "SELECT rank, id, queue, forced, coalesce(lane, ''), priority, rowid FROM jobs WHERE id = ? AND status = 0"
)
# Each row is one step in the index.
_LANES = """
WITH RECURSIVE lanes (lane) AS (
    SELECT min(lane) FROM jobs WHERE status = 0 AND lane > ? AND lane < x''
    UNION ALL
    SELECT (SELECT min(lane) FROM jobs WHERE status = 0 AND lane > lanes.lane AND lane < x'')
    FROM lanes WHERE lane IS NOT NULL
)
SELECT lane FROM lanes WHERE lane IS NOT NULL LIMIT ?
"""
_QUEUES_OF_LANES = """
WITH RECURSIVE queues (lane, queue) AS (
    SELECT these.value, (SELECT min(queue) FROM jobs WHERE status = 0 AND lane = these.value) FROM json_each(?) AS these
    UNION ALL
    SELECT lane, (SELECT min(queue) FROM jobs WHERE status = 0 AND lane = queues.lane AND queue > queues.queue)
    FROM queues WHERE queue IS NOT NULL
)
SELECT lane, queue FROM queues WHERE queue IS NOT NULL
"""


def claim(
    work: Transaction,
    holder: Holder,
    demand: ClaimRequest,
    rotation: Rotation,
    cache: ClaimCache,
    now: datetime,
    until: datetime,
) -> Claim:
    """Take WAITING records for ``holder``, and return when to come back."""
    at = milliseconds(now)
    terms = ClaimTerms(milliseconds(until), holder.seat, holder.incarnation, at)
    look = work.execute(LOOK)
    only = cache.only if work.sends_together else None
    ahead = None if only is None else of_queue(work, terms, only, demand)  # in the message of the look
    soonest, first_to_expire, first_lane, *queues, is_controlled = look.fetchone()
    is_due = soonest is not None and soonest <= at
    is_late = first_to_expire is not None and first_to_expire <= at
    promoted = _promote(work, at) if is_due else []
    busy = is_late and _expire(work, now)
    if is_due or is_late:
        ahead = None
        soonest, _, first_lane, *queues, _ = work.execute(LOOK).fetchone()
    cache.ahead = ahead
    in_force = controls(work) if is_controlled else NONE
    room = None if first_lane is None else LimitRoom(work.execute, at, in_force, demand.rooms)
    found: list[Row] = []
    has_more = False
    if in_force is NONE or not in_force.is_closed_to(holder.seat):
        lanes = {} if room is None else room.open(rotation.lanes(work))
        found, has_more = within_data(_lowest(work, terms, demand, queues, cache, lanes, room, in_force), demand)
        nothing_waits = not (found or promoted or busy) and room is None
        if nothing_waits and soonest and demand.due_by is not None and soonest <= milliseconds(demand.due_by):
            return _claim_early(work, terms, demand, demand.due_by, in_force)
    records = take(work, terms, found) if found else []
    if cache.offered:
        cache.put_back(str(taken.id) for taken in records)
    if room is not None:
        room.take(records)
    if promoted and not {str(taken.id) for taken in records}.issuperset(promoted):
        work.topics.update((WORK, NEWS))  # for the next claim, which takes the rest
    if busy or len(promoted) == STEP or len(records) < len(found):
        return Claim(records=records, next_at=now, has_more=has_more)
    exhausted_until = None if room is None else room.next_at()
    moments = [time for time in (soonest, exhausted_until) if time is not None]
    next_at = moment(min(*moments, _LATEST)) if moments else None
    if room is not None and rotation.is_cut and (lanes_at := other_lanes_at(records, demand, now)) is not None:
        next_at = min(next_at or lanes_at, lanes_at)
    return Claim(records=records, next_at=next_at, has_more=has_more)


def claim_one(work: Transaction, id: JobId, holder: Holder, now: datetime, until: datetime) -> Record | None:
    """Take this record if it is WAITING and its limits allow it."""
    found = work.execute(_ONE_WAITING, (str(id),)).fetchone()
    room = LimitRoom(work.execute, milliseconds(now), controls(work), {})
    if found is None or not room.reserve(found[4]):
        return None
    terms = ClaimTerms(milliseconds(until), holder.seat, holder.incarnation, milliseconds(now))
    rows = list(numbered(work, terms, [found[-1]]))
    taken = next(iter(take(work, terms, rows)), None)
    if taken is not None:
        room.take([taken])
    return taken


def _claim_early(
    work: Transaction, terms: ClaimTerms, demand: ClaimRequest, due_by: datetime, in_force: Controls
) -> Claim:
    """Take soon-due jobs without limits before their time: they never become WAITING, so no node starts them early."""
    about_due = work.execute(_ABOUT_DUE, (milliseconds(due_by), EARLY_CANDIDATES)).fetchall()
    queues = _open_bounds(demand, (queue for _, _, queue, *_ in about_due), in_force)
    waiting = _by_queue(candidate for candidate in sorted(about_due) if candidate[2] in queues)
    fitting = _fitting(waiting, demand, Budget(demand, queues, room=None))
    found, has_more = within_data(_rows_of(work, terms, fitting), demand)
    records = take(work, terms, found, was=Status.POSTPONED) if found else []
    [soonest, *_] = work.execute(LOOK).fetchone()
    return Claim(
        records=records,
        next_at=None if soonest is None else moment(min(soonest, _LATEST)),
        begins_at=due_by if records else None,
        has_more=has_more,
    )


def _promote(work: Transaction, at: int) -> list[str]:
    """Make due records WAITING, up to ``STEP``, and return their ids."""
    due = work.execute(_PROMOTE, (at, STEP)).fetchall()
    for id, claims, queue in due:
        work.count(queue, Status.POSTPONED, -1)
        work.count(queue, Status.WAITING, 1)
        work.silent_events([id], claims, "waiting", at, Status.WAITING)
    return [id for id, _, _ in due]


def _expire(work: Transaction, now: datetime) -> bool:
    """End records that were not started in time, and return whether more may remain."""
    late = records_of(work.execute(_EXPIRING, (milliseconds(now), STEP)).fetchall())
    for waiting in late:
        work.replace(waiting, expired(waiting, now), now)
    return len(late) == STEP


class Rotation:
    """Rotates one node's search for jobs with limits: a few lanes per claim, each time after the previous ones."""

    def __init__(self) -> None:
        self._behind = ""

    @property
    def is_cut(self) -> bool:
        """Return whether the last search left lanes out."""
        return self._behind != ""

    def lanes(self, work: Transaction) -> list[str]:
        """Return lanes that have waiting jobs."""
        start, most = self._behind, LANES_AT_ONCE + 1
        lanes = [lane for (lane,) in work.execute(_LANES, (start, most))]
        if start and len(lanes) < most:
            lanes += [lane for (lane,) in work.execute(_LANES, ("", most - len(lanes))) if lane <= start]
        self._behind = lanes[LANES_AT_ONCE - 1] if len(lanes) == most else ""
        return lanes[:LANES_AT_ONCE]


def _lowest(
    work: Transaction,
    terms: ClaimTerms,
    demand: ClaimRequest,
    present: Sequence[str | None],
    cache: ClaimCache,
    lanes: Mapping[str, int],
    room: LimitRoom | None,
    in_force: Controls,
) -> Iterable[Row]:
    """Return the lowest waiting rows: the index ranges of the queues and lanes, merged lazily.

    ``present`` are the first and the last queue that have waiting rows; ``lanes`` those with room, and how much.
    """
    limits = [demand.pooled, demand.forced]
    allowed: Mapping[str, int] = {}
    ranges: defaultdict[str, list[Iterable[Candidate]]] = defaultdict(list)
    queues = _few_queues(work, demand, present, cache)
    if queues is None:
        for forced, limit in enumerate(limits):
            for queue, waiting in _by_queue(cache.lowest(work, forced, limit, in_force)).items():
                ranges[queue].append(waiting)
    else:
        allowed = _open_bounds(demand, queues, in_force)
        if len(allowed) == 1 and not lanes and demand.queues.get(*allowed) is None:
            [queue] = allowed  # all fit: the range is as large as the demand, and there is no other limit
            rows = cache.ahead if queue == cache.only else None
            cache.only = queue
            return of_queue(work, terms, queue, demand) if rows is None else rows
        for queue, bound in allowed.items():
            most = [min(limit, bound) for limit in limits]
            ranges[queue] += [
                work.execute(_WAITING[forced], (queue, most[forced])) for forced in (0, 1) if most[forced] > 0
            ]
    of_lanes = {} if demand.queues else _queues_of(work, lanes)
    for lane in lanes:
        of_lane = allowed if demand.queues else dict.fromkeys(in_force.open(of_lanes[lane]), sum(limits))
        for queue, waiting_in_lane in _in_lane(work, lane, of_lane, limits, lanes[lane]):
            ranges[queue].append(waiting_in_lane)
    if ranges:
        cache.only = None
    merged = {queue: heapq.merge(*found) if len(found) > 1 else found[0] for queue, found in ranges.items() if found}
    return _rows_of(work, terms, _fitting(merged, demand, Budget(demand, allowed, room)))


def _open_bounds(demand: ClaimRequest, present: Iterable[str], in_force: Controls) -> dict[str, int]:
    """Return the allowed queues that are not paused, each with the most records to take from it."""
    if in_force is NONE and not demand.queues:
        return dict.fromkeys(present, demand.pooled + demand.forced)
    allowed = bounds(demand, present)
    return {queue: allowed[queue] for queue in in_force.open(allowed)}


def _by_queue(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    waiting: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        waiting.setdefault(candidate[2], []).append(candidate)
    return waiting


def _fitting(waiting: Mapping[str, Iterable[Candidate]], demand: ClaimRequest, budget: Budget) -> Iterator[Candidate]:
    """Return the candidates, in the order of turns, that fit into the demand, and use it up."""

    def takes(candidate: Candidate) -> bool:
        _, _, queue, forced, lane, *_ = candidate
        return budget.take(queue, lane, forced=forced & 1)

    for candidate in in_turn(waiting, first_of, demand.shares, takes):
        yield candidate
        if not budget.left:
            return


def _rows_of(work: Transaction, terms: ClaimTerms, found: Iterable[Candidate]) -> Iterable[Row]:
    """Return the rows of the candidates, those beside the pool first: the bytes of a demand bound the others alone."""
    return numbered(work, terms, [candidate[-1] for candidate in sorted(found, key=_is_pooled)])


def _is_pooled(candidate: Candidate) -> bool:
    return not candidate[3] & 1


def _in_lane(
    work: Transaction, lane: str, bounds: Mapping[str, int], limits: Sequence[int], free: int
) -> Iterator[tuple[str, Rows]]:
    """Return the index ranges of a lane, each with its queue, with the most to take from each."""
    for queue, bound in bounds.items():
        for forced, limit in enumerate(limits):
            most = min(limit, free, bound)
            if most > 0:
                yield queue, work.execute(_WAITING_IN_LANE, (lane, queue, forced + 2, most))


def _queues_of(work: Transaction, lanes: Iterable[str]) -> dict[str, list[str]]:
    """Return the queues in which jobs of each lane wait."""
    queues: dict[str, list[str]] = {lane: [] for lane in lanes}
    for lane, queue in work.execute(_QUEUES_OF_LANES, (json.dumps(list(queues)),)) if queues else ():
        queues[lane].append(queue)
    return queues


def _few_queues(
    work: Transaction, demand: ClaimRequest, present: Sequence[str | None], cache: ClaimCache
) -> Sequence[str] | None:
    """Return the queues that have waiting records, unless the demand names its own; None if the cache has many."""
    first, last = present
    if first is None or last is None or demand.queues:
        return ()
    return (first,) if first == last else cache.refresh(work, first, last, demand.shares)
