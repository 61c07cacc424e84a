"""Reads the rows that a claim takes, as it leaves them, up to its bytes of data, and writes what it changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from bson import ObjectId

from taskqueue.model.record import Cause, Record, Status
from taskqueue.store import ClaimRequest
from taskqueue.store.selection import is_beyond
from taskqueue.store.sqlite.columns import NAMES, Row
from taskqueue.store.sqlite.rows import records_of
from taskqueue.store.sqlite.transaction import Transaction

# pending.claimed. A row is read as the claim leaves it, so that it need not be read again after it was written
# (measured in a batch: 5.9 us a row, and 8.4 with ``RETURNING``, for which SQLite keeps a copy of each).
_CLAIMED = {
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
    _CLAIMED.get(name, f"jobs.{name}") for name in NAMES
)
_NUMBER, _IS_LATE, _RECORD = 0, 1, slice(2, None)
_FORCED, _DATA, *_RANK_AND_ID = (2 + NAMES.index(name) for name in ("forced", "data", "rank", "id"))

_THESE = f"SELECT {_ROW} FROM json_each(:numbers) AS these CROSS JOIN jobs ON jobs.rowid = these.value"
# Those beside the pool first: the bytes of the demand bound the others alone, which are not read beyond them.
_OF_QUEUE = " UNION ALL ".join(
    f"SELECT * FROM (SELECT {_ROW} FROM jobs WHERE status = 0 AND queue = :queue AND forced = {forced} AND rank < '' "
    f"ORDER BY rank, id LIMIT {most})"
    for forced, most in ((1, ":forced"), (0, ":pooled"))
)
_TAKE_ONE, _TAKE = (
    f"UPDATE jobs SET {', '.join(f'{name} = {value}' for name, value in _CLAIMED.items())} WHERE rowid {these}"
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
    """Return the rows before the one that goes beyond the bytes of the demand, and whether there is such.

    Rows behind it are not read.
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
        _end_nameless(work, terms)
    for taken in records if was is not Status.WAITING else ():
        work.count(taken.queue, was, -1)
    for claims, alike in groupby(records, _claims):
        work.silent_events([str(taken.id) for taken in alike], claims, "processing", terms.at, Status.PROCESSING)
    return records


def _end_nameless(work: Transaction, terms: ClaimTerms) -> None:
    """End as FAILED the records just taken whose id is invalid, since no caller could name them."""
    for rowid, id, queue in work.execute(_HELD_IDS, (terms.seat, terms.incarnation)).fetchall():
        if not ObjectId.is_valid(id):
            work.execute(_END_NAMELESS, (Status.FAILED, Cause.UNREADABLE.value, terms.at, rowid))
            work.count(queue, Status.FAILED, 1)
