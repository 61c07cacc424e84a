"""The runs that no worker has yet, and who gets them: first come, first served, and ahead of time if they are short."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from taskqueue.daemon.manager.outbox import ReportOutbox
from taskqueue.daemon.manager.worker_handle import QueuedRun, WorkerHandle
from taskqueue.daemon.node.leader_hooks import HOOKS
from taskqueue.daemon.protocol.messages import Key

AHEAD_FOR = 0.01
"""Seconds of work that a worker is given ahead."""

MOST_AHEAD = 64
"""Runs that a worker is given ahead at most."""

BYTES_AHEAD = 128 * 1024
"""Runs of more bytes than this are not given ahead: they would fill the channel."""

_UNKNOWN = float("inf")
_WEIGHT = 0.1


class Pace:
    """How long the runs of each job take, learnt from the last ones: a long one counts at once, short ones slowly."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def learn(self, job: str, seconds: float) -> None:
        """Take in how long a run of ``job`` took."""
        known = self._seconds.get(job, seconds)
        self._seconds[job] = seconds if seconds > known else known + (seconds - known) * _WEIGHT

    def of(self, job: str) -> float:
        """Return how long a run of ``job`` may take."""
        return self._seconds.get(job, _UNKNOWN)


class RunQueue:
    """Runs in the order in which they came; those with ``force_spawn`` apart."""

    def __init__(self, reports: ReportOutbox) -> None:
        self._reports = reports
        self._is_open = True
        self.general: deque[QueuedRun] = deque()
        self.forced: deque[QueuedRun] = deque()

    def open(self) -> None:
        """Take in runs from now on."""
        self._is_open = True

    def close(self) -> None:
        """Hand back all runs, those too that come from now on."""
        self._is_open = False
        self.put_back(())

    def add(self, order: QueuedRun) -> None:
        """Put a run at the end; a hook of the lead is no claim, and goes on where runs do not."""
        if not self._is_open and order.run.job not in HOOKS:
            self._reports.hand_back([order])
            return
        (self.forced if order.run.force_spawn else self.general).append(order)

    def put_back(self, orders: Iterable[QueuedRun]) -> None:
        """Put runs where they were, before all that came later."""
        ordered = sorted((*self.general, *self.forced, *orders), key=_place)
        self.general.clear()
        self.forced.clear()
        if not self._is_open:
            self._reports.hand_back(ordered)
            return
        for order in ordered:
            self.add(order)

    def hand_back(self, key: Key) -> bool:
        """Hand back one run, and tell whether it was here."""
        for orders in (self.general, self.forced):
            for order in orders:
                if order.key == key:
                    orders.remove(order)
                    self._reports.hand_back([order])
                    return True
        return False

    def hand_back_latest(self, count: int) -> None:
        """Hand back up to ``count`` runs, the latest first."""
        self._reports.hand_back([self.general.pop() for _ in range(min(count, len(self.general)))])

    def hand_back_forced(self) -> None:
        """Hand back all runs whose own worker is still starting, but for the hooks of the lead, which are no claims."""
        back = [order for order in self.forced if order.run.job not in HOOKS]
        self.forced = deque(order for order in self.forced if order.run.job in HOOKS)
        self._reports.hand_back(back)

    def deal(self, members: Sequence[WorkerHandle], pace: Pace, now: float) -> None:
        """Give each idle member a run, and what is left ahead to those whose runs are short.

        Who was busy last gets the first run, so that surplus members become quiet and can be retired.
        """
        takers = [member for member in members if not member.bound and member.takes_more]
        for member in sorted((taker for taker in takers if taker.is_idle), key=_idle_since, reverse=True):
            if not self.general:
                return
            member.give(self.general.popleft())
        if self.general:
            self._deal_ahead(takers, pace, now)

    def _deal_ahead(self, takers: Sequence[WorkerHandle], pace: Pace, now: float) -> None:
        """Share out what is left; a member with much ahead gets nothing, so that runs come in batches."""
        hungry = [member for member in takers if len(member.ahead) <= MOST_AHEAD // 2]
        for place, member in enumerate(hungry):
            share = -(-len(self.general) // (len(hungry) - place))
            self._fill(member, share, pace, now)

    def _fill(self, member: WorkerHandle, share: int, pace: Pace, now: float) -> None:
        seconds = sum(pace.of(order.run.job) for _, order in member.ahead)
        if member.current is not None:
            seconds += max(pace.of(member.current.order.run.job), now - member.current.began_at)
        size = sum(len(order.payload) for _, order in member.ahead)
        for _ in range(share):
            if not self.general or len(member.ahead) >= MOST_AHEAD or member.is_spent:
                return
            order = self.general[0]
            seconds += pace.of(order.run.job)
            size += len(order.payload)
            if seconds > AHEAD_FOR or size > BYTES_AHEAD:
                return
            member.give(self.general.popleft())


def _place(order: QueuedRun) -> int:
    return order.place


def _idle_since(member: WorkerHandle) -> float:
    return member.idle_since
