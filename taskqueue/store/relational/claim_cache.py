"""Caches the first waiting job of each queue, so that a claim visits only queues from which it will take jobs.

Moves of waiting jobs to another queue or rank have no event; a counter of them makes the cache invalid.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from taskqueue.model.controls import Controls
from taskqueue.store.queue_shares import STRICT, First, QueueShares, Turns
from taskqueue.store.relational import event_rows
from taskqueue.store.relational.columns import LARGEST
from taskqueue.store.relational.counts import firsts
from taskqueue.store.relational.engine import Execute
from taskqueue.store.relational.transaction import Transaction

MOVED = -2
"""In ``tally`` in the place of a status, with an empty queue: how often a waiting job was moved."""

_NOTE = """
INSERT INTO tally (queue, status, records) VALUES ('', ?, 1)
ON CONFLICT (queue, status) DO UPDATE SET records = tally.records + 1
"""
_NUMBER = "SELECT records FROM tally WHERE queue = '' AND status = ?"


def note(execute: Execute) -> None:
    """Note that a waiting job was moved."""
    execute(_NOTE, (MOVED,))


def number(execute: Execute) -> int:
    """Return the number of moves, which differs from every earlier one if there was another."""
    found = execute(_NUMBER, (MOVED,)).fetchone()
    return 0 if found is None else found[0]


FEW_QUEUES = 8
"""Up to this many queues, a claim asks each of them, which costs less than the cache."""

FEW_EVENTS = 1000
"""Up to this many new events, or as many as there are queues, are read; after more, the cache is read again."""

Candidate: TypeAlias = tuple[int, str, str, int, str, int, int]
"""A waiting record: rank, id, queue, forced, lane, priority and row number."""

Place: TypeAlias = tuple[int, str]
"""Rank and id: the place of a record among the waiting ones."""

_NEXT_QUEUE = "SELECT min(queue) FROM jobs WHERE status = 0 AND queue > ?"
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

    Every place is looked up before it is used: jobs that others have taken do no harm. A job that has begun to wait
    has an event, or is noted as moved. A claim that fails must ``forget``: its jobs wait at earlier places.
    """

    def __init__(self) -> None:
        self._turns = (Turns(), Turns())
        self._shares = STRICT
        self._seen: tuple[object, ...] = ()
        self._event = 0
        self.offered: list[Candidate] = []
        """The records that ``lowest`` has returned, until ``put_back``."""

    def forget(self) -> None:
        """Make the next claim read everything again."""
        self._seen = ()

    def refresh(self, work: Transaction, first: str, last: str, shares: QueueShares) -> bool:
        """Bring the cache up to date and return True; False if few queues, between these two, have waiting jobs."""
        if shares.is_fair is not self._shares.is_fair:
            self.forget()
        self._shares = shares
        self.put_back(())  # what a claim has looked at and left
        if not (self._is_kept(work) or self._read(work, first, last)):
            self.forget()
            return False
        if ids := work.waiting_ids():
            self._lower(work, ids)
        return True

    def lowest(self, work: Transaction, forced: int, limit: int, controls: Controls) -> list[Candidate]:
        """Return the first waiting records of all queues that are not paused, in order."""
        turns, trial = self._turns[forced], self._shares.trial()
        found: list[Candidate] = []
        paused: list[tuple[str, First]] = []
        readers: dict[str, Iterator[Candidate]] = {}
        ahead: dict[str, Candidate | None] = {}
        while len(found) < limit and (turn := turns.pop(trial)) is not None:
            queue, first = turn
            if controls.pause_of(queue) is not None:
                paused.append(turn)
                continue
            if queue not in readers:
                readers[queue] = _waiting_from(work, queue, forced, (first.rank, first.id), limit)
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
        following, last = work.execute(event_rows.NEXT_AND_LAST, (self._event,)).fetchone()
        new = (last or 0) - self._event
        has_missed_some = new < 0 or (new > 0 and following != self._event + 1)
        if queues <= FEW_QUEUES or has_missed_some or new > max(FEW_EVENTS, queues):
            return False
        if new:
            began = work.execute(_BEGAN_TO_WAIT, (self._event,)).fetchall()
            self._lower(work, " ".join(named for one in began for named in one if isinstance(named, str)).split())
            self._event = last
        return True

    def _read(self, work: Transaction, first: str, last: str) -> bool:
        """Read the places of all queues and return True; False if these are few."""
        queue, queues = first, 1
        while queue != last and queues <= FEW_QUEUES:
            [queue] = work.execute(_NEXT_QUEUE, (queue,)).fetchone()
            queues += 1
        if queues <= FEW_QUEUES:
            return False
        self._turns, self.offered = (Turns(), Turns()), []
        for found in firsts(work.execute):
            if found.forced in (0, 1):
                first_job = First(found.priority, found.rank, found.id)
                self._turns[found.forced].put(found.queue, first_job, self._shares)
        self._seen = (work.execute, number(work.execute))
        [_, self._event] = work.execute(event_rows.ENDS).fetchone()
        return True

    def _lower(self, work: Transaction, ids: Iterable[str]) -> None:
        """Make queues begin with these records if they wait before the others."""
        for queue, forced, rank, id, priority in work.execute(_PLACES, (json.dumps(list(ids)),)):
            if forced in (0, 1):
                self._begin_early(forced, queue, First(priority, rank, id))

    def _begin_early(self, forced: int, queue: str, first: First) -> None:
        known = self._turns[forced].first(queue)
        if known is None or first[1:] < known[1:]:
            self._turns[forced].put(queue, first, self._shares)


def first_of(candidate: Candidate) -> First:
    """Return the candidate as the first job of its queue."""
    return First(candidate[5], candidate[0], candidate[1])


def _waiting_from(work: Transaction, queue: str, forced: int, place: Place, most: int) -> Iterator[Candidate]:
    """Return the waiting records of a queue from a place on, a few at first: the next may be of another queue."""
    size = 2
    while True:
        rows = work.execute(_FROM, (queue, forced, *place, size)).fetchall()
        if len(rows) < size:
            yield from rows
            return
        yield from rows[:-1]
        place = rows[-1][:2]  # read again with the following ones
        size = min(4 * size, most + 1)
