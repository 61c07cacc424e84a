"""Ends runs that exceed their ``timeout`` or ``stall_timeout``, and checks that take too long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from taskqueue.daemon.manager.progress_monitor import ProgressMonitor
from taskqueue.daemon.manager.runs import CurrentRun
from taskqueue.daemon.manager.worker_handle import RunSlot
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.execution.run import Run
from taskqueue.model.conditions import CHECK_LIMIT

log = logging.getLogger(__name__)


class TimeLimits:
    """The time limits of all runs of one manager."""

    def __init__(self, loop: Loop, progress: ProgressMonitor, end: Callable[[RunSlot], None]) -> None:
        """``end`` asks the present run of a slot to end, because it has exceeded a limit."""
        self._loop = loop
        self._progress = progress
        self._end = end

    def start(self, slot: RunSlot, current: CurrentRun, now: float) -> None:
        """Set the timers of a run that has begun."""
        seconds = current.queued.run.timeout
        if seconds is not None:
            current.timeout_timer = self._loop.at(now + seconds, partial(self._on_timeout, slot, current))
        current.progress_at = now
        self._set_stall_timer(slot, current)

    def start_check(self, slot: RunSlot, current: CurrentRun, now: float) -> None:
        """Set the timer of a check that has begun."""
        current.timeout_timer = self._loop.at(now + CHECK_LIMIT, partial(self._on_check_limit, slot, current))

    def _on_check_limit(self, slot: RunSlot, current: CurrentRun) -> None:
        run = current.queued.run
        log.warning("a condition of %s took longer than %g s to check", run.job, CHECK_LIMIT, extra=_fields(run))
        self._end(slot)

    def _on_timeout(self, slot: RunSlot, current: CurrentRun) -> None:
        run = current.queued.run
        log.warning("%s exceeded its timeout of %g s; stopping it", run.job, run.timeout, extra=_fields(run))
        self._end(slot)

    def _set_stall_timer(self, slot: RunSlot, current: CurrentRun) -> None:
        seconds = current.queued.run.stall_timeout
        if seconds is not None:
            callback = partial(self._on_stall_timer, slot, current)
            current.stall_timer = self._loop.at(current.progress_at + seconds, callback)

    def _on_stall_timer(self, slot: RunSlot, current: CurrentRun) -> None:
        """End a run without progress for too long, unless the worker page has newer progress."""
        run = current.queued.run
        assert run.stall_timeout is not None
        self._progress.read_page(slot, current)
        if time.monotonic() < current.progress_at + run.stall_timeout:
            self._set_stall_timer(slot, current)
        elif not slot.stop_reason:
            wait = run.stall_timeout
            log.warning("%s reported no progress for %g s; stopping it", run.job, wait, extra=_fields(run))
            current.has_stalled = True
            self._end(slot)


def _fields(run: Run) -> dict[str, object]:
    """Return the fields of a log line about the run, as the lines of the run itself have them."""
    return {"job_id": run.id, "job": run.job, "queue": run.queue, "attempt": run.attempt}
