"""The one listener of a client process: reads new events once for all waiting threads.

The first waiting thread reads for all, so that the library starts no thread in the application. Of an event loop, one
task reads for all tasks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskqueue.errors import CursorTooOld, StoreUnavailable
from taskqueue.model.events import FLUSHED
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.scheduler.poll import NUDGED, Poll, Ready, Result, finished, patiently
from taskqueue.store import Store
from taskqueue.store.bell import ENDS, Bell

if TYPE_CHECKING:  # few waits are of running jobs
    from taskqueue.scheduler.job_wait import JobWait

PAGE = 1000
"""Events read at once."""

FEW = 4
"""For at most this many jobs, reading them after each ring costs less than reading the events."""

SECOND_LOOK = 1.0
"""Seconds until the second look at a new bell: a change just before it was opened no longer rings it, and on MongoDB
a majority may have it only after the first look."""

LOOK_AGAIN_AFTER = 30.0
"""Seconds without events after which every job is read: pruned ones leave no event."""


@dataclass(eq=False)
class Watch:
    """The jobs that a thread or an event loop waits for: ``admit`` it, read them, ``take``, and ``dismiss`` it."""

    ids: set[JobId]
    fresh: set[JobId] = field(default_factory=set)
    """The jobs that may have ended since they were read."""
    noticed: dict[JobId, Record] = field(default_factory=dict)
    """The records of those that came in an end notice."""


class Listener:
    """Reads the events of a store and notifies each watch of jobs that may have ended."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """Notified for threads that wait while another one reads, if there are any."""
        self._watches: set[Watch] = set()
        self._bell: Bell | None = None
        self._cursor: str | None = None
        self._reader: int | None = None
        self._owes_a_read = False
        self._wake: int | None = None
        self._heard_at = self._opened_at = 0.0
        self._is_closed = False
        self.silence: object | None = None
        """The time since rings were last taken, as an object of its own; None while none are kept.

        A ring for a job that was added in this silence is still to be taken.
        """

    def admit(self, watch: Watch, silence: object | None = None) -> bool:
        """Listen for this watch too, from now on; return whether its jobs may have ended unheard.

        They cannot have ended if they were added in this ``silence``, which saves reading them: a read takes
        160 us after a pause, while a node waits for the processor.
        """
        with self._lock:
            if self._bell is None:
                self._bell = self._store.bell(ENDS)
                self._opened_at = time.monotonic()
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self.silence = object() if self._bell.keeps_rings else None
            if self._cursor is None and _watched(self._watches | {watch}) > FEW:
                _, self._cursor = self._store.events(None)
                self._notify(None)  # events of other watches may lie before
            if not self._watches:  # all are read now, or nothing of them is unheard
                self._heard_at = time.monotonic()
            self._watches.add(watch)
            return silence is None or silence is not self.silence or self._cursor is not None

    def change(self, watch: Watch, added: Collection[JobId], gone: Collection[JobId]) -> None:
        """Listen for other jobs than before with the only watch; the added ones are read next."""
        with self._lock:
            watch.ids = watch.ids.difference(gone).union(added)
            watch.fresh = watch.fresh.difference(gone).union(added)
        self.admit(watch)

    def dismiss(self, watch: Watch) -> None:
        """Stop listening for this watch."""
        with self._lock:
            self._watches.discard(watch)
            if _watched(self._watches) <= FEW:
                self._cursor = None
            if self._is_closed:
                self._release()

    def take(self, watch: Watch, deadline: float | None, job_wait: JobWait | None = None) -> set[JobId]:
        """Wait for events of ``watch``, reading for all others if no other thread does, or until ``job_wait`` looks.

        Each watch has read its jobs since it was admitted, so that a ring comes before a read.
        """
        me = threading.get_ident()
        try:
            while not watch.fresh:
                seconds_left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if job_wait is not None:
                    seconds_left = job_wait.seconds if seconds_left is None else min(seconds_left, job_wait.seconds)
                if seconds_left == 0:
                    break
                if not self._leads(watch, me, seconds_left):
                    continue
                if not self._owes_a_read:
                    self._heard(self._poll(seconds_left).wait())
                    if self._is_closed:
                        self.refuse_if_closed()
                if self._owes_a_read:
                    self.patiently(self._read, deadline)
        finally:
            with self._lock:  # another thread may read from now on
                if self._reader == me:
                    self._reader = None
                if len(self._watches) > 1:
                    self._changed.notify_all()
                fresh, watch.fresh = watch.fresh, set()
        return fresh

    def patiently(self, read: Callable[[], Result], deadline: float | None) -> Result:
        """Return the answer of the store, in this thread; survive an outage of up to a minute."""
        try:
            return read()
        except StoreUnavailable as error:
            return finished(patiently(read, deadline, self.refuse_if_closed, failed=error))

    def possible_ends(self, watch: Watch) -> Generator[Poll, Ready, set[JobId]]:
        """Return the jobs of the only watch that may have ended; none if it was woken for something else.

        For an event loop: its one task is the only reader.
        """
        self.refuse_if_closed()
        if not watch.fresh:
            if not self._owes_a_read:
                ready = yield self._poll(None)
                self.refuse_if_closed()
                if ready == NUDGED:
                    return set()
                self._heard(ready)
            if self._owes_a_read:
                yield from patiently(self._read, None, self.refuse_if_closed)
        with self._lock:
            fresh, watch.fresh = watch.fresh, set()
        return fresh

    def wake(self) -> None:
        """Make the reader look now, ahead of a ring."""
        with self._lock:
            if self._watches and self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def doubt(self) -> None:
        """Make it read every job now: some may have been removed, which is not an event."""
        self._notify(None)
        self.wake()

    @property
    def is_closed(self) -> bool:
        """Whether it has stopped listening."""
        return self._is_closed

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._is_closed = True
            self._release()
            self._changed.notify_all()
        self.wake()

    def _release(self) -> None:
        """Close bell and descriptors when no thread waits on them."""
        if self._bell is None or self._wake is None or self._watches:
            return
        self._bell.close()
        os.close(self._wake)
        self._bell = self._wake = self.silence = None

    def _leads(self, watch: Watch, me: int, left: float | None) -> bool:
        """Become the reader if there is none, or wait for events that another thread reads."""
        with self._lock:
            if self._is_closed:
                self.refuse_if_closed()
            if watch.fresh:  # notified between the check and the lock
                return False
            if self._reader in (None, me):  # an interruption may have left this thread the reader
                self._reader = me
                return True
            self._changed.wait(left)
            return False

    def refuse_if_closed(self) -> None:
        """Raise ``StoreUnavailable`` if the scheduler was closed."""
        if self._is_closed:
            raise StoreUnavailable(
                self._store.url, "the scheduler was closed while a call was waiting for jobs", "wait, then close"
            )

    def _read(self) -> None:
        """Read all events since the cursor and give each watch its share; without a cursor, read all jobs."""
        with self._lock:
            cursor = self._cursor
            if cursor is None:
                self._notify(None)
                return
        full = True
        while full:
            try:
                events, cursor = self._store.events(cursor, PAGE)
            except CursorTooOld:
                _, self._cursor = self._store.events(None)
                self._notify(None)
                return
            with self._lock:
                self._cursor = cursor if _watched(self._watches) > FEW else None
            if events:
                self._heard_at = time.monotonic()
            is_flushed = any(event.name == FLUSHED for event in events)
            self._notify(None if is_flushed else {event.ended for event in events if event.ended is not None})
            full = len(events) >= PAGE
        self._owes_a_read = False
        if time.monotonic() - self._heard_at > LOOK_AGAIN_AFTER:
            self._notify(None)

    def _notify(self, ended: set[JobId] | None) -> None:
        """Notify each watch of its ended jobs; None means that any may have ended, as after reading all events."""
        if ended is None:
            self._heard_at = time.monotonic()
            self._owes_a_read = False
        elif not ended:
            return
        with self._lock:
            for watch in self._watches:
                watch.fresh |= watch.ids if ended is None else watch.ids & ended
            if len(self._watches) > 1:
                self._changed.notify_all()

    def _poll(self, left: float | None) -> Poll:
        """Return the wait for a ring."""
        bell, wake = self._bell, self._wake
        assert bell is not None
        assert wake is not None
        is_new = time.monotonic() - self._opened_at < SECOND_LOOK
        pause = min(bell.pause, SECOND_LOOK) if is_new else bell.pause
        return Poll((bell.fileno(), wake), pause if left is None else min(pause, left))

    def _heard(self, ready: Ready) -> None:
        """Take the rings that have come."""
        bell, wake = self._bell, self._wake
        assert bell is not None
        assert wake is not None
        self._owes_a_read = True  # also if this thread is interrupted now, and another one reads on
        was_woken, has_rung = wake in ready, bell.fileno() in ready
        notices: Sequence[Record | None] = ()
        if was_woken:
            os.eventfd_read(wake)
        if has_rung:
            notices = bell.clear()
        elif not ready:
            bell.renew()
        if bell.keeps_rings:  # after the clear: a thread that saw the silence before already waits, or reads
            self.silence = object()
        if was_woken or not has_rung:
            return
        if not notices and self._cursor is None:
            self._owes_a_read = False  # it rang for an end whose notice came before
        if len(notices) == 1 and notices[0] is not None:  # after several, another ring may have found no room
            self._take_notice(notices[0], bell.pause)

    def _take_notice(self, ended: Record, pause: float) -> None:
        """Give each watch the record of an end notice; it still has to read the job, once in the pause of the bell."""
        with self._lock:
            if self._cursor is not None or time.monotonic() - self._heard_at > pause:
                return
            self._owes_a_read = False
            for watch in self._watches:
                if ended.id in watch.ids:
                    watch.noticed[ended.id] = ended
                    watch.fresh.add(ended.id)
            if len(self._watches) > 1:
                self._changed.notify_all()


def _watched(watches: Iterable[Watch]) -> int:
    """Return how many jobs are watched."""
    return sum([len(watch.ids) for watch in watches])
