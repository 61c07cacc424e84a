"""Reports progress, positions and log lines of running jobs to the node, from messages and from the worker pages.

A worker sends at most one message per interval and always writes the latest values to its page, which a timer reads.
It reports the log lines of a run itself when the run ends; the page has them while the run continues, or if the worker
dies.
"""

from __future__ import annotations

import time
from functools import partial

from taskqueue.daemon.manager.runs import CurrentRun, ReportQueue
from taskqueue.daemon.manager.worker_handle import RunSlot
from taskqueue.daemon.protocol.messages import POSITION_EVERY, PROGRESS_EVERY, Logged, Progressed
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.daemon.runtime.loop import Loop, Timer
from taskqueue.model.log_lines import kept_text

LOOKS_EVERY = 2.0
"""Seconds between two reads of the pages of busy workers."""


class LogMonitor:
    """The log lines of all runs of one manager."""

    def __init__(self, loop: Loop, reports: ReportQueue) -> None:
        self._loop = loop
        self._reports = reports
        self._watched: set[RunSlot] = set()
        self._timer: Timer | None = None

    def watch(self, slot: RunSlot) -> None:
        """Read the page of the worker from time to time while it has a run."""
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
            self._reports.add(Logged(*current.queued.key, kept_text(current.queued.run.attempt, lines)))

    def _look(self) -> None:
        self._timer = None
        watched, self._watched = self._watched, set()
        for slot in watched:
            if slot.current is not None:
                self.read(slot, slot.current)
                self.watch(slot)


BEHIND_WORKER = 0.05
"""Seconds by which a page is read later than its worker sends a message, so that both do not report the same."""


class ProgressMonitor:
    """The progress of all runs of one manager."""

    def __init__(self, loop: Loop, reports: ReportQueue) -> None:
        self._loop = loop
        self._reports = reports

    def on_progressed(self, slot: RunSlot, progressed: Progressed, payload: bytes) -> None:
        """Forward a worker's message, and read its page from now on as long as it changes."""
        current = slot.current
        if current is None:
            self._reports.forward(payload)
            return
        current.progress_at = time.monotonic()
        if _has_progress_alone(progressed) and current.progress_at < current.page_reported_at + PROGRESS_EVERY:
            current.held_progress = payload  # its page was read while the worker was delayed
            return
        self._reports.forward(payload)
        if progressed.progress is not None:
            current.note_progress(progressed.progress, progressed.message, progressed.at)
        if progressed.position is not None:
            current.position = progressed.position
        if progressed.progress is None and progressed.position is None:
            return
        current.reported_at = current.progress_at
        if not current.is_page_watched:
            current.is_page_watched = True
            self._read_later(slot, current)

    def report_held(self, current: CurrentRun) -> None:
        """Forward the message that was held back, if any, because the run ends."""
        if current.held_progress:
            self._reports.forward(current.held_progress)

    def read_page(self, slot: RunSlot, current: CurrentRun) -> bool:
        """Report progress and position that the node does not know yet; return whether there were any."""
        has_moved = self._read_position(slot, current)
        entry = slot.page.read_progress()
        if entry is None or entry.number != current.number or entry.at <= current.known_progress_at:
            return has_moved
        current.note_progress(entry.progress, entry.message, entry.at)
        current.progress_at = current.page_reported_at = time.monotonic()
        self._reports.add(Progressed(*current.queued.key, entry.at, entry.progress, entry.message))
        return True

    def _read_later(self, slot: RunSlot, current: CurrentRun) -> None:
        after = (PROGRESS_EVERY if current.position is None else POSITION_EVERY) + BEHIND_WORKER
        self._loop.at(time.monotonic() + after, partial(self._on_timer, slot, current))

    def _on_timer(self, slot: RunSlot, current: CurrentRun) -> None:
        if slot.current is not current:
            return
        has_moved = self._read_position(slot, current)
        if boottime() - current.known_progress_at < PROGRESS_EVERY - POSITION_EVERY / 2:  # reported a moment ago
            current.is_page_watched = True
        else:
            current.is_page_watched = self.read_page(slot, current) or has_moved
        if time.monotonic() - current.reported_at < PROGRESS_EVERY:  # the page may have values that were not sent
            current.is_page_watched = True
        if current.is_page_watched:
            self._read_later(slot, current)

    def _read_position(self, slot: RunSlot, current: CurrentRun) -> bool:
        position = slot.page.read_position(current.number)
        if position is None or position == current.position:
            return False
        current.position = position
        current.progress_at = time.monotonic()
        self._reports.add(Progressed(*current.queued.key, boottime(), position=position))
        return True


def _has_progress_alone(progressed: Progressed) -> bool:
    return progressed.progress is not None and progressed.position is None and progressed.state is None
