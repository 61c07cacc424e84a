"""Records events, clears completed entries of effects and counts figures in a background thread, off the caller's path.

The change of an event is already written, and ``repair`` clears forgotten entries; only figures die with the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

import pymongo
from bson import ObjectId
from pymongo.errors import PyMongoError

from taskqueue.errors import StoreContended
from taskqueue.model.history import Parts, Step, ended_part, gather
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import Event
from taskqueue.store.mongodb.connection import Connection, resets_after_fork
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.driver_errors import DEADLINE, unavailable
from taskqueue.store.mongodb.events import EventLog
from taskqueue.store.mongodb.history import History
from taskqueue.store.mongodb.indexes import BY_ID

log = logging.getLogger(__name__)

BUFFER_LIMIT = 20_000
"""Maximum number of buffered events; a caller that submits more waits, and so goes at the server's pace."""

START_DELAY = 0.02
"""Seconds by which the event of a started job may be delayed: if the job soon ends, one write records both."""

PAUSE = 0.005
"""Seconds between two writes of events without listeners: each delays other writes."""

FIGURES_DELAY = 2.0
"""Seconds for which figures are collected, so that many outcomes share one write."""

FLUSH_TIMEOUT = 2 * DEADLINE
"""Seconds for which a flush waits: one batch may be in progress, and another queued."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """The completed entry of the effects of one change of a record."""

    id: JobId
    token: ObjectId
    freed_at: datetime | None = None
    """When limits were freed, so that a bell rings."""


@dataclass(kw_only=True)
class Batch:
    """Events, completed entries of effects and figures that one round writes."""

    events: list[Event] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    figures: Parts = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def is_empty(self) -> bool:
        """Return whether the batch is empty."""
        return not (self.events or self.done or self.figures)


class EventWriter:
    """Runs one thread per process while there are events to write; later ones share the next write.

    Events of started jobs are delayed a little and share a later write; events of ended jobs are written at once.
    """

    def __init__(
        self, connection: Connection, event_log: EventLog, *, start_delay: float = START_DELAY, pause: float = PAUSE
    ) -> None:
        self._connection = connection
        self._event_log = event_log
        self._history = History(connection)
        self._start_delay = start_delay
        self._pause = pause
        self._inherited: list[object] = []
        self._begin()
        resets_after_fork(self)

    def submit(self, events: Sequence[Event], done: Sequence[Done] = ()) -> None:
        """Record the events in this order, then clear the completed entries of effects."""
        with self._lock:
            self._buffered.events += events
            self._buffered.done += done
            self._woken.set()
            if done or any(map(_is_awaited, events)):
                self._hurried.set()
            too_many = len(self._buffered.events) > BUFFER_LIMIT
        self._ensure_thread()
        if too_many:
            self.flush()

    def count(self, at: datetime, settled: Sequence[Record] = (), ended: Sequence[Record] = ()) -> None:
        """Count records after the end of a claim, and records that ended otherwise, within ``FIGURES_DELAY``."""
        part = ended_part(settled, ended)
        if not part:
            return
        with self._lock:
            if not self._figures:
                self._figures_due = time.monotonic() + FIGURES_DELAY
            gather(self._figures, Step.MINUTE.begin(milliseconds(at)), part)
        self._ensure_thread()

    def flush(self) -> None:
        """Wait until everything submitted is recorded, or could not be; give up on a stuck server."""
        self._hurry()
        if self._await(FLUSH_TIMEOUT):
            log.warning("events were not recorded within %g s; they will be recorded later", FLUSH_TIMEOUT)
        self._raise_fault()

    def close(self) -> None:
        """Flush, without waiting for an absent server any longer than a call does, and end the thread."""
        self._hurry()
        unwritten = self._await(DEADLINE)
        self._thread.shutdown(wait=not unwritten)
        self._raise_fault()

    def reset_after_fork(self) -> None:
        """Leave the parent's buffer to the parent; here its lock may stay locked forever."""
        self._inherited += [self._thread, self._lock]
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taskqueue-events")
        self._buffered = Batch()
        self._figures: Parts = {}
        self._figures_due = 0.0
        self._under_way: Batch | None = None
        self._is_working = False
        self._woken = threading.Event()
        self._hurried = threading.Event()
        self._written_at = 0.0
        self._fault: BaseException | None = None

    def _hurry(self) -> None:
        """Write the buffer without delay."""
        with self._lock:
            self._take_figures()
            if not self._buffered.is_empty:
                self._woken.set()
                self._hurried.set()
        self._ensure_thread()

    def _take_figures(self) -> None:
        """Put the gathered figures into the next batch; the caller holds the lock."""
        for at, part in self._figures.items():
            gather(self._buffered.figures, at, part)
        self._figures = {}

    @property
    def _is_done(self) -> bool:
        """Return whether nothing is left to write."""
        return self._buffered.is_empty and not self._figures

    def _ensure_thread(self) -> None:
        """Start the thread unless it is running; an interrupted caller leaves that to the next one."""
        begins = False
        try:
            with self._lock:
                begins = not self._is_working and not self._is_done
                self._is_working = self._is_working or begins
            if begins:
                self._start()
        except BaseException:
            if begins:
                with self._lock:
                    self._is_working = False
            raise

    def _start(self) -> None:
        try:
            self._thread.submit(self._work)
        except RuntimeError:  # the program is exiting: no thread can be started any more
            with self._lock:
                self._take_figures()
            self._work()

    def _raise_fault(self) -> None:
        """Raise the unexpected error of the thread."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _await(self, seconds: float) -> list[Batch]:
        """Wait up to that long for the submitted batches, and return the unfinished ones."""
        with self._lock:
            batches = [batch for batch in (self._under_way, self._buffered) if batch is not None and not batch.is_empty]
        deadline = time.monotonic() + seconds
        return [batch for batch in batches if not batch.is_over.wait(max(0.0, deadline - time.monotonic()))]

    def _work(self) -> None:
        """Write batch after batch until the buffer is empty."""
        while batch := self._next():
            try:
                self._write(batch)
            except BaseException as error:
                self._fault = error
            finally:
                self._written_at = time.monotonic()
                batch.is_over.set()

    def _next(self) -> Batch | None:
        """Return the buffered batch, or mark the thread as idle."""
        self._rest()
        with self._lock:
            if self._is_done:
                self._under_way, self._is_working = None, False
                return None
            is_running = all(event.status is Status.PROCESSING for event in self._buffered.events)
        self._hurried.wait(
            self._start_delay if is_running else max(0.0, self._written_at + self._pause - time.monotonic())
        )
        with self._lock:
            self._hurried.clear()
            if time.monotonic() >= self._figures_due:
                self._take_figures()
            self._under_way, self._buffered = self._buffered, Batch()
            return self._under_way

    def _rest(self) -> None:
        """Wait until the figures are due if there is nothing else to write."""
        with self._lock:
            seconds = self._figures_due - time.monotonic() if self._buffered.is_empty and self._figures else 0.0
            if seconds > 0:
                self._under_way = None
                self._woken.clear()
        if seconds > 0:
            self._woken.wait(seconds)

    def _write(self, batch: Batch) -> None:
        try:
            with pymongo.timeout(DEADLINE):
                if batch.events:
                    self._event_log.record(batch.events)
                if batch.done:
                    self._forget(batch.done)
        except StoreContended as error:
            log.warning("%d events could not be recorded: %s", len(batch.events), error)
        except PyMongoError as error:
            reason = unavailable(self._connection.address.shown, error)
            log.warning("%d events could not be recorded, or were postponed: %s", len(batch.events), reason)
        try:
            with pymongo.timeout(DEADLINE):
                self._history.add(batch.figures)
        except PyMongoError as error:
            log.warning("figures of the history are lost: %s", unavailable(self._connection.address.shown, error))

    def _forget(self, done: Sequence[Done]) -> None:
        """Clear the completed entries of effects, and ring; if that is lost, they are completed once more."""
        for freed_at in {entry.freed_at for entry in done}:
            entries = [entry for entry in done if entry.freed_at == freed_at]
            change: Document = {"$pull": {"after": {"token": {"$in": list({entry.token for entry in entries})}}}}
            if freed_at is not None:
                change["$set"] = {"freed": freed_at}
            ids = [entry.id for entry in entries]
            self._connection.collections.latest.update_many({"_id": {"$in": ids}}, change, hint=BY_ID)


def _is_awaited(event: Event) -> bool:
    """Return whether a listener may wait for the event: the end of a job."""
    return event.status is not None and event.status.is_final
