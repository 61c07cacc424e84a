"""Follows the events after a cursor, page by page, until it is stopped, and calls bound callbacks."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from taskqueue.errors import CursorTooOld, InvalidOption
from taskqueue.insight.records import LARGEST_PAGE, LAST_LOOK, read
from taskqueue.model.events import ANY, FLUSHED, checked
from taskqueue.model.ids import JobId
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.options import named, validators
from taskqueue.model.query import And, Compare, Operator, Query, parse
from taskqueue.model.record import Record
from taskqueue.model.schedules import Duration
from taskqueue.model.shown_text import as_code
from taskqueue.scheduler.connection import Connections
from taskqueue.scheduler.end_listener import SECOND_LOOK
from taskqueue.scheduler.event import Event, EventSnapshot
from taskqueue.scheduler.poll import Poll, Ready, Steps, items, patiently
from taskqueue.scheduler.wait import timed_out, timeout_of
from taskqueue.store import OLDEST
from taskqueue.store import Event as StoredEvent
from taskqueue.store.bell import NEWS

if TYPE_CHECKING:  # few waits are of running jobs
    from taskqueue.scheduler.job_wait import JobWait

log = logging.getLogger(__name__)

PAGE = 200
"""The events that are read at once."""

LOOK_AGAIN_AFTER = 60.0
"""Seconds after which a wait reads the jobs themselves, as a pruned job leaves no event."""

LATE = 5.0
"""Seconds for which a wait expects the event of an ended job.

