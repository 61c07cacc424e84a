"""Caches the first waiting job of each queue, so that a claim visits only queues from which it will take jobs.

Moves of waiting jobs to another queue or rank have no event; a counter of them makes the cache invalid.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from taskqueue.model.controls import Controls
from taskqueue.store.queue_shares import STRICT, First, QueueShares, Turns
from taskqueue.store.relational import events
from taskqueue.store.relational.columns import LARGEST, Row
from taskqueue.store.relational.counts import ADD_TO_TALLY, firsts
from taskqueue.store.relational.engine import Execute, Rows
from taskqueue.store.relational.transaction import Transaction

MOVED = -2
"""Stands in ``tally`` for a status, with an empty queue: how often a waiting job was moved."""

_NUMBER = "SELECT records FROM tally WHERE queue = '' AND status = ?"


def note(execute: Execute) -> None:
    """Note that a waiting job was moved."""
    execute(ADD_TO_TALLY, ("", MOVED, 1))


def number(execute: Execute) -> int:
    """Return the number of moves, which differs from every earlier one if there was another."""
    row = execute(_NUMBER, (MOVED,)).fetchone()
    return 0 if row is None else row[0]


FEW_QUEUES = 8
"""With up to this many queues, a claim reads each of them, which costs less than the cache."""

FEW_EVENTS = 1000
"""Up to this many new events, or as many as there are queues, are read; after more, the cache is read again."""

MOST_AT_ONCE = 128
"""Maximum number of records of a queue that are read at once beyond those whose turn was planned."""

Candidate: TypeAlias = tuple[int, str, str, int, str, int, int]
"""A waiting record: rank, id, queue, forced, lane, priority and row number."""

Place: TypeAlias = tuple[int, str]
"""Rank and id: the place of a record among the waiting ones."""

# Each row is one step in the index.
_FEW_QUEUES = """
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM jobs WHERE status = 0 AND queue >= ?
    UNION ALL
    SELECT (SELECT min(queue) FROM jobs WHERE status = 0 AND queue > queues.queue) FROM queues WHERE queue < ?
)
SELECT queue FROM queues LIMIT ?
"""
_BEGAN_TO_WAIT = "SELECT job, about FROM events WHERE number > ? AND status = 0"
_PLACES = f"""
SELECT queue, forced, rank, jobs.id, priority FROM json_each(?) AS these CROSS JOIN jobs ON jobs.id = these.value
WHERE status = 0 AND rank <= {LARGEST}
"""
_FROM = f"""
SELECT rank, id, queue, forced, '', priority, rowid FROM jobs
WHERE status = 0 AND queue = ? AND forced = ? AND (rank, id) >= (?, ?) AND rank <= {LARGEST} ORDER BY rank, id LIMIT ?
"""


class ClaimCache:
    """For each queue a place before which none of its jobs without limits waits, while there are many queues.

    Every place is looked up before it is used: jobs that others have taken do no harm. A job that has started to wait
    has an event, or is noted as moved. A claim that fails must ``forget``: its jobs wait at earlier places.
    """

    def __init__(self) -> None:
        self._turns = (Turns(), Turns())
        self._shares = STRICT
        self._seen: tuple[object, ...] = ()
        self._event = 0
        self.offered: list[Candidate] = []
        """The records that ``lowest`` returned, until ``put_back`` is called."""
        self.only: str | None = None
        """The queue from which the last claim took all its jobs without another limit than its demand."""
        self.ahead: Iterable[Row] | None = None
        """The first waiting rows of that queue, if this claim has asked for them in advance."""

    def forget(self) -> None:
        """Make the next claim read everything again."""
        self._seen = ()

    def refresh(self, work: Transaction, first: str, last: str, shares: QueueShares) -> list[str] | None:
        """Bring the cache up to date; if few queues, from the first to the last, have waiting jobs, return these."""
        if shares is not self._shares:
            self.forget()
        self._shares = shares
        self.put_back(())  # what a claim has looked at and not taken
        if not self._is_kept(work):
            few = [queue for (queue,) in work.execute(_FEW_QUEUES, (first, last, FEW_QUEUES + 1))]
            if len(few) <= FEW_QUEUES:
                self.forget()
                return few
            self._read(work)
        if ids := work.waiting_ids():
            self._lower(work, ids)
        return None

    def lowest(self, work: Transaction, forced: int, limit: int, controls: Controls) -> list[Candidate]:
        """Return the first waiting records of all queues that are not paused, in order."""
        turns, trial = self._turns[forced], self._shares.trial()
        found: list[Candidate] = []
        paused: list[tuple[str, First]] = []

        def next_turn(shares: QueueShares) -> tuple[str, First] | None:
            while (turn := turns.pop(shares)) is not None and controls.pause_of(turn[0]) is not None:
                paused.append(turn)
            return turn

        readers = self._readers(work, forced, limit, next_turn)
        ahead: dict[str, Candidate | None] = {}
        while len(found) < limit and (turn := next_turn(trial)) is not None:
            queue, first = turn
            if queue not in ahead:
                if queue not in readers:
                    readers[queue] = _waiting_from(work, queue, forced, first[1:], 2)
                ahead[queue] = next(readers[queue], None)
            candidate = ahead[queue]
            if candidate is not None and first_of(candidate) == first:
                found.append(candidate)
                trial.charge(queue, first)
                candidate = ahead[queue] = next(readers[queue], None)
            if candidate is not None:
                turns.put(queue, first_of(candidate), self._shares)
        for queue, first in paused:
            turns.put(queue, first, self._shares)
        self.offered += found
        return found

    def _readers(
        self, work: Transaction, forced: int, limit: int, next_turn: Callable[[QueueShares], tuple[str, First] | None]
    ) -> dict[str, Iterator[Candidate]]:
        """Return what reads the queues that have the next turns if each has enough records like its first one.

        In strict order none is known to have more than one, and an engine without messages reads when it must.
        """
        if not (self._shares.is_fair or work.sends_together):
            return {}
        turns, trial = self._turns[forced], self._shares.trial()
        planned: Counter[str] = Counter()
        firsts: dict[str, First] = {}
        for _ in range(limit):
            turn = next_turn(trial)
            if turn is None:
                break
            queue, first = turn
            firsts[queue] = first
            planned[queue] += 1
            if self._shares.is_fair:
                trial.charge(queue, first)
                turns.put(queue, first, trial)
        for queue, first in firsts.items():
            turns.put(queue, first, self._shares)
        return {
            queue: _waiting_from(work, queue, forced, first[1:], planned[queue] + 1) for queue, first in firsts.items()
        }

    def put_back(self, taken: Iterable[str]) -> None:
        """Note that of the records that ``lowest`` returned only these were taken."""
        gone = set(taken)
        for candidate in self.offered:
            _, id, queue, forced, *_ = candidate
            if id not in gone:
                self._begin_early(forced, queue, first_of(candidate))
        self.offered.clear()

    def _is_kept(self, work: Transaction) -> bool:
        """Return whether the cache is up to date, after a look at what has happened since."""
        if self._seen != (work.execute, number(work.execute)):
            return False
        queues = sum(len(turns.queues) for turns in self._turns)
        following, last = work.execute(events.NEXT_AND_LAST, (self._event,)).fetchone()
        new = (last or 0) - self._event
        has_missed_some = new < 0 or (new > 0 and following != self._event + 1)
        if queues <= FEW_QUEUES or has_missed_some or new > max(FEW_EVENTS, queues):
            return False
        if new:
            began = work.execute(_BEGAN_TO_WAIT, (self._event,)).fetchall()
            self._lower(work, " ".join(ids for row in began for ids in row if isinstance(ids, str)).split())
            self._event = last
        return True

    def _read(self, work: Transaction) -> None:
        """Read the places of all queues."""
        self._turns, self.offered = (Turns(), Turns()), []
        for found in firsts(work.execute):
            if found.forced in (0, 1):
                first_job = First(found.priority, found.rank, found.id)
                self._turns[found.forced].put(found.queue, first_job, self._shares)
        self._seen = (work.execute, number(work.execute))
        [_, self._event] = work.execute(events.ENDS).fetchone()

    def _lower(self, work: Transaction, ids: Iterable[str]) -> None:
        """Put these records first in their queues if they precede the other jobs."""
        for queue, forced, rank, id, priority in work.execute(_PLACES, (json.dumps(list(ids)),)):
            if forced in (0, 1):
                self._begin_early(forced, queue, First(priority, rank, id))

    def _begin_early(self, forced: int, queue: str, first: First) -> None:
        present = self._turns[forced].first(queue)
        if present is None or first[1:] < present[1:]:
            self._turns[forced].put(queue, first, self._shares)


def first_of(candidate: Candidate) -> First:
    """Return the candidate as the first job of its queue."""
    return First(candidate[5], candidate[0], candidate[1])


def _waiting_from(work: Transaction, queue: str, forced: int, place: Place, size: int) -> Iterator[Candidate]:
    """Return the waiting records of a queue from a place on, ``size`` at first: the next may be of another queue."""
    rows = work.execute(_FROM, (queue, forced, *place, size)) if work.sends_together else None
    return _all_from(work, (queue, forced), place, size, rows)


def _all_from(
    work: Transaction, queue: tuple[str, int], place: Place, size: int, asked: Rows | None
) -> Iterator[Candidate]:
    rows = (asked or work.execute(_FROM, (*queue, *place, size))).fetchall()
    yield from rows
    while len(rows) == size:
        place, size = rows[-1][:2], min(4 * size, MOST_AT_ONCE)
        rows = work.execute(_FROM, (*queue, *place, size)).fetchall()
        yield from (row for row in rows if row[:2] != place)
