"""Reports the log lines of runs that go on, or that died, from the shared worker pages.

A worker reports those of a run that ends itself; of a run that logs nothing nothing is read but one number.
"""

from __future__ import annotations

import time

from taskqueue.daemon.manager.queues import ReportQueue
from taskqueue.daemon.manager.run_slot import CurrentRun, RunSlot
from taskqueue.daemon.protocol.messages import Logged
from taskqueue.daemon.runtime.loop import Loop, Timer
from taskqueue.model.log_lines import kept_text

LOOKS_EVERY = 2.0
"""Seconds between two looks at the pages of busy workers."""


class LogMonitor:
    """The log lines of all runs of one manager."""

    def __init__(self, loop: Loop, reports: ReportQueue) -> None:
        self._loop = loop
        self._reports = reports
        self._watched: set[RunSlot] = set()
        self._timer: Timer | None = None

    def watch(self, slot: RunSlot) -> None:
        """Look at the page of the worker from time to time while it has a run."""
        self._watched.add(slot)
        if self._timer is None:
            self._timer = self._loop.at(time.monotonic() + LOOKS_EVERY, self._look)

    def read(self, slot: RunSlot, current: CurrentRun) -> None:
        """Report the lines of the run if there are new ones."""
        logged = slot.page.logged
        if logged == slot.lines_seen:
            return
        slot.lines_seen = logged
        lines = slot.page.read_lines(current.number)
        if lines:
            id, claims = current.queued.key
            self._reports.add(Logged(id=id, claims=claims, lines=kept_text(current.queued.run.attempt, lines)))

    def _look(self) -> None:
        self._timer = None
        watched, self._watched = self._watched, set()
        for slot in watched:
            if slot.current is not None:
                self.read(slot, slot.current)
                self.watch(slot)
