"""The beats at which open pages are notified of changes: the same for all, and rarer the longer their answers take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

PACE = 2.0
"""Seconds between two beats, or a multiple of these."""

SILENCE = 5.0
"""Seconds after which all pages are notified, changed or not: a pause, a drain and a silent node are no events."""

SHARE = 50
"""Seconds of which one at most, about, goes into answers: a busy machine has more to do than to show pages."""

LONGEST = 10.0
"""Seconds between two beats at most, however long answers take."""


class Beat(NamedTuple):
    """A beat by its number, and the number of the last one at which all pages were notified."""

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
        """Return the present beat; the first who asks when the time has come begins the next one."""
        with self._lock:
            now = self._now()
            if now >= self._next_at:
                self._begin(now)
            return self._beat

    def until_next(self) -> float:
        """Return the seconds until there may be another beat."""
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
