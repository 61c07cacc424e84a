"""Server-sent events: what happens as a stream for programs, and that something has changed for pages."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse

from taskqueue.errors import CursorTooOld, StoreUnavailable, TaskqueueError
from taskqueue.model.events import FLUSHED
from taskqueue.web.event_hub import EventHub, InThread, Listener, Notice
from taskqueue.web.overviews import Beats
from taskqueue.web.problems import Problem
from taskqueue.web.viewers import Viewer

log = logging.getLogger(__name__)

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent: proxies close silent connections, and who logged out is noticed."""

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
                    async for notice in hub.past(cursor, in_thread):
                        if listener.is_closed or not still():
                            return
                        if notice.name in (*names, FLUSHED) or not names:
                            yield _message(notice)
                except CursorTooOld as error:
                    yield f"event: gap\ndata: {json.dumps({'detail': str(error)})}\n\n"
            async for new in _notices(listener, still):
                if new is None:
                    yield ": still here\n\n"
                elif not names or new.name in (*names, "gap", "store", FLUSHED):
                    yield _message(new)

    return _response(stream())


def change_stream(
    hub: EventHub, beats: Beats, page: str, still: Still, runs: bool = False, viewer: Viewer | None = None
) -> StreamingResponse:
    """Return a stream that sends ``changed`` at each beat after which the page may look different.

    So does each beat for all pages, and with ``runs`` every beat: the log lines of a running job are not events.
    """
    found = re.fullmatch(_OF_JOB, page)

    async def stream() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        try:
            async with hub.open_page(None if found is None else found[1], viewer) as opened:
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


async def _notices(listener: Listener, still: Still) -> AsyncIterator[Notice | None]:
    """Yield what comes, None in each silence, as long as the viewer may see it."""
    while still() and not listener.is_closed:
        notice = await listener.next(HEARTBEAT)
        if still() and not listener.is_closed:
            yield notice


def _message(notice: Notice) -> str:
    data = json.dumps(notice.document, ensure_ascii=False, separators=(",", ":"))
    return f"id: {notice.cursor}\nevent: {notice.name}\ndata: {data}\n\n"


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
