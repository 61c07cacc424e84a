"""The event loop of a worker, with a thread that reports the job which blocks it, with its stack."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

from taskqueue.execution.event_loop import EventLoop
from taskqueue.execution.job_context import Interrupts
from taskqueue.model.log_fields import CURRENT, RunFields

log = logging.getLogger(__name__)

BLOCKED_FOR = 1.0
"""Seconds after which a loop that runs no other task is reported as blocked."""


class WatchedLoop(EventLoop):
    """An event loop that a thread asks for an answer from time to time while a job runs."""

    def __init__(self, blocked_for: float = BLOCKED_FOR) -> None:
        super().__init__()
        self._blocked_for = blocked_for
        self._thread = threading.get_ident()
        self._job = ""
        self._fields: RunFields | None = None
        """The log fields of the current run."""
        self._is_busy = threading.Event()
        self._is_closed = threading.Event()
        self._asked_at = 0.0
        """When an answer was asked for that has not come; 0 if there is none."""
        self._watcher = self._started_watcher()

    def run_job(self, job: str, coroutine: Coroutine[Any, Any, Any], interrupts: Interrupts) -> Any:
        """Return the result of the coroutine as ``run`` does; ``job`` names it in reports."""
        self._asked_at = 0.0
        self._fields = CURRENT.get()
        self._job = job
        self._be_watched()
        try:
            return self.run(coroutine, interrupts)
        finally:
            self._job = ""

    def close(self) -> None:
        """Close the loop, and end the thread."""
        self._is_closed.set()
        self._is_busy.set()
        if self._watcher is not None:
            self._watcher.join()  # it must not ask a closed loop
        super().close()

    def _be_watched(self) -> None:
        """Wake the thread."""
        if self._watcher is None:
            self._watcher = self._started_watcher()
        if not self._is_busy.is_set():
            self._is_busy.set()

    def _started_watcher(self) -> threading.Thread | None:
        """Return the thread; None while the system has no room for it, since jobs can run without it."""
        watcher = threading.Thread(target=self._watch, name="event loop watch", daemon=True)
        try:
            watcher.start()
        except RuntimeError as error:
            log.debug("a job that blocks its event loop is not reported for now: %s", error)  # each run tries again
            return None
        return watcher

    def _watch(self) -> None:
        while not self._is_closed.wait(self._blocked_for / 4):
            if not self._job:
                self._is_busy.clear()
                if not self._job and not self._is_closed.is_set():  # nothing has come in this moment
                    self._is_busy.wait()
                if self._is_closed.is_set():
                    return
            asked_at = self._asked_at
            if not asked_at:
                self._asked_at = time.monotonic()
                with suppress(RuntimeError):  # the loop was closed
                    self._loop.call_soon_threadsafe(self._answer)
            elif time.monotonic() - asked_at > self._blocked_for:
                self._asked_at = float("inf")  # once is enough
                self._report(self._blocking())

    def _blocking(self) -> str:
        """Return the name of the job that blocks the loop."""
        return self._job

    def _answer(self) -> None:
        self._asked_at = 0.0

    def _report(self, job: str) -> None:
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the public way to another thread's stack
        if job and frame is not None:
            CURRENT.set(self._fields)  # this thread reports on one run after the other
            log.warning("a job has blocked its event loop for over %g s: %s\n%s", self._blocked_for, job, _stack(frame))


def _stack(frame: FrameType) -> str:
    """Return the frames after the frames of the event loop."""
    frames = traceback.extract_stack(frame)
    loop = max((n for n, summary in enumerate(frames) if summary.filename.endswith("asyncio/events.py")), default=-1)
    return "".join(traceback.format_list(frames[loop + 1 :])).rstrip()
