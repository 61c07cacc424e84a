"""Reads the events of the store once for all open pages and streams, and hands them on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from taskqueue.errors import CursorTooOld, StoreReplaced, StoreUnavailable
from taskqueue.model.events import FLUSHED
from taskqueue.model.ids import JobId
from taskqueue.model.record import Failure
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.event import Event
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.problems import Problem
from taskqueue.web.shared_threads import network_of, too_many_requests
from taskqueue.web.viewers import Viewer

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks at the store, each of which reads it twice at most: the events, and their jobs.

For open pages alone it is read less: whether there are events, and for pages of one job whose they are.
"""

PAGE = 500
"""Events of one read; after ``LAGS`` full reads (one for pages) it continues from now with a gap."""

LAGS = 20
MOST_LISTENERS = 200
MOST_OF_USER = 50
MOST_OF_ADDRESS = 100
"""Open pages and streams in all, of one user, and of the users at one address."""

WAITING = 2000
"""Events queued for one listener; further ones are dropped, and the listener gets a ``gap`` notice."""

REMEMBERED = 10_000
"""Jobs whose class is remembered."""

FAILURES = frozenset({"retried", "failed", "timeout"})

InThread: TypeAlias = Callable[..., Awaitable[Any]]
Look: TypeAlias = "Callable[[str], tuple[list[Notice], str]]"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """An event in its JSON shape, or that some are missing (``gap``), or that the store is away or back (``store``)."""

    name: str
    document: Mapping[str, Any]
    cursor: str


class OpenPage:
    """One open page: whether something has happened since the page last learned of changes."""

    def __init__(self, job: str | None) -> None:
        self.job = job
        """The job that it shows; None for a page that all events concern."""
        self.has_changed = False
        self._closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Return whether the server stops."""
        return self._closed.is_set()

    def put(self, notice: Notice) -> None:
        """Note what concerns the page; a gap and a flush concern every page."""
        concerns_all = self.job is None or notice.name == FLUSHED
        self.has_changed |= concerns_all or notice.document.get("id", self.job) == self.job

    async def wait(self, timeout: float) -> None:
        """Wait for this many seconds, or until the server stops."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closed.wait(), timeout)

    def close(self) -> None:
        """End the stream of this page."""
        self._closed.set()


