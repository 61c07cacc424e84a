"""Keeps the last overview of the store and the last answer of each page, so that many viewers share one look at it.

Open pages are notified of changes at beats, which are the same for all pages, and rarer the longer answers take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from taskqueue.insight.limit_states import LimitUse
from taskqueue.insight.needs import Need
from taskqueue.insight.overview import Upcoming
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.insight.recent_figures import RecentFigures
from taskqueue.insight.work_report import Day, Period, WorkOf, WorkReport
from taskqueue.model import wording
from taskqueue.scheduler.operator_api import numbers_of
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.view import Answer

PACE = 2.0
"""Seconds between two beats, or a multiple of these."""

SILENCE = 5.0
"""Seconds after which all pages are notified, changed or not: a pause, a drain and a silent node are not events."""

SHARE = 50
"""Seconds of which one at most, about, goes into answers: a busy machine has more to do than to show pages."""

LONGEST = 10.0
"""Maximum number of seconds between two beats, however long answers take."""


class Beat(NamedTuple):
    """The number of a beat, and the number of the last beat at which all pages were notified."""

    number: int
    for_all: int


class Beats:
    """The beats of one dashboard; threads may share it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._beat = Beat(0, 0)
        self._next_at = 0.0
        self._for_all_at = 0.0
        self._answering = 0
        self._busy_since = 0.0
        self._busy = 0.0

    def present(self) -> Beat:
        """Return the current beat; the first call after it has ended starts the next one."""
        with self._lock:
            now = self._now()
            if now >= self._next_at:
                self._begin(now)
            return self._beat

    def until_next(self) -> float:
        """Return the seconds until the next possible beat."""
        return max(0.0, self._next_at - self._now())

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count the time of the block, which answers a notified page; the time of several at once counts once."""
        with self._lock:
            if not self._answering:
                self._busy_since = self._now()
            self._answering += 1
        try:
            yield
        finally:
            with self._lock:
                self._answering -= 1
                if not self._answering:
                    self._busy += self._now() - self._busy_since

    def _begin(self, now: float) -> None:
        if self._answering:
            self._busy += now - self._busy_since
            self._busy_since = now
        number, for_all = self._beat.number + 1, self._beat.for_all
        if now - self._for_all_at >= SILENCE:
            for_all, self._for_all_at = number, now
        self._beat = Beat(number, for_all)
        paces = int(min(self._busy * SHARE, LONGEST) // PACE)
        self._next_at = (now // PACE + max(1, paces)) * PACE
        self._busy = 0.0


MOST = 200


@dataclass(eq=False)
class SharedAnswer:
    """One answer, and the lock under which it is made."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    beat: int = 0
    answer: Answer | None = None


class SharedAnswers:
    """The answers of one dashboard, by what they depend on."""

    def __init__(self, beats: Beats) -> None:
        self._beats = beats
        self._lock = threading.Lock()
        self._kept: dict[Hashable, SharedAnswer] = {}

    def answer(self, key: Hashable, make: Callable[[], Answer]) -> Answer:
        """Return the answer of this beat, or make it; others who want the same answer wait for it."""
        beat = self._beats.present().number
        with self._lock:
            if len(self._kept) >= MOST:
                self._kept = {
                    key: shared for key, shared in self._kept.items() if shared.beat == beat or shared.lock.locked()
                }
            shared = self._kept.setdefault(key, SharedAnswer())
        with shared.lock:
            if shared.answer is None or shared.beat < beat:
                shared.answer = make()
                shared.beat = beat
            return shared.answer


KEPT_FOR = 1.0
"""How many seconds an overview is reused."""

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """What was last read of the store; threads that need it at once wait for the one that reads."""

    def __init__(self, read: Callable[[], Value]) -> None:
        self._read = read
        self._reading = threading.Lock()
        self._change = object()
        self._last: tuple[float, object, Value] | None = None
        """When the last read ended, after which change it began, and what it returned."""

    def fresh(self, seconds: float) -> Value | None:
        """Return what was read, unless the read ended longer ago than this or began before the last change.

        The time counts from the end because a read may take long on a busy machine.
        """
        if self._last is None:
            return None
        ended_at, change, value = self._last
        return value if change is self._change and time.monotonic() - ended_at <= seconds else None

    def read(self, seconds: float) -> Value:
        """Return what was read, or read it again if that is not ``fresh``."""
        with self._reading:
            value, change = self.fresh(seconds), self._change
            if value is None:
                value = self._read()
                self._last = time.monotonic(), change, value
            return value

    def forget(self) -> None:
        """Read it again at the next call, because something has changed the store."""
        self._change = object()  # a read that has begun returns what is forgotten already


class Overviews:
    """The overviews of one dashboard."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._making = threading.Lock()
        self._made: OverviewReader | None = None
        self._state = Kept(self._read)
        self._numbers = Kept(self.numbers_now)

    def read(self) -> Overview:
        """Return the state of the store, whose read ended at most ``KEPT_FOR`` ago."""
        return self._state.read(KEPT_FOR)

    def needs(self) -> list[Need]:
        """Return what needs action, at most ``SILENCE`` ago: every page shows the number."""
        return (self._state.fresh(SILENCE) or self.read()).needs

    def numbers(self) -> dict[str, Any]:
        """Return how many jobs there are (``Scheduler.stats``), counted at most ``KEPT_FOR`` ago."""
        return self._numbers.read(KEPT_FOR)

    def numbers_now(self, due_after: float = SILENCE) -> dict[str, Any]:
        """Return how many jobs there are now (``Scheduler.stats``).

        If the last overview is older than ``due_after``, so that the caller needs another one, both share one count.
        """
        if self._state.fresh(due_after) is not None:
            return self._scheduler.stats()
        state = self.read()
        waits = {queue.name: queue.oldest for queue in state.queues if queue.oldest is not None}
        since = {name: state.at - timedelta(seconds=oldest) for name, oldest in sorted(waits.items())}
        return {**numbers_of(state.tally), "waiting_since": since}

    def forget(self) -> None:
        """Read the store again at the next call, because something has changed it."""
        self._state.forget()
        self._numbers.forget()
        if self._made is not None:
            self._made.forget()

    def report(self, of: WorkOf, period: Period) -> WorkReport:
        """Return what is known about a class or queue."""
        state = self.read()
        with wording.in_utc():
            return self._reader().report(of, period, state)

    def day(self) -> Day:
        """Return the last hour against the same hour yesterday, and each hour since then."""
        return self._reader().day(self.read())

    def upcoming(self) -> Upcoming:
        """Return what is due in the next 24 hours."""
        return self._reader().upcoming(self.read().at)

    def limit_uses(self) -> Mapping[str, LimitUse]:
        """Return how far each limit is used, by its family."""
        return self._reader().limit_uses()

    def figures(self) -> RecentFigures:
        """Return the figures of recent minutes and hours."""
        return self._reader().figures

    def now(self) -> datetime:
        """Return the time of the store; an action does not wait for a reader."""
        return self._reader().now()

    def _read(self) -> Overview:
        with wording.in_utc():
            return self._reader().read()

    def _reader(self) -> OverviewReader:
        with self._making:
            self._made = self._made or self._scheduler.overview_reader()
            return self._made
