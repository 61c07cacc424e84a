"""Reads the events of the store once for all open pages, and sends them to these as streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from starlette.responses import StreamingResponse

from taskqueue.errors import CursorTooOld, StoreReplaced, StoreUnavailable, TaskqueueError
from taskqueue.model.events import FLUSHED
from taskqueue.model.ids import JobId
from taskqueue.model.record import Failure
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.event import Event
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.overviews import Beats
from taskqueue.web.problems import Problem
from taskqueue.web.user_shares import network_of, too_many_requests
from taskqueue.web.viewers import Viewer

log = logging.getLogger(__name__)

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent: proxies close silent connections.

The stream of a user who has logged out ends then at the latest.
"""

CHANGED = "event: changed\ndata: {}\n\n"

_OF_JOB = r"/jobs/([0-9a-f]{24})(/.*)?"

Still = Callable[[], bool]
"""Returns whether the viewer of a stream may still see it."""


def event_stream(
    hub: EventHub,
    cursor: str | None,
    still: Still,
    names: frozenset[str],
    viewer: Viewer | None = None,
    in_thread: InThread | None = None,
) -> StreamingResponse:
    """Yield the events after the cursor, or from now on, and new ones as they come; with ``names`` only these.

    ``in_thread`` reads those after the cursor; the hub does it if there is none.
    """

    async def stream() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        async with hub.listen(viewer) as listener:
            if cursor is not None:
                try:
                    async for notices in hub.past(cursor, in_thread):
                        if listener.is_closed or not still():
                            return
                        yield _text(notices, names and {*names, FLUSHED})
                except CursorTooOld as error:
                    yield f"event: gap\ndata: {json.dumps({'detail': str(error)})}\n\n"
            async for notices in _notices(listener, still):
                yield _text(notices, names and {*names, "gap", "store", FLUSHED}) if notices else ": still here\n\n"

    return _response(stream())


def change_stream(
    hub: EventHub, beats: Beats, page: str, still: Still, runs: bool = False, viewer: Viewer | None = None
) -> StreamingResponse:
    """Return a stream that sends ``changed`` at each beat after which the page may look different.

    So does each beat for all pages, and with ``runs`` every beat: the log lines of a running job are not events.
    """
    match = re.fullmatch(_OF_JOB, page)

    async def stream() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        try:
            async with hub.open_page(None if match is None else match[1], viewer) as opened:
                seen = beats.present().number
                while still():
                    await opened.wait(beats.until_next())
                    if opened.is_closed or not still():
                        return
                    beat = beats.present()
                    if beat.number != seen:
                        if opened.has_changed or beat.for_all > seen or runs:
                            opened.has_changed = False
                            yield CHANGED
                        seen = beat.number
        except StoreUnavailable:
            yield CHANGED  # the page finds out that the store is away, and opens another stream

    return _response(stream())


async def _notices(listener: Listener, still: Still) -> AsyncIterator[list[Notice]]:
    """Yield what comes, nothing in each silence, as long as the viewer may see it."""
    while still() and not listener.is_closed:
        notices = await listener.next(HEARTBEAT)
        if still() and not listener.is_closed:
            yield notices


def _text(notices: Sequence[Notice], names: Collection[str]) -> str:
    """Return the messages of the notices; with ``names`` only of these.

    They are one text, and each message is made once for all streams: a store may have thousands of events a second.
    """
    return "".join(notice.message for notice in notices if not names or notice.name in names)


