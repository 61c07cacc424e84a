"""What nobody waits for: events are told, and what was carried out is forgotten, by a thread behind the calls.

Only what anybody may do again comes here: what an event tells of is in already, and what was not forgotten is mended.
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

from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.store import Event
from taskqueue.store.mongodb.connection import Connection, begins_anew
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.driver_errors import DEADLINE, unavailable
from taskqueue.store.mongodb.events import EventLog
from taskqueue.store.mongodb.indexes import BY_ID

log = logging.getLogger(__name__)

MOST_AHEAD = 20_000
"""Events that may wait to be told; who brings more waits, and so is no faster than the server."""

LINGER = 0.02
"""Seconds for which it may stay untold that jobs run: what they end with soon is told in the same write."""

PAUSE = 0.005
"""Seconds between two writes of events that nobody waits for: each holds up other writes."""

PATIENCE = 2 * DEADLINE
"""Seconds for which anybody waits for what was handed over: a batch may be under way, and another one behind it."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """What followed from one change of a record and has been carried out."""

    id: JobId
    token: ObjectId
    freed_at: datetime | None = None
    """When places under limits became free, for which a bell rings."""


@dataclass(kw_only=True)
class Batch:
    """What is told and forgotten together."""

    events: list[Event] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to do."""
        return not self.events and not self.done


class EventWriter:
    """A thread for each process, begun when there is something to tell; what comes while it is at it goes together.

    That a job runs is told a little later, together with what comes next; that it has ended, at once.
    """

    def __init__(self, connection: Connection, news: EventLog, *, linger: float = LINGER, pause: float = PAUSE) -> None:
        self._connection = connection
        self._news = news
        self._linger = linger
        self._pause = pause
        self._inherited: list[object] = []
        self._begin()
        begins_anew(self)

    def hand(self, events: Sequence[Event], done: Sequence[Done] = ()) -> None:
        """Have the events told in this order, and what was done forgotten thereafter."""
        with self._lock:
            self._gathered.events += events
            self._gathered.done += done
            if done or any(map(_is_awaited, events)):
                self._pressed.set()
            too_many = len(self._gathered.events) > MOST_AHEAD
        self._see_to_it()
        if too_many:
            self.finish()

    def finish(self) -> None:
        """Wait until all that was handed over before is told, or could not be told; bear a server that is stuck."""
        self._press()
        if self._await(PATIENCE):
            log.warning("what happened was not told within %g s, and is told later", PATIENCE)
        self._raise_fault()

    def close(self) -> None:
        """Finish, but wait for an absent server no longer than a call does, and end the thread."""
        self._press()
        left = self._await(DEADLINE)
        self._thread.shutdown(wait=not left)
        self._raise_fault()

    def begin_anew(self) -> None:
        """Leave to the parent what is its own to tell; what it had locked stays locked here."""
        self._inherited += [self._thread, self._lock]
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taskqueue-telling")
        self._gathered = Batch()
        self._under_way: Batch | None = None
        self._is_at_it = False
        self._pressed = threading.Event()
        self._told_at = 0.0
        self._fault: BaseException | None = None

    def _press(self) -> None:
        """Have what has gathered told without delay."""
        with self._lock:
            if not self._gathered.is_empty:
                self._pressed.set()
        self._see_to_it()

    def _see_to_it(self) -> None:
        """Have the thread begin, unless it is at it; whoever is interrupted here leaves that to the next one."""
        begins = False
        try:
            with self._lock:
                begins = not self._is_at_it and not self._gathered.is_empty
                self._is_at_it = self._is_at_it or begins
            if begins:
                self._start()
        except BaseException:
            if begins:
                with self._lock:
                    self._is_at_it = False
            raise

    def _start(self) -> None:
        try:
            self._thread.submit(self._work)
        except RuntimeError:  # the program ends: no thread begins any more
            self._work()

    def _raise_fault(self) -> None:
        """Raise what the thread met and did not expect."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _await(self, seconds: float) -> list[Batch]:
        """Wait for what was handed over, so long at most, and return what is not over."""
        with self._lock:
            batches = [one for one in (self._under_way, self._gathered) if one is not None and not one.is_empty]
        patience = time.monotonic() + seconds
        return [one for one in batches if not one.is_over.wait(max(0.0, patience - time.monotonic()))]

    def _work(self) -> None:
        """Carry out batch after batch until nothing has gathered."""
        while batch := self._next():
            try:
                self._carry_out(batch.events, batch.done)
            except BaseException as error:
                self._fault = error
            finally:
                self._told_at = time.monotonic()
                batch.is_over.set()

    def _next(self) -> Batch | None:
        """Return what has gathered, or note that nobody is at it any more."""
        with self._lock:
            if self._gathered.is_empty:
                self._under_way, self._is_at_it = None, False
                return None
            is_running = all(event.status is Status.PROCESSING for event in self._gathered.events)
        self._pressed.wait(self._linger if is_running else max(0.0, self._told_at + self._pause - time.monotonic()))
        with self._lock:
            self._pressed.clear()
            self._under_way, self._gathered = self._gathered, Batch()
            return self._under_way

    def _carry_out(self, events: Sequence[Event], done: Sequence[Done]) -> None:
        try:
            with pymongo.timeout(DEADLINE):
                if events:
                    self._news.tell(events)
                if done:
                    self._forget(done)
        except PyMongoError as error:
            reason = unavailable(self._connection.address.shown, error)
            log.warning("%d events could not be told, or are left for later: %s", len(events), reason)

    def _forget(self, done: Sequence[Done]) -> None:
        """Remove what was carried out from the records, and ring; if that is lost, it is carried out once more."""
        for freed_at in {one.freed_at for one in done}:
            together = [one for one in done if one.freed_at == freed_at]
            change: Document = {"$pull": {"after": {"token": {"$in": list({one.token for one in together})}}}}
            if freed_at is not None:
                change["$set"] = {"freed": freed_at}
            ids = [one.id for one in together]
            self._connection.collections.latest.update_many({"_id": {"$in": ids}}, change, hint=BY_ID)


def _is_awaited(event: Event) -> bool:
    """Tell whether somebody may wait for what is told: the end of a job."""
    return event.status is not None and event.status.is_final
