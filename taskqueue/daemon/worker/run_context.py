"""What surrounds a job that runs in a worker: its progress and checkpoints go to the manager at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.messages import Progressed, Run, encode, failure_of
from taskqueue.daemon.protocol.worker_page import Mark, WorkerPage
from taskqueue.daemon.worker.interrupts import SignalInterrupts
from taskqueue.execution.job_context import JobContext
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import course_of

TELL_EVERY = 0.5
"""Seconds between two messages with progress; the slate has the latest at any time."""

CURSOR_EVERY = 0.25
"""Seconds between two messages with the places of loops."""


class WorkerContext(JobContext):
    """The context of one run in a worker, from just before ``start()`` until the hooks are over."""

    def __init__(
        self,
        run: Run,
        number: int,
        channel: Channel,
        slate: WorkerPage,
        guard: SignalInterrupts,
        scheduler: Callable[[], Any],
        is_last: bool,
    ) -> None:
        super().__init__(
            id=JobId(run.id),
            claims=run.claims,
            attempt=run.attempt,
            path=run.job,
            course=None if run.course is None else course_of(run.course),
            position=run.cursor,
            stopping=lambda: guard.stopping,
        )
        self.is_last_attempt = is_last
        self.previous_error = None if run.error is None else failure_of(run.error)
        self._run = run
        self._number = number
        self._channel = channel
        self._slate = slate
        self._guard = guard
        self._open_scheduler = scheduler
        self._lock = threading.Lock()  # a job may have threads
        self._told_at = float("-inf")
        self._untold: Mark | None = None
        self._placed_at = float("-inf")
        self._untold_place: str | None = None
        self._is_over = False
        self._pid = os.getpid()

    @property
    def scheduler(self) -> Any:
        """Return a ``Scheduler`` on the store that this job came from; the worker has one, opened when first used."""
        return self._open_scheduler()

    def _keep_progress(self, percent: float, message: str) -> None:
        mark = Mark(number=self._number, progress=percent, message=message, at=time.time())
        with self._guard.shield, self._lock:
            self._refuse_strangers()
            self._slate.mark(mark)
            self._untold = mark
            if time.monotonic() - self._told_at >= TELL_EVERY:
                self._channel.send(*self._news())

    def _keep_position(self, text: str) -> None:
        """Write down where the loops are: when this returns it survives the worker."""
        with self._guard.shield, self._lock:
            self._refuse_strangers()
            is_kept = self._slate.place(self._number, text)
            self._untold_place = text
            if is_kept and time.monotonic() - self._placed_at < CURSOR_EVERY:
                return
            self._channel.send(*self._places())
            if not is_kept:  # until it has arrived, the place before is better than none
                self._channel.drain()
                self._slate.place(self._number, "")

    def _keep_state(self, text: str) -> None:
        run = self._run
        noted = Progressed(id=run.id, claims=run.claims, progress=None, message="", state=text, at=time.time())
        with self._guard.shield, self._lock:
            self._refuse_strangers()
            self._channel.send(encode(noted))
            self._channel.drain()

    def close(self) -> list[bytes]:
        """End the session and return what has not been told yet; threads that the job left behind are refused."""
        with self._lock:
            self._is_over = True
            return self._news() + self._places()

    def _news(self) -> list[bytes]:
        mark, self._untold = self._untold, None
        if mark is None:
            return []
        self._told_at = time.monotonic()
        run = self._run
        noted = Progressed(
            id=run.id, claims=run.claims, progress=mark.progress, message=mark.message, state=None, at=mark.at
        )
        return [encode(noted)]

    def _places(self) -> list[bytes]:
        place, self._untold_place = self._untold_place, None
        if place is None:
            return []
        self._placed_at = time.monotonic()
        run = self._run
        noted = Progressed(
            id=run.id, claims=run.claims, progress=None, message="", state=None, at=time.time(), cursor=place
        )
        return [encode(noted)]

    def _refuse_strangers(self) -> None:
        """Refuse what would mix up the worker's messages, or come too late."""
        if self._is_over:
            raise RuntimeError(f"job {self._run.id} has ended: progress and checkpoints belong inside start()")
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"this is a child of job {self._run.id}: tell progress and checkpoints in the job itself"
            )