On MongoDB another process may record the event a moment after the end; if that process dies, a node records it.
"""

LOOK_BACK = timedelta(seconds=1)
"""How long before the end of a job the search for its event starts."""

FEW = 100
"""For at most this many jobs, a wait checks whether their ends were already recorded."""

_CURSOR = r"[0-9]+(\.[0-9]+)?"

AnyEvent = TypeVar("AnyEvent", bound=EventSnapshot)
Callback: TypeAlias = Callable[[AnyEvent], object]


@dataclass(frozen=True)
class Page(Generic[AnyEvent]):
    """Some matching events, and the cursor after all events that were read for them."""

    events: Sequence[AnyEvent]
    cursor: str


@dataclass(eq=False)
class Binding(Generic[AnyEvent]):
    """A callback that is bound to events of a name."""

    name: str
    callback: Callback[AnyEvent]
    begins_at: str | None
    """The cursor after which it starts; None until the next ``place``, as ``bind`` may not read the store."""


@dataclass(frozen=True)
class Start(Generic[AnyEvent]):
    """The cursors after which a ``listen`` starts: for its own callback, and for the bound ones."""

    own: str
    bound: str
    to_call: Callable[[AnyEvent], list[Callback[AnyEvent]]]
    """Returns the bound callbacks to call with an event."""

    def is_own(self, event: AnyEvent) -> bool:
        """Return whether the event is for its own callback."""
        return self.own == self.bound or _place(event.cursor) > _place(self.own)


class EventStream(Generic[AnyEvent]):
    """The bound callbacks and active followers of one scheduler; ``make`` makes its events."""

    def __init__(self, make: Callable[[StoredEvent, Record | None], AnyEvent], connections: Connections) -> None:
        self._make = make
        self._connections = connections
        self.bound: list[Binding[AnyEvent]] = []
        """The bound callbacks."""
        self._heard: str | None = None
        """The cursor up to which waits have called the bound callbacks; None if nothing is bound."""
        self._stops: set[int] = set()
        self._lock = threading.Lock()

    def bind(self, name: str, callback: Callback[AnyEvent]) -> Callable[[], None]:
        """Bind the callback to events of this name after the next ``place``; return a function that unbinds it."""
        if not callable(callback):
            raise InvalidOption(f"on({as_code(name)}, {as_code(callback)}): pass a function that takes an event")
        binding = Binding(checked(name), callback, None)
        self.bound.append(binding)

        def unbind() -> None:
            with self._lock:
                if binding in self.bound:
                    self.bound.remove(binding)
                if not self.bound:
                    self._heard = None

        return unbind

    @property
    def is_placed(self) -> bool:
        """Return whether every callback has its start."""
        return all(binding.begins_at is not None for binding in self.bound)

    def place(self) -> None:
        """Start the callbacks that were bound since the last call."""
        if self.is_placed:
            return
        cursor = self.cursor()
        with self._lock:
            for binding in self.bound:
                binding.begins_at = binding.begins_at or cursor
            self._heard = self._heard or cursor

    def bound_to(self, event: AnyEvent) -> list[Callback[AnyEvent]]:
        """Return the callbacks that are bound to the event."""
        return [binding.callback for binding in self.bound if binding.name in (ANY, event.name)]

    def to_call(self, event: AnyEvent) -> list[Callback[AnyEvent]]:
        """Return the callbacks to call with the event: those bound before it, unless they were already called."""
        place = _place(event.cursor)
        with self._lock:
            if self._heard is None or place <= _place(self._heard):
                return []
            self._heard = event.cursor
            return [
                binding.callback
                for binding in self.bound
                if binding.begins_at is not None
                and _place(binding.begins_at) < place
                and binding.name in (ANY, event.name)
            ]

    def cursor(self) -> str:
        """Return the cursor after all events."""
        return self._connections.store.events(None)[1]

    def page(self, cursor: str, limit: int) -> Page[AnyEvent]:
        """Return up to ``limit`` events after the cursor, with one read of the store."""
        check(cursor)
        named("limit", limit, validators.whole(1, LARGEST_PAGE))
        stored, next_cursor = self._connections.store.events(cursor, limit)
        return Page([self._make(event, None) for event in stored], next_cursor)

    def start(self, query: Mapping[str, Any] | None, cursor: str | None) -> Start[AnyEvent]:
        """Return where a ``listen`` with these arguments starts."""
        if cursor is not None:
            return Start(cursor, cursor, self.bound_to)
        now = self.cursor()
        return Start(now, now, self.bound_to) if query is not None else Start(now, self._begin(), self.to_call)

    def ends(
        self,
        ids: Collection[JobId],
        timeout: float | None,
        known: Mapping[JobId, Record],
        job_wait: JobWait | None = None,
    ) -> Generator[Record, None, None]:
        """Do what ``wait.ends`` does, and call bound callbacks with all events since they were bound.

        ``known`` has the jobs whose end the caller knows; ``job_wait`` watches the wait of a running job.
        """
        steps: Generator[Record | Page[AnyEvent], None, None] = items(
            self.ends_and_pages(ids, timeout, known, job_wait)
        )
        for step in steps:
            if isinstance(step, Record):
                yield step
            else:
                for event in step.events:
                    for callback in self.to_call(event):
                        callback(event)

    def ends_and_pages(
        self,
        ids: Collection[JobId],
        timeout: float | None,
        known: Mapping[JobId, Record],
        job_wait: JobWait | None = None,
    ) -> Steps[Record | Page[AnyEvent]]:
        """Return steps that yield the records of ended jobs, and the pages of all events since the last wait."""
        steps = self._ends_and_pages(ids, timeout, known)
        return steps if job_wait is None else job_wait.watched(steps, ids)

    def _ends_and_pages(
        self, ids: Collection[JobId], timeout: float | None, known: Mapping[JobId, Record]
    ) -> Steps[Record | Page[AnyEvent]]:
        store, listener = self._connections.store, self._connections.listener
        deadline = None if timeout is None else time.monotonic() + timeout
        cursor = yield from patiently(self._begin, deadline, listener.refuse_if_closed)
        ended, heard = dict(known), set[JobId]()
        open_ids = dict.fromkeys(ids)  # least recently read first
        look_at = list(open_ids)
        while open_ids:
            is_last = deadline is not None and time.monotonic() >= deadline
            look_at = list(open_ids) if is_last else look_at
            read_records = partial(read, store, look_at, time.monotonic() + LAST_LOOK if is_last else deadline)
            records = yield from patiently(read_records, deadline, listener.refuse_if_closed)
            for record in records:
                open_ids.pop(record.id, None)
                if record.status.is_final:
                    ended[record.id] = record
                    yield record
                else:
                    open_ids[record.id] = None
            if not open_ids or is_last:
                break
            ends_at = time.monotonic() + LOOK_AGAIN_AFTER if deadline is None else deadline
            look_at, cursor = yield from self._followed(cursor, heard, ends_at, ends_at, open_ids)
            look_at = look_at or list(open_ids)
        _, cursor = yield from self._followed(cursor, heard, time.monotonic(), None, ())
        yield from self._late_ends(cursor, ended, heard, deadline)
        if open_ids and timeout is not None:
            raise timed_out(store, [id for id in ids if id in open_ids], timeout, len(look_at) - len(records))

    def _begin(self) -> str:
        """Return the cursor up to which bound callbacks were called; the newest if later events were removed."""
        self.place()
        heard = self._heard
        if heard is None:
            return self.cursor()
        try:
            self._connections.store.events(heard, 1)
        except CursorTooOld:
            return self._begin_again(heard)
        return heard

    def _begin_again(self, lost: str) -> str:
        """Start bound callbacks now, because events after the cursor were removed; return the new cursor."""
        log.warning("bound callbacks missed the events after cursor %s, which were removed before they were read", lost)
        cursor = self.cursor()
        with self._lock:
            for binding in self.bound:
                binding.begins_at = cursor
            self._heard = cursor if self.bound else None
        return cursor

    def _followed(
        self, cursor: str, heard: set[JobId], deadline: float, ends_at: float | None, until: Collection[JobId]
    ) -> Generator[Poll | Page[AnyEvent], Ready, tuple[list[JobId], str]]:
        """Do what ``_follow`` does without a query, and start again if events were removed."""
        try:
            return (yield from self._follow(None, cursor, deadline, ends_at, until, heard))
        except CursorTooOld:
            refuse_if_closed = self._connections.listener.refuse_if_closed
            return [], (yield from patiently(partial(self._begin_again, cursor), deadline, refuse_if_closed))

    def _late_ends(
        self, cursor: str, ended: Mapping[JobId, Record], heard: set[JobId], deadline: float | None
    ) -> Steps[Page[AnyEvent]]:
        """Yield the pages with those ends of these jobs that are recorded a moment late."""
        now, refuse_if_closed = time.monotonic(), self._connections.listener.refuse_if_closed
        until = now + LATE if deadline is None else min(now + LATE, max(now, deadline) + LAST_LOOK)
        while self.bound and time.monotonic() < until:
            late_ids = yield from patiently(partial(self._unrecorded, ended, heard), until, refuse_if_closed)
            if not late_ids:
                return
            _, cursor = yield from self._followed(cursor, heard, until, until, late_ids)

    def _unrecorded(self, ended: Mapping[JobId, Record], heard: Collection[JobId]) -> list[JobId]:
        """Return the jobs that have just ended and whose ends are in no event yet."""
        store = self._connections.store
        since = store.now() - timedelta(seconds=LATE)
        ended_at = {
            record.id: record.ended_at
            for record in ended.values()
            if record.id not in heard and record.ended_at is not None and record.ended_at > since
        }
        if len(ended_at) > FEW:
            return list(ended_at)
        return [
            id
            for id, at in ended_at.items()
            if not any(event.ended for event in store.events_of(id, at - LOOK_BACK, PAGE))
        ]

    def stop(self) -> None:
        """End all active followers, in any thread."""
        with self._lock:
            for stop in self._stops:
                os.eventfd_write(stop, 1)

    def pages(
        self, query: Mapping[str, Any] | None, cursor: str | None, timeout: Duration | None
    ) -> Steps[Page[AnyEvent]]:
        """Return the steps that yield pages of matching events; without a cursor, of events after the first step.

        Wrong arguments are refused in this call.
        """
        parsed = None if query is None else parse(query)
        check(cursor)
        seconds = timeout_of("timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        ends_at = None if seconds == 0 else deadline  # 0 means all events there are, however long it takes to read them
        if cursor is None:
            return self._from_now(parsed, deadline, ends_at)
        return self._follow(parsed, cursor, deadline, ends_at)

    def _from_now(self, query: Query | None, deadline: float | None, ends_at: float | None) -> Steps[Page[AnyEvent]]:
        refuse_if_closed = self._connections.listener.refuse_if_closed
        cursor = yield from patiently(self.cursor, deadline, refuse_if_closed)
        return (yield from self._follow(query, cursor, deadline, ends_at))

    def _follow(
        self,
        query: Query | None,
        cursor: str,
        deadline: float | None,
        ends_at: float | None,
        until: Collection[JobId] = (),
        heard: set[JobId] | None = None,
    ) -> Generator[Poll | Page[AnyEvent], Ready, tuple[list[JobId], str]]:
        """Yield the pages; wait for more until the deadline, and read none that starts after ``ends_at``.

        Return the jobs of ``until`` whose end the last page contains, and the cursor after that page; no jobs if it
        stopped for another reason, such as a flush while ``until`` is given. All ended jobs are added to ``heard``.
        """
        store, refuse_if_closed = self._connections.store, self._connections.listener.refuse_if_closed
        with self._stop() as stop:
            bell = yield from patiently(partial(store.bell, NEWS), deadline, refuse_if_closed)
            longest = SECOND_LOOK
            with closing(bell):
                while True:
                    read = partial(store.events, cursor, PAGE)
                    stored, next_cursor = yield from patiently(read, deadline, refuse_if_closed)
                    if next_cursor != cursor:
                        cursor = next_cursor
                        match = partial(self._matching, stored, query)
                        yield Page((yield from patiently(match, deadline, refuse_if_closed)), cursor)
                        ended = [event.ended for event in stored if event.ended in until]
                        if heard is not None:
                            heard.update(event.ended for event in stored if event.ended is not None)
                        is_flushed = until and any(event.name == FLUSHED for event in stored)
                        if ended or is_flushed or (ends_at is not None and time.monotonic() >= ends_at):
                            return [id for id in dict.fromkeys(ended) if id is not None], cursor
                        seconds = 0.0
                    else:
                        pause, longest = min(bell.pause, longest), bell.pause
                        seconds = pause if deadline is None else min(pause, deadline - time.monotonic())
                        if seconds <= 0:
                            return [], cursor
                    ready = yield Poll((stop, bell.fileno()), seconds)
                    if stop in ready:
                        return [], cursor
                    if ready:
                        bell.clear()
                    else:
                        bell.renew()

    @contextmanager
    def _stop(self) -> Iterator[int]:
        """Return the descriptor that becomes readable when this follower must end."""
        stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with self._lock:
            self._stops.add(stop)
        try:
            yield stop
        finally:
            with self._lock:
                self._stops.discard(stop)
            os.close(stop)

    def _matching(self, stored: Sequence[StoredEvent], query: Query | None) -> list[AnyEvent]:
        """Return the events whose jobs match now; all events if there is no query."""
        if query is None:
            return [self._make(event, None) for event in stored]
        ids = tuple({str(event.job_id) for event in stored if event.job_id is not None})
        records: dict[JobId | None, Record] = {}
        if ids:
            matching = And((Compare("id", Operator.IN, ids), query))
            records.update((record.id, record) for record in self._connections.store.find(matching, limit=PAGE))
        return [self._make(event, records[event.job_id]) for event in stored if event.job_id in records]


def _place(cursor: str) -> tuple[int, int]:
    """Return a value that sorts as cursors do."""
    number, _, read = cursor.partition(".")
    return int(number), int(read or 0)


def check_callback(callback: object) -> None:
    """Refuse a callback of ``listen`` that cannot be called."""
    if callback is not None and not callable(callback):
        raise InvalidOption(f"listen({as_code(callback)}): pass a function that takes an event")


def check(cursor: object) -> None:
    """Refuse text that is not a cursor of any store."""
    if cursor is not None and not (isinstance(cursor, str) and (cursor == OLDEST or re.fullmatch(_CURSOR, cursor))):
        raise InvalidOption(
            f"cursor={as_code(cursor)}: pass a cursor of this store, {OLDEST!r}, or None for new events"
        )


def _one_by_one(pages: Generator[Page[AnyEvent], None, None]) -> Iterator[AnyEvent]:
    with closing(pages):
        for page in pages:
            yield from page.events


class Events:
    """The methods for listeners; ``Scheduler`` inherits them."""

    _listening: EventStream[Event]

    def events(
        self, query: Mapping[str, Any] | None = None, cursor: str | None = None, timeout: Duration | None = None
    ) -> Iterator[Event]:
        """Iterate over events from now on, or after ``cursor``, forever or until ``timeout`` has passed.

        With a query, only events of jobs that match it when they are read. Resuming from the last ``event.cursor``
        misses no event and may repeat one. The cursor ``"oldest"`` starts with the oldest kept event; events are kept
        for a day. Raises ``CursorTooOld``, ``InvalidQuery`` and, after an outage of a minute, ``StoreUnavailable``.
        """
        stream = self._listening
        pages = stream.pages(query, cursor, timeout)  # refuses wrong arguments before it reads the store
        return _one_by_one(items(pages if cursor is not None else stream.pages(query, stream.cursor(), timeout)))

    def read_events(self, cursor: str, limit: int = 1000) -> tuple[list[Event], str]:
        """Return up to ``limit`` events after the cursor, and the cursor after them, with one read and no wait.

        Raises ``CursorTooOld``.
        """
        page = self._listening.page(cursor, limit)
        return list(page.events), page.cursor

    def listen(
        self,
        callback: Callable[[Event], object] | None = None,
        query: Mapping[str, Any] | None = None,
        cursor: str | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Call ``callback``, and the callbacks bound with ``on``, for each of ``events``, in this call.

        Returns the cursor after the last event once the callback has returned True, the timeout has passed, or another
        thread has called ``stop_listening``. Exceptions of callbacks are raised here. Without ``cursor`` and ``query``,
        bound callbacks also get the events that no wait has called them with since ``on``.
        """
        check_callback(callback)
        check(cursor)
        start = self._listening.start(query, cursor)
        pages: Generator[Page[Event], None, None] = items(self._listening.pages(query, start.bound, timeout))
        reached = start.own
        with closing(pages):
            for page in pages:
                for event in page.events:
                    for bound in start.to_call(event):
                        bound(event)
                    if callback is not None and start.is_own(event) and callback(event) is True:
                        return event.cursor
                reached = page.cursor
        return reached

    def on(self, event: str, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Bind a callback to the events of a name, ``*`` for all; return a function that unbinds it.

        ``listen`` calls it, and so does every wait for jobs through this scheduler while it is bound: with all events
        since this call, not only events of these jobs, and with each event once, whichever wait comes first. A wait
        calls it with the ends of its jobs before it returns. Exceptions of the callback are raised there, and the
        event counts as heard. Raises ``InvalidOption`` for a name that does not exist.
        """
        unbind = self._listening.bind(event, callback)
        self._listening.place()
        return unbind

    def stop_listening(self) -> None:
        """End every ``listen`` and ``events`` of this scheduler that is in progress, in any thread."""
        self._listening.stop()

    def cursor(self) -> str:
        """Return the cursor of now: pass it to ``listen`` or ``events`` later to start here."""
        return self._listening.cursor()
