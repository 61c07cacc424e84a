"""Follows events from a cursor on, page by page, in the calling thread, until it is stopped."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeAlias

from taskqueue.errors import InvalidOption, WaitTimeout
from taskqueue.model.events import ANY, checked
from taskqueue.model.ids import JobId
from taskqueue.model.query import And, Compare, Operator, Query, parse
from taskqueue.model.record import Record
from taskqueue.model.schedules import Duration
from taskqueue.scheduler import wait
from taskqueue.scheduler.connection import Connections
from taskqueue.scheduler.event import Event
from taskqueue.scheduler.process import Jobs
from taskqueue.scheduler.wait import timeout_of
from taskqueue.store import NEWS, OLDEST, Bell
from taskqueue.store import Event as Told

PAGE = 200
"""Events read at once."""

LOOK_AGAIN_AFTER = 60.0
"""Seconds after which a wait reads the jobs themselves: removed ones leave no event."""

_CURSOR = re.compile(r"\d+(\.\d+)?", re.ASCII)

Callback: TypeAlias = Callable[[Event], object]
Pages: TypeAlias = Generator[tuple[Sequence[Event], str], None, None]


class EventStream:
    """The bound callbacks and active followers of one scheduler."""

    def __init__(self, scheduler: Jobs, connections: Connections) -> None:
        self._scheduler = scheduler
        self._connections = connections
        self._bound: list[tuple[str, Callback]] = []
        self._stops: set[int] = set()
        self._lock = threading.Lock()

    def bind(self, name: str, callback: Callback) -> Callable[[], None]:
        """Bind the callback to events of this name, and return a function that unbinds it."""
        if not callable(callback):
            raise InvalidOption(f"on({name!r}, {callback!r}): pass a function that takes an event")
        binding = (checked(name), callback)
        self._bound.append(binding)

        def unbind() -> None:
            if binding in self._bound:
                self._bound.remove(binding)

        return unbind

    def cursor(self) -> str:
        """Return the cursor behind all events."""
        return self._connections.store.events(None)[1]

    def events(self, query: Mapping[str, Any] | None, cursor: str | None, timeout: Duration | None) -> Iterator[Event]:
        """Return the events behind the cursor, one by one."""
        return _one_by_one(self._pages(query, cursor, timeout))

    def listen(
        self, callback: Callback | None, query: Mapping[str, Any] | None, cursor: str | None, timeout: Duration | None
    ) -> str:
        """Call the callback and those that are bound with each event, and return the cursor behind the last one."""
        _check(cursor)
        begun_at = self.cursor() if cursor is None else cursor
        with closing(self._pages(query, begun_at, timeout)) as pages:
            for page, behind in pages:
                for event in page:
                    self._call_bound(event)
                    if callback is not None and callback(event) is True:
                        return event.cursor
                begun_at = behind
        return begun_at

    @property
    def has_bound(self) -> bool:
        """Return whether callbacks are bound."""
        return bool(self._bound)

    def ends(self, ids: Collection[JobId], timeout: float | None) -> Generator[Record, None, None]:
        """Do as ``wait.ends``, and call bound callbacks with all events meanwhile."""
        store, listener = self._connections.store, self._connections.listener
        deadline = None if timeout is None else time.monotonic() + timeout
        cursor = self.cursor()
        open_ids = dict.fromkeys(ids)
        look_at = list(open_ids)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            is_over = left is not None and left <= 0
            wanted = list(open_ids) if is_over else look_at
            for record in listener.patiently(partial(wait.read_all, store, wanted), deadline):
                if record.status.is_final:
                    open_ids.pop(record.id, None)
                    yield record
            if not open_ids or is_over:
                break
            look_at, cursor = self._call_until_one_ends(open_ids, cursor, left)
        self._call_until_one_ends((), cursor, 0.0)
        if open_ids and timeout is not None:
            raise WaitTimeout(list(open_ids), timeout)

    def _call_until_one_ends(
        self, open_ids: Collection[JobId], cursor: str, seconds: float | None
    ) -> tuple[list[JobId], str]:
        """Call bound callbacks until some of these have ended; return those, all after a while."""
        with closing(self._pages(None, cursor, LOOK_AGAIN_AFTER if seconds is None else seconds)) as pages:
            for page, behind in pages:
                cursor = behind
                for event in page:
                    self._call_bound(event)
                final = {event.job_id: None for event in page if event.status is not None and event.status.is_final}
                ended = [id for id in final if id is not None and id in open_ids]
                if ended:
                    return ended, cursor
        return list(open_ids), cursor

    def stop(self) -> None:
        """End all active followers, in any thread."""
        with self._lock:
            for stop in self._stops:
                os.eventfd_write(stop, 1)

    def _call_bound(self, event: Event) -> None:
        for name, callback in tuple(self._bound):
            if name in (ANY, event.name):
                callback(event)

    def _pages(self, query: Mapping[str, Any] | None, cursor: str | None, timeout: Duration | None) -> Pages:
        """Return the pages of matching events with the cursor behind each; raise errors now."""
        matched = None if query is None else parse(query)
        _check(cursor)
        seconds = timeout_of("timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        ends_at = None if seconds == 0 else deadline  # 0: what there is, however long it takes to read it
        return self._follow(matched, self.cursor() if cursor is None else cursor, deadline, ends_at)

    def _follow(self, query: Query | None, cursor: str, deadline: float | None, ends_at: float | None) -> Pages:
        """Return the pages; wait for more until the deadline, and read none that begins behind ``ends_at``."""
        store, patiently = self._connections.store, self._connections.listener.patiently
        with self._stop() as stop, closing(patiently(partial(store.bell, NEWS), deadline)) as bell:
            while True:
                told, behind = patiently(partial(store.events, cursor, PAGE), deadline)
                if behind != cursor:
                    cursor = behind
                    yield patiently(partial(self._matching, told, query), deadline), cursor
                    if ends_at is not None and time.monotonic() >= ends_at:
                        return
                    seconds = 0.0
                else:
                    seconds = bell.pause if deadline is None else min(bell.pause, deadline - time.monotonic())
                    if seconds <= 0:
                        return
                if _should_stop(stop, bell, seconds):
                    return

    @contextmanager
    def _stop(self) -> Iterator[int]:
        """Return the descriptor that becomes readable when this follower is to end."""
        stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with self._lock:
            self._stops.add(stop)
        try:
            yield stop
        finally:
            with self._lock:
                self._stops.discard(stop)
            os.close(stop)

    def _matching(self, told: Sequence[Told], query: Query | None) -> list[Event]:
        """Return the events of jobs that match as they are now; without a query all events."""
        if query is None:
            return [Event(self._scheduler, one) for one in told]
        ids = tuple({str(one.job_id) for one in told if one.job_id is not None})
        found: dict[JobId | None, Record] = {}
        if ids:
            wanted = And((Compare("id", Operator.IN, ids), query))
            found.update((record.id, record) for record in self._connections.store.find(wanted, limit=PAGE))
        return [Event(self._scheduler, one, found[one.job_id]) for one in told if one.job_id in found]


def _check(cursor: object) -> None:
    """Refuse text that is no cursor of any store."""
    if cursor is not None and not (isinstance(cursor, str) and (cursor == OLDEST or _CURSOR.fullmatch(cursor))):
        raise InvalidOption(f"cursor={cursor!r}: pass a cursor of this store, {OLDEST!r}, or None for what comes now")


def _one_by_one(pages: Pages) -> Iterator[Event]:
    with closing(pages):
        for page, _ in pages:
            yield from page


def _should_stop(stop: int, bell: Bell, seconds: float) -> bool:
    """Wait for a ring, at most that long, and return whether it is time to stop."""
    rings = select.poll()
    rings.register(stop, select.POLLIN)
    rings.register(bell.fileno(), select.POLLIN)
    ready = dict(rings.poll(seconds * 1000))
    if bell.fileno() in ready and stop not in ready:
        bell.clear()
    elif not ready:
        bell.renew()
    return stop in ready