async def _ended(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the stream up to an error, which becomes a comment: the status was sent, and clients come again."""
    try:
        async for text in stream:
            yield text
    except (Problem, TaskqueueError) as error:
        log.info("a stream ended: %s", error)
        yield f": {json.dumps(str(error))}\n\n"


def _response(stream: AsyncIterator[str]) -> StreamingResponse:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_ended(stream), media_type="text/event-stream", headers=headers)


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
"""Maximum number of open pages and streams in total, per user, and per address."""

WAITING = 2000
"""Events queued for one listener; further ones are dropped, and the listener gets a ``gap`` notice."""

REMEMBERED = 10_000
"""How many jobs have their class remembered."""

FAILURES = frozenset({"retried", "failed", "timeout"})

InThread: TypeAlias = Callable[..., Awaitable[Any]]
Look: TypeAlias = "Callable[[str], tuple[list[Notice], str]]"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """An event in its JSON shape, or that some are missing (``gap``), or that the store is away or back (``store``)."""

    name: str
    document: Mapping[str, Any]
    cursor: str

    @cached_property
    def message(self) -> str:
        """The notice as a server-sent event."""
        data = json.dumps(self.document, ensure_ascii=False, separators=(",", ":"))
        return f"id: {self.cursor}\nevent: {self.name}\ndata: {data}\n\n"


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
        """Pass it on; leave it out if the listener is too slow."""
        if self._has_gap:
            notice = _gap(notice.cursor)
        try:
            self._queue.put_nowait(notice)
            self._has_gap = False
        except asyncio.QueueFull:
            self._has_gap = True

    async def next(self, timeout: float) -> list[Notice]:
        """Return the next notices, up to ``PAGE``; none if nothing comes for this many seconds."""
        notices = []
        if self._queue.empty():
            try:
                notices.append(await asyncio.wait_for(self._queue.get(), timeout))
            except asyncio.TimeoutError:
                return []
        else:
            await asyncio.sleep(0)  # canceled here when its client leaves: wait_for swallows that on Python 3.11
        while len(notices) < PAGE and not self._queue.empty():
            notices.append(self._queue.get_nowait())
        return notices

    def close(self) -> None:
        """End the stream of this listener."""
        self.is_closed = True
        with contextlib.suppress(asyncio.QueueFull):  # otherwise it looks when it has taken the next notice
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
        """Return a page that learns whether something happens from now on. Raises ``Problem`` if there are too many."""
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
                raise too_many_requests(
                    f"{viewer.user.name} has {MOST_OF_USER} pages and streams open: close some of them"
                )
            network = network_of(viewer.address)
            if sum(network_of(other.address) == network for other in others) >= MOST_OF_ADDRESS:
                raise too_many_requests(f"{MOST_OF_ADDRESS} pages and streams are open from {network}: close some")
        if len(self._listeners) >= MOST_LISTENERS:
            raise Problem("too-many-listeners", f"{MOST_LISTENERS} pages are already open: close some")

    def close(self) -> None:
        """End all streams, including any that are just beginning."""
        self._is_closed = True
        for listener in self._listeners:
            listener.close()

    def change_to(self, scheduler: Scheduler) -> None:
        """Read another store from now on, with other cursors and jobs."""
        self._scheduler = scheduler
        self._classes.clear()

    async def past(self, cursor: str, in_thread: InThread | None = None) -> AsyncIterator[list[Notice]]:
        """Yield the events after a cursor up to now, page by page. Raises ``CursorTooOld``."""
        in_thread = in_thread or self._in_thread
        until = await self._cursor()  # a busy store always has more, which the listener gets
        while cursor != until:
            notices, next_cursor = await in_thread(self._page, cursor)
            last = next((number for number, notice in enumerate(notices, 1) if notice.cursor == until), None)
            yield notices[:last]
            if last is not None or next_cursor == cursor:
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
                log.exception("events could not be published: open pages and streams will be told about the gap")
                cursor = None
                continue
            if is_away:
                self._publish(Notice(name="store", document={"away": None}, cursor=cursor))
            self._publish(*notices)
            is_away, full = False, full + 1 if len(notices) == PAGE else 0
            if full >= most:
                cursor, full = None, 0

    def _looks(self) -> tuple[Look, int]:
        """Return how the store is read for the present listeners, and how many full reads in a row lead to a gap."""
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
            _ = notices[-1].message  # made here, not in the event loop
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
