"""The context of a run in a worker: tells the manager its start, progress, positions and checkpoints."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from taskqueue.daemon.protocol.codec import encode
from taskqueue.daemon.protocol.messages import POSITION_EVERY, PROGRESS_EVERY, Logged, Progressed, Started, WaitsFor
from taskqueue.daemon.protocol.shared_memory import Entry, ProgressEntry, WorkerPage
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.daemon.worker.interrupts import Shield, StopRequests
from taskqueue.execution.job_context import JobContext
from taskqueue.execution.log_capture import attach, capture_structlog, keep_begun_output
from taskqueue.execution.run import Run
from taskqueue.execution.sentry import scope_of
from taskqueue.model.log_lines import kept_text, written

if TYPE_CHECKING:  # asyncio is imported for async jobs only
    from taskqueue.daemon.worker.watched_loop import WatchedLoop

LATE_START = 0.01
"""Seconds of loading after which the start of a run is reported again with its real time."""


class Sender(Protocol):
    """Sends the messages about a run."""

    def send(self, *payloads: bytes) -> None:
        """Send them together."""

    def flush_blocking(self) -> None:
        """Wait until they have left this process."""


class WorkerContext(JobContext):
    """The context of one run in a worker, from just before the class is loaded until the hooks have ended."""

    # Few runs change these: an object with 30 attributes of its own takes Python 3.11 twice as long to make.
    _progress_sent_at = float("-inf")
    _unsent_progress: ProgressEntry | None = None
    _position_sent_at = float("-inf")
    _unsent_position: str | None = None
    _lines = 0
    _lines_since = 0
    _is_over = False
    _was_checked = False

    def __init__(
        self,
        run: Run,
        number: int,
        channel: Sender,
        page: WorkerPage,
        start_entry: Entry,
        interrupts: StopRequests,
        scheduler: Callable[[], Any],
        event_loop: Callable[[], WatchedLoop],
    ) -> None:
        """Report that the run has started, by an entry in the start log, or that its condition is checked."""
        super().__init__(run, interrupts)
        self._number = number
        self._channel = channel
        self._page = page
        self._shield = interrupts.shield
        self._open_scheduler = scheduler
        self.fields.report_awaited = self._report_awaited
        self._open_event_loop = event_loop
        self._lock = threading.RLock()  # a job may have threads, and signal handlers that log
        self._pid = self.fields.pid = os.getpid()
        self.started_at = boottime()
        """When the run, or else the check of its condition, began: seconds since the boot of the host."""
        if run.condition is None:
            start_entry.write((run.id, run.claims), self.started_at)
        else:
            self._report(checking=True)

    def report_check(self) -> None:
        """Report the check of a condition that only the class declares; its time limit starts here."""
        if self.run.condition is None:
            self._report(checking=True)
        self._was_checked = True

    def report_start(self) -> bool:
        """Report the start again if it comes late or a rate counts it; the first report is the entry in the start log.

        The class is loaded by now. A rate that counted from before could be over when the job itself begins.
        """
        if self._was_checked or self.run.has_rate or boottime() - self.started_at > LATE_START:
            self._report(checking=False)
        attach()
        if "sentry_sdk" in sys.modules:
            self.sentry = scope_of(self)
        if "structlog" in sys.modules:
            capture_structlog()
        return True

    def _report(self, *, checking: bool) -> None:
        if os.getpid() != self._pid:  # a child that the module or the condition has forked: it must not send messages
            os._exit(0)
        self.started_at = boottime()
        run = self.run
        loaded = not checking
        started = Started(run.id, run.claims, pid=self._pid, at=self.started_at, checking=checking, loaded=loaded)
        self._channel.send(encode(started))
        self._channel.flush_blocking()

    @property
    def scheduler(self) -> Any:
        """Return a ``Scheduler`` on the job's store; the worker opens one when it is first used."""
        return self._open_scheduler()

    def uninterrupted(self) -> Shield:
        """Return the context in which interrupts wait until it is left."""
        return self._shield

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._open_event_loop().run_job(f"{self.run.job} {self.run.id}", coroutine, self._interrupts)

    def _keep_progress(self, percent: float, message: str) -> None:
        entry = ProgressEntry(number=self._number, progress=percent, message=message, at=boottime())
        with self._shield, self._lock:
            self._check_caller()
            self._page.write_progress(entry)
            self._unsent_progress = entry
            if time.monotonic() - self._progress_sent_at >= PROGRESS_EVERY:
                self._channel.send(*self._progress_messages())

    def _keep_position(self, text: str) -> None:
        """Store the positions of the loops, so that they survive the death of the worker when this returns."""
        with self._shield, self._lock:
            self._check_caller()
            is_kept = self._page.write_position(self._number, text)
            self._unsent_position = text
            if is_kept and time.monotonic() - self._position_sent_at < POSITION_EVERY:
                return
            self._channel.send(*self._position_messages())
            if not is_kept:  # until the message has been sent, the previous position is better than none
                self._channel.flush_blocking()
                self._page.write_position(self._number, "")

    def _keep_state(self, text: str) -> None:
        progressed = Progressed(self.run.id, self.run.claims, boottime(), state=text)
        with self._shield, self._lock:
            self._check_caller()
            self._channel.send(encode(progressed))
            self._channel.flush_blocking()

    def _keep_line(self, at: float, level: str, logger: str, text: str) -> None:
        """Write the line to the page, which survives this process; a child of the job stores none."""
        if os.getpid() != self._pid:
            return
        with self._shield, self._lock:
            if not self._is_over:
                if not self._lines:
                    self._lines_since = self._page.logged
                self._lines += 1
                self._page.write_line(written(self._number, self._lines, at, level, logger, text))

    def _report_awaited(self, awaited: Sequence[str]) -> None:
        """Tell the node which jobs the run waits for."""
        message = encode(WaitsFor(id=self.run.id, claims=self.run.claims, awaited=list(awaited)))
        with self._shield, self._lock:
            if not self._is_over:
                self._channel.send(message)

    def close(self) -> list[bytes]:
        """End the context and return unsent messages; later calls from threads of the job raise."""
        if self.fields.unfinished is not None:
            keep_begun_output(self.fields)
        self.fields.keep = self.fields.report_awaited = None
        with self._lock:
            self._is_over = True
            if self.sentry is not None:
                self.sentry.leave()
            if self._unsent_progress is None and self._unsent_position is None and not self._lines:
                return []
            return self._progress_messages() + self._position_messages() + self._line_messages()

    def _line_messages(self) -> list[bytes]:
        if not self._lines:
            return []
        lines = kept_text(self.run.attempt, self._page.read_lines(self._number, self._lines_since))
        return [encode(Logged(id=self.run.id, claims=self.run.claims, lines=lines))]

    def _progress_messages(self) -> list[bytes]:
        entry, self._unsent_progress = self._unsent_progress, None
        if entry is None:
            return []
        self._progress_sent_at = time.monotonic()
        return [encode(Progressed(self.run.id, self.run.claims, entry.at, entry.progress, entry.message))]

    def _position_messages(self) -> list[bytes]:
        position, self._unsent_position = self._unsent_position, None
        if position is None:
            return []
        self._position_sent_at = time.monotonic()
        return [encode(Progressed(self.run.id, self.run.claims, boottime(), position=position))]

    def _check_caller(self) -> None:
        """Raise ``RuntimeError`` if the run has ended, or in a process that the job has forked."""
        if self._is_over:
            raise RuntimeError(f"job {self.run.id} has ended: progress and checkpoints belong inside start()")
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this is a child of job {self.run.id}: report progress and checkpoints in the job itself"
            )
