"""The run context in the calling process: writes progress and checkpoints straight to the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any

from taskqueue.execution.job_context import JobContext
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.failure import is_last_attempt
from taskqueue.model.record import Record
from taskqueue.store import Note

PROGRESS_EVERY = 0.5
"""Seconds between two writes of progress, or of the positions of loops."""


class NoInterrupts:
    """Ends no run."""

    stop_reason: str | None = None
    stopping = False

    def interruptible(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing."""
        return nullcontext()


class InlineContext(JobContext):
    """The context of one run; ``record`` has its last progress and state, for the outcome to be based on."""

    def __init__(
        self, record: Record, scheduler: Any, now: Callable[[], datetime], write: Callable[[JobId, Note], None]
    ) -> None:
        super().__init__(
            id=record.id,
            claims=record.claims,
            attempt=record.attempt,
            path=record.job,
            course=record.course,
            position=record.cursor,
            stopping=lambda: False,
        )
        self.record = record
        self.is_last_attempt = is_last_attempt(record, now())
        self.previous_error = record.error and replace(record.error, traceback="")
        self.scheduler = scheduler
        self._now = now
        self._write = write
        self._written_at = -PROGRESS_EVERY
        self._placed_at = -PROGRESS_EVERY

    def _keep_progress(self, percent: float, message: str) -> None:
        """Write it if the last write is long enough ago; the outcome brings the last one."""
        at = self._now()
        self.record = replace(self.record, progress=percent, progress_message=message, progress_at=at)
        if time.monotonic() - self._written_at < PROGRESS_EVERY:
            return
        self._written_at = time.monotonic()
        self._write(self.id, Note(progress=percent, progress_message=message, progress_at=at))

    def _keep_state(self, text: str) -> None:
        self.record = replace(self.record, state=text)
        self._write(self.id, Note(state=text))

    def _keep_position(self, text: str) -> None:
        """Write it if the last write is long enough ago; the outcome brings the last one."""
        self.record = replace(self.record, cursor=text)
        if time.monotonic() - self._placed_at >= PROGRESS_EVERY:
            self._placed_at = time.monotonic()
            self._write(self.id, Note(cursor=text))