class Listener:
    """One open stream of events."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Notice] = asyncio.Queue(WAITING)
        self._has_gap = False
        self.is_closed = False
        """Whether the server stops."""

    def put(self, notice: Notice) -> None:
        """Hand it on; leave it out where the listener is too slow."""
        if self._has_gap:
            notice = _gap(notice.cursor)
        try:
            self._queue.put_nowait(notice)
            self._has_gap = False
        except asyncio.QueueFull:
            self._has_gap = True

    async def next(self, timeout: float) -> Notice | None:
        """Return the next notice, None if there is none for this many seconds."""
        if not self._queue.empty():
            await asyncio.sleep(0)  # canceled here when its client leaves: wait_for swallows that on Python 3.11
            return self._queue.get_nowait()
        try:
            return await asyncio.wait_for(self._queue.get(), timeout)
        except asyncio.TimeoutError:
            return None

    def close(self) -> None:
        """End the stream of this listener."""
        self.is_closed = True
        with contextlib.suppress(asyncio.QueueFull):  # else it looks when it has taken the next one
            self._queue.put_nowait(_gap(""))


Joined = TypeVar("Joined", Listener, OpenPage)


class EventHub:
    """The reader of one dashboard; it reads nothing without listeners."""

    def __init__(self, scheduler: Scheduler, in_thread: InThread) -> None:
        self._scheduler = scheduler
        self._in_thread = in_thread
        self._listeners: dict[Listener | OpenPage, Viewer | None] = {}
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False
        self._classes: OrderedDict[JobId, str] = OrderedDict()
        self.reads = 0
        """How often the store was read."""

    def listen(self, viewer: Viewer | None = None) -> contextlib.AbstractAsyncContextManager[Listener]:
        """Return a listener to all events from now on. Raises ``Problem`` if there are too many."""
        return self._joined(Listener(), viewer)

    def open_page(
        self, job: str | None, viewer: Viewer | None = None
    ) -> contextlib.AbstractAsyncContextManager[OpenPage]:
        """Return a page that learns whether something happens from now on. Raises ``Problem``, too."""
        return self._joined(OpenPage(job), viewer)

    @contextlib.asynccontextmanager
    async def _joined(self, listener: Joined, viewer: Viewer | None) -> AsyncIterator[Joined]:
        self.check_room(viewer)
        begins_at = await self._cursor() if self._reader is None or self._reader.done() else None
        self.check_room(viewer)  # others may have come in between
        self._listeners[listener] = viewer
        if self._is_closed:  # in between: nothing else would wake the listener before its silence ends
            listener.close()
        if begins_at is not None and (self._reader is None or self._reader.done()):
            self._reader = asyncio.get_running_loop().create_task(self._read(begins_at))
        try:
            yield listener
        finally:
            self._listeners.pop(listener, None)
            if not self._listeners and self._reader is not None:
                self._reader.cancel()
                self._reader = None

    def check_room(self, viewer: Viewer | None = None) -> None:
        """Raise ``Problem`` if there are too many listeners, in all or in the share of the viewer."""
        if viewer is not None:
            others = [other for other in self._listeners.values() if other is not None]
            if sum(other.user.name == viewer.user.name for other in others) >= MOST_OF_USER:
                raise too_many_requests(f"{viewer.user.name} has {MOST_OF_USER} pages and streams open: close some")
            network = network_of(viewer.address)
            if sum(network_of(other.address) == network for other in others) >= MOST_OF_ADDRESS:
                raise too_many_requests(f"{MOST_OF_ADDRESS} pages and streams are open at {network}: close some")
        if len(self._listeners) >= MOST_LISTENERS:
            raise Problem("too-many-listeners", f"{MOST_LISTENERS} pages are open already: close some")

    def close(self) -> None:
        """End all streams, those too that begin just now."""
        self._is_closed = True
        for listener in self._listeners:
            listener.close()

    def change_to(self, scheduler: Scheduler) -> None:
        """Read another store from now on, whose cursors and jobs are others."""
        self._scheduler = scheduler
        self._classes.clear()

    async def past(self, cursor: str, in_thread: InThread | None = None) -> AsyncIterator[Notice]:
        """Yield the events after a cursor up to now. Raises ``CursorTooOld``."""
        in_thread = in_thread or self._in_thread
        until = await self._cursor()  # a busy store has always more; a listener gets those
        while cursor != until:
            events, next_cursor = await in_thread(self._page, cursor)
            for notice in events:
                yield notice
                if notice.cursor == until:
                    return
            if next_cursor == cursor:
                return
            cursor = next_cursor

    async def _read(self, begins_at: str) -> None:
        cursor: str | None = begins_at
        full, is_away = 0, False
        while True:
            await asyncio.sleep(EVERY)
            look, most = self._looks()
            try:
                if cursor is None:
                    cursor = await self._cursor()
                    self._publish(_gap(cursor))
                notices, cursor = await self._in_thread(look, cursor)
            except CursorTooOld:
                cursor = None
                continue
            except StoreUnavailable as error:
                if not is_away:
                    log.warning("events cannot be read: %s", error)
                    self._publish(Notice(name="store", document={"away": error.reason}, cursor=cursor or ""))
                is_away = True
                cursor = None if isinstance(error, StoreReplaced) else cursor
                continue
            except Exception:
                log.exception("events could not be published: open pages and streams get a gap notice")
                cursor = None
                continue
            if is_away:
                self._publish(Notice(name="store", document={"away": None}, cursor=cursor))
            self._publish(*notices)
            is_away, full = False, full + 1 if len(notices) == PAGE else 0
            if full >= most:
                cursor, full = None, 0

    def _looks(self) -> tuple[Look, int]:
        """Return how the store is read for those who listen, and how often with as many events as fit until a gap."""
        if any(isinstance(listener, Listener) for listener in self._listeners):
            return self._page, LAGS
        if any(isinstance(page, OpenPage) and page.job is not None for page in self._listeners):
            return self._jobs, 1
        return self._moved, 1

    def _publish(self, *notices: Notice) -> None:
        for listener in self._listeners:
            for notice in notices:
                listener.put(notice)

    async def _cursor(self) -> str:
        cursor: str = await self._in_thread(self._scheduler.cursor)
        return cursor

    def _moved(self, cursor: str) -> tuple[list[Notice], str]:
        """Return a gap if there are events after the cursor, and the current cursor; blocks."""
        self.reads += 1
        now = self._scheduler.cursor()
        return [] if now == cursor else [_gap(now)], now

    def _jobs(self, cursor: str) -> tuple[list[Notice], str]:
        """Return the jobs of the events after the cursor, and the cursor after them; blocks."""
        self.reads += 1
        events, next_cursor = self._scheduler.read_events(cursor, PAGE)
        notices = [Notice(name=event.name, document={"id": _id(event)}, cursor=next_cursor) for event in events]
        return notices, next_cursor

    def _page(self, cursor: str) -> tuple[list[Notice], str]:
        """Return the events after the cursor, and the cursor after them; blocks."""
        self.reads += 1
        events, next_cursor = self._scheduler.read_events(cursor, PAGE)
        errors = self._look_up(events)
        notices = []
        for event in events:
            job = None if event.job_id is None else self._classes.get(event.job_id)
            error = errors.get(event.job_id) if event.name in FAILURES else None
            notices.append(Notice(name=event.name, document=json_shapes.event(event, job, error), cursor=event.cursor))
        while len(self._classes) > REMEMBERED:
            self._classes.popitem(last=False)
        return notices, next_cursor

    def _look_up(self, events: Sequence[Event]) -> Mapping[JobId | None, Failure | None]:
        """Read the classes of unknown jobs, and return the errors of failed ones."""
        job_ids = {
            event.job_id
            for event in events
            if event.job_id is not None and (event.job_id not in self._classes or event.name in FAILURES)
        }
        if not job_ids:
            return {}
        self.reads += 1
        processes = self._scheduler.find_jobs({"id": {"$in": list(job_ids)}}, order="id", limit=len(job_ids))
        for process in processes:
            self._classes[process.id] = process.job
        return {process.id: process.snapshot.error for process in processes}


def _id(event: Event) -> str | None:
    return None if event.job_id is None else str(event.job_id)


def _gap(cursor: str) -> Notice:
    """Return the notice that events before this cursor may have been left out."""
    return Notice(name="gap", document={"cursor": cursor}, cursor=cursor)
