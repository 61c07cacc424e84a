"""Decides which queue has the next turn on a node: weighted fair queueing, by the priority of each first waiting job.

A run of priority p takes 1.25**p of its queue's virtual time, and the turn goes to the queue whose next run would end
first. A run starts at the end of the last one of its queue, or at the node's virtual time when its job started to wait.
So shares hold over any number of claims, each queue gets its turn, and a queue that was idle has saved nothing. An
unknown queue starts when the node first sees it, whatever its job says: a job may be added for a time in the past.

The virtual time of a node is the middle of its last run: a job of an idle queue starts before the next one of a backlog
of the same priority, and an endless row of idle queues cannot keep a backlog out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from datetime import datetime
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeVar

from taskqueue.model.record import RANK_A_PRIORITY, Record
from taskqueue.model.timestamps import milliseconds

STEP = 1.25
"""The factor between the shares of two priorities that are one step apart, about as with ``nice``."""

FEW = 1024
"""Maximum number of ends and times that are kept, whether they still matter or not."""

MOST_SEEN = 100_000
"""Maximum number of queues to remember that were seen but have given this node no run since."""

_COSTS = {priority: STEP**priority for priority in range(-20, 21)}
_LONGEST = max(_COSTS.values())

T = TypeVar("T")


class First(NamedTuple):
    """The first waiting job of a queue; its rank and id decide between equal turns."""

    priority: Any
    """The priority as it is kept: a damaged one counts as 0."""
    rank: Any
    id: Any

    @property
    def since(self) -> float:
        """Since when it has been waiting, in milliseconds since 1970."""
        steps = self.priority if isinstance(self.priority, int) else 0
        return float(self.rank) - steps * RANK_A_PRIORITY


def cost_of(priority: object) -> float:
    """Return the virtual time that a run of this priority takes."""
    return _COSTS.get(priority, 1.0) if isinstance(priority, int) else 1.0


def weight_of(priority: object) -> float:
    """Return the weight of a queue whose first waiting job has this priority; it is 1 for priority 0."""
    return 1 / cost_of(priority)


class QueueShares:
    """The virtual time of one node, and when the last run of each queue ends in it."""

    is_fair = True

    def __init__(self) -> None:
        self.now = 0.0
        self._ends: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        """The virtual time at which each queue that has no end was seen first."""
        self._earlier: QueueShares | None = None
        """The shares that this trial started with."""
        self._times: list[int] = []
        self._values: list[float] = [0.0]
        """The virtual times: the first one up to the first of the times, each other one after a time."""
        self._most_ends = FEW

    def trial(self) -> QueueShares:
        """Return a copy of these shares: charging the copy does not change the original, what it sees does."""
        if len(self._seen) > self._most_ends:
            self._forget_ends()
        trial = QueueShares()
        trial.now, trial._seen, trial._times, trial._values = self.now, self._seen, self._times, self._values
        trial._earlier = self._earlier or self
        if self._earlier is not None:
            trial._ends = dict(self._ends)
        return trial

    def end_of(self, queue: str, first: First) -> float:
        """Return when the next run of the queue would end."""
        return self._start_of(queue, first) + cost_of(first.priority)

    def charge(self, queue: str, first: First) -> None:
        """Count a run of the queue; a queue that could not run, as it was paused, has saved one run at most."""
        cost = cost_of(first.priority)
        end = max(self._start_of(queue, first) + cost, self.now)
        self._ends[queue] = end
        self.now = max(self.now, end - cost / 2)
        if self._earlier is None:
            self._seen.pop(queue, None)

    def count(self, records: Sequence[Record], now: datetime) -> Sequence[Record]:
        """Count the records that were claimed at this time, and return them in the order of their turns."""
        waiting: dict[str, list[Record]] = {}
        for record in records:
            waiting.setdefault(record.queue, []).append(record)
        counted = records
        if len(waiting) > 1:
            counted = list(in_turn(waiting, _first_of, self, lambda _: True))
            for record in counted:
                self.charge(record.queue, _first_of(record))
        elif records:
            self._charge_all(records)
        if counted:
            self._times.append(max([milliseconds(now), *self._times[-1:]]))
            self._values.append(self.now)
            if len(self._times) > FEW:
                self._forget_times()
            if len(self._ends) + len(self._seen) > self._most_ends:
                self._forget_ends()
        return counted

    def _charge_all(self, records: Sequence[Record]) -> None:
        """Count runs of one queue as ``charge`` does: each but the first starts where the one before it ends."""
        first, *others = records
        self.charge(first.queue, _first_of(first))
        end = self._ends[first.queue]
        for record in others:
            cost = _COSTS.get(record.priority, 1.0)
            end += cost
            self.now = max(self.now, end - cost / 2)
        self._ends[first.queue] = end

    @property
    def kept(self) -> int:
        """The number of ends, sights and times that are kept."""
        return len(self._ends) + len(self._seen) + len(self._times)

    def _start_of(self, queue: str, first: First) -> float:
        begun = self._earlier or self
        end = self._ends.get(queue, begun._ends.get(queue))  # noqa: SLF001 - a trial reads what it started with
        if end is None:
            end = self._seen.setdefault(queue, begun.now)
        return max(end, self._values[bisect_left(self._times, first.since)])

    def _forget_times(self) -> None:
        """Forget times that are so long ago that a run from then on would have ended; of many every second one."""
        oldest = max(0, bisect_left(self._values, self.now - _LONGEST) - 1)
        self._times, self._values = self._times[oldest:], self._values[oldest:]
        if len(self._times) > FEW // 2:
            self._times, self._values = self._times[::-2][::-1], [self._values[0], *self._values[:0:-2][::-1]]

    def _forget_ends(self) -> None:
        """Forget ends and sights of queues that are so long ago that a run from then on would have ended."""
        past = self.now - _LONGEST
        self._ends = {queue: end for queue, end in self._ends.items() if end > past}
        most = math.inf if len(self._seen) <= MOST_SEEN else self.now
        self._seen = {queue: seen for queue, seen in self._seen.items() if past < seen < most}
        self._most_ends = max(FEW, 2 * (len(self._ends) + len(self._seen)))


class _Strict(QueueShares):
    """No shares: runs take no virtual time, so rank and id alone decide between jobs of all queues."""

    is_fair = False

    def trial(self) -> QueueShares:
        return self

    def end_of(self, queue: str, first: First) -> float:  # noqa: ARG002
        return 0.0

    def charge(self, queue: str, first: First) -> None:
        """Count nothing."""

    def count(self, records: Sequence[Record], now: datetime) -> Sequence[Record]:  # noqa: ARG002
        return records


STRICT: QueueShares = _Strict()
"""The order of (rank, id) over all queues."""


class Turns:
    """Waiting queues in the order of their turns, each with its first job.

    An entry of the heap may come too soon, since its queue was charged later: it is put back once it is on top.
    """

    def __init__(self) -> None:
        self._firsts: dict[str, First] = {}
        self._heap: list[tuple[float, Any, Any, str]] = []

    @property
    def queues(self) -> KeysView[str]:
        """The queues that wait."""
        return self._firsts.keys()

    def put(self, queue: str, first: First, shares: QueueShares) -> None:
        """Set the queue's first waiting job, replacing an earlier one."""
        self._firsts[queue] = first
        heappush(self._heap, (shares.end_of(queue, first), first.rank, first.id, queue))

    def first(self, queue: str) -> First | None:
        """Return the first job of the queue; None if it does not wait."""
        return self._firsts.get(queue)

    def drop(self, queue: str) -> None:
        """Remove the queue."""
        self._firsts.pop(queue, None)

    def pop(self, shares: QueueShares) -> tuple[str, First] | None:
        """Remove the queue that has the next turn, and return it with its first job; None if no queue waits."""
        while self._heap:
            end, *place, queue = heappop(self._heap)
            first = self._firsts.get(queue)
            if first is None or [first.rank, first.id] != place:
                continue
            if shares.end_of(queue, first) > end:
                self.put(queue, first, shares)
                continue
            return queue, self._firsts.pop(queue)
        return None


def in_turn(
    waiting: Mapping[str, Iterable[T]], first_of: Callable[[T], First], shares: QueueShares, takes: Callable[[T], bool]
) -> Iterator[T]:
    """Return the candidates that ``takes`` accepts, in the order of the turns of their queues; charge none for others.

    The candidates of each queue are in the order of (rank, id), and read no further than they are needed.
    """
    turns, trial = Turns(), shares.trial()
    rest = {queue: iter(candidates) for queue, candidates in waiting.items()}
    heads: dict[str, T] = {}

    def put(queue: str) -> None:
        for candidate in rest[queue]:
            heads[queue] = candidate
            turns.put(queue, first_of(candidate), trial)
            return

    for queue in rest:
        put(queue)
    while (turn := turns.pop(trial)) is not None:
        queue, _ = turn
        candidate = heads[queue]
        if takes(candidate):
            trial.charge(queue, first_of(candidate))
            yield candidate
        put(queue)


def _first_of(record: Record) -> First:
    return First(record.priority, record.rank, record.id)
