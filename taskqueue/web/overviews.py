"""Keeps the last overview of the store, so that many pages share one look at it."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Any

from taskqueue.model import wording
from taskqueue.scheduler.overview_reader import Overview, OverviewReader
from taskqueue.scheduler.recent_figures import RecentFigures
from taskqueue.scheduler.scheduler import Scheduler

KEPT_FOR = 1.0
"""Seconds for which an overview is shown again."""


class Overviews:
    """The overviews of one dashboard."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._made: OverviewReader | None = None
        self._kept: tuple[float, Overview] | None = None
        self._numbers: tuple[float, dict[str, Any]] | None = None

    def read(self) -> Overview:
        """Return the state of the store, at most ``KEPT_FOR`` old; others wait for the one that reads."""
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > KEPT_FOR:
                self._kept = time.monotonic(), self._read()
            return self._kept[1]

    def numbers(self) -> dict[str, Any]:
        """Return how many jobs there are (``Scheduler.stats``), at most ``KEPT_FOR`` ago."""
        with self._lock:
            if self._numbers is None or time.monotonic() - self._numbers[0] > KEPT_FOR:
                self._numbers = time.monotonic(), self._scheduler.stats()
            return self._numbers[1]

    def forget(self) -> None:
        """Read the store anew at the next call: something was done to it."""
        with self._lock:
            self._kept = self._numbers = None

    def figures(self) -> RecentFigures:
        """Return the figures of recent minutes and hours."""
        return self._reader().figures

    def now(self) -> datetime:
        """Return the store's time; who acts does not wait for one who reads."""
        return self._reader().now()

    def _read(self) -> Overview:
        with wording.in_utc():
            return self._reader().read()

    def _reader(self) -> OverviewReader:
        with self._making:
            self._made = self._made or self._scheduler.overview_reader()
            return self._made
