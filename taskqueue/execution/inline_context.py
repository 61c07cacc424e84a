"""The run context in the calling process: writes progress and checkpoints straight to the store."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol

from taskqueue.execution.job_context import JobContext
from taskqueue.execution.run import run_of
from taskqueue.model.ids import JobId
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.log_lines import MOST_LINES, kept_text, written
from taskqueue.model.record import Record
from taskqueue.store import Note

PROGRESS_EVERY = 0.5
"""Seconds between two writes of progress, or of the positions of loops."""


class CallerInterrupts(AbstractContextManager[None]):
    """Ends a run only by the caller's Ctrl-C: an uncaught ``KeyboardInterrupt`` of the job is for the caller."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self.stopping = False
        self.keyboard: KeyboardInterrupt | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.stop_reason, self.keyboard = "shutdown", error

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Do nothing: ``KeyboardInterrupt`` leaves an event loop by itself."""


class Runner(Protocol):
    """The surroundings of a run in the calling process."""

    def now(self) -> datetime:
        """Return the store's time."""

    def write(self, id: JobId, note: Note) -> None:
        """Write progress, state, position or start of the job to the store."""

    def begin(self, record: Record) -> bool:
        """Count the run as begun; return False if the claim was lost or has a cancel request."""


class InlineContext(JobContext):
    """The context of one run; ``record`` has its last progress and state, for the outcome to be based on."""

    def __init__(self, record: Record, scheduler: Any, interrupts: CallerInterrupts, runner: Runner) -> None:
        super().__init__(run_of(record, runner.now()), interrupts)
        self.fields.outer = CURRENT.get()
        self.record = record
        self._scheduler = scheduler
        self.started_at: datetime | None = None
        """When the run itself began; None if it has not."""
        self._runner = runner
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        self._logged = 0
        self._written_at = -PROGRESS_EVERY
        self._placed_at = -PROGRESS_EVERY

    @property
    def scheduler(self) -> Any:
        """Return the scheduler that runs the job."""
        return self._scheduler

    def report_check(self) -> None:
        """Report nothing: a check here has no time limit."""

    def report_start(self) -> bool:
        """Write the start to the store; return False if the claim was lost or must be canceled."""
        started_at = self._runner.now()
        self._runner.write(self.id, Note(started_at=started_at, loaded_at=started_at))
        if not self._runner.begin(self.record):
            return False
        self.started_at = started_at
        return True

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        from taskqueue.execution.event_loop import run_alone  # asyncio is imported for async jobs only

        return run_alone(coroutine, self._interrupts)

    def _keep_progress(self, percent: float, message: str) -> None:
        """Write it if the last write is long enough ago; the outcome brings the last one."""
        at = self._runner.now()
        self.record = replace(self.record, progress=percent, progress_message=message, progress_at=at)
        if time.monotonic() - self._written_at < PROGRESS_EVERY:
            return
        self._written_at = time.monotonic()
        self._runner.write(self.id, Note(progress=percent, progress_message=message, progress_at=at))

    def _keep_state(self, text: str) -> None:
        self.record = replace(self.record, state=text)
        self._runner.write(self.id, Note(state=text))

    def _keep_line(self, at: float, level: str, logger: str, text: str) -> None:
        self._logged += 1
        self._lines.append(written(0, self._logged, at, level, logger, text))

    def close(self) -> str | None:
        """Keep no more lines, and return those of the run as stores keep them; None without any."""
        self.fields.keep = None
        return kept_text(self.attempt, list(self._lines)) if self._lines else None

    def _keep_position(self, text: str) -> None:
        """Write it if the last write is long enough ago; the outcome brings the last one."""
        self.record = replace(self.record, cursor=text)
        if time.monotonic() - self._placed_at >= PROGRESS_EVERY:
            self._placed_at = time.monotonic()
            self._runner.write(self.id, Note(cursor=text))
