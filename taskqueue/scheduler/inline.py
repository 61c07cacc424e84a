"""What surrounds a job that runs in the calling process: progress and checkpoints go straight to the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from taskqueue.errors import CheckpointRefused, InvalidJob
from taskqueue.model.data import encode
from taskqueue.model.failing import is_last_attempt
from taskqueue.model.record import JobId, Record
from taskqueue.model.text import clean
from taskqueue.scheduler.each import Loops
from taskqueue.store import Note

PROGRESS_EVERY = 0.5
"""Seconds between two writes of progress (PTS-21), or of the places of loops."""

Item = TypeVar("Item")


class Unguarded:
    """Nothing ends the run from outside."""

    verdict: str | None = None
    stopping = False

    def interruptible(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing."""
        return nullcontext()


class InlineSession:
    """The session of one run; ``record`` has its last progress and state, for the outcome to be based on."""

    def __init__(
        self, record: Record, scheduler: Any, now: Callable[[], datetime], write: Callable[[JobId, Note], None]
    ) -> None:
        self.record = record
        self.id = record.id
        self.attempt = record.attempt
        self.is_last_attempt = is_last_attempt(record, now())
        self.previous_error = record.error and replace(record.error, traceback="")
        self.key = f"{record.id}:{record.claims}"
        self.course = record.course
        self.stopping = False
        self.log = logging.LoggerAdapter(
            logging.getLogger(record.job.partition(":")[0]), {"job_id": str(record.id), "attempt": record.attempt}
        )
        self.scheduler = scheduler
        self._now = now
        self._write = write
        self._written_at = -PROGRESS_EVERY
        self._placed_at = -PROGRESS_EVERY
        self._loops = Loops(record.cursor, self._keep_place, lambda: self.stopping)

    def each(
        self, items: Iterable[Item] | Callable[[Any], Iterable[tuple[Any, Item]]], name: str, turn: float | None
    ) -> Iterator[Item]:
        """Return the items for a loop, from where it was before."""
        return self._loops.each(items, name, turn)

    def progress(self, percent: float, message: str) -> None:
        """Keep the progress, and write it if the last write is long enough ago; the outcome brings the last one."""
        if isinstance(percent, bool) or not isinstance(percent, (int, float)) or not 0 <= percent <= 100:
            raise ValueError(f"progress({percent!r}): pass a number from 0 to 100")
        at, words = self._now(), clean(str(message))
        self.record = replace(self.record, progress=round(float(percent), 2), progress_message=words, progress_at=at)
        if time.monotonic() - self._written_at < PROGRESS_EVERY:
            return
        self._written_at = time.monotonic()
        self._write(self.id, Note(progress=self.record.progress, progress_message=words, progress_at=at))

    def checkpoint(self, state: Any) -> None:
        """Write the state at once."""
        try:
            kept = encode(state, "checkpoint")
        except InvalidJob as refused:
            raise CheckpointRefused(str(refused)) from None
        self.record = replace(self.record, state=kept)
        self._write(self.id, Note(state=kept))

    def _keep_place(self, text: str) -> None:
        """Keep where the loops are, and write it if the last write is long enough ago; the outcome brings the last."""
        self.record = replace(self.record, cursor=text)
        if time.monotonic() - self._placed_at >= PROGRESS_EVERY:
            self._placed_at = time.monotonic()
            self._write(self.id, Note(cursor=text))
