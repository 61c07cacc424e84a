"""Server-sent events: what happens as a stream for programs, and that something has changed for pages."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse

from taskqueue.errors import CursorTooOld, StoreUnavailable, TaskqueueError
from taskqueue.web.event_hub import EventHub, Listener, Notice
from taskqueue.web.problems import Problem

log = logging.getLogger(__name__)

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent: proxies close silent connections, and who logged out is noticed."""

SILENCE = 5.0
"""Seconds after which a page is shown anew: a pause, a drain, and a node that falls silent are no events."""

RUNNING = 2.0
"""The same of a page that shows a running job, whose log lines are no events."""

PACE = 2.0
"""Seconds of a beat: a page is told of changes once in each, at the beat where they go on. The beats, and those of
silence, are the same for all pages, which so share their looks at the store."""

CHANGED = "event: changed\ndata: {}\n\n"

_OF_JOB = r"/jobs/([0-9a-f]{24})(/.*)?"

Still = Callable[[], bool]
"""Returns whether the viewer of a stream may still see it."""


def event_stream(hub: EventHub, cursor: str | None, still: Still, names: frozenset[str]) -> StreamingResponse:
    """Return the events behind the cursor, or from now on, and all that come; with ``names`` only these."""

    async def stream() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        async with hub.listen() as listener:
            if cursor is not None:
                try:
                    async for notice in hub.past(cursor):
                        if listener.is_closed or not still():
                            return
                        if notice.name in names or not names:
                            yield _message(notice)
                except CursorTooOld as error:
                    yield f"event: gap\ndata: {json.dumps({'detail': str(error)})}\n\n"
            async for new in _notices(listener, still):
                if new is None:
                    yield ": still here\n\n"
                elif not names or new.name in (*names, "gap", "store"):
                    yield _message(new)

    return _response(stream())


def change_stream(hub: EventHub, page: str, still: Still, at_least: float = SILENCE) -> StreamingResponse:
    """Return a stream that says ``changed`` when the page may show something else: once for all that came in a beat.

    It says so at each beat of ``at_least`` seconds, too, in which nothing concerned the page.
    """
    found = re.fullmatch(_OF_JOB, page)
    job = None if found is None else found[1]

    async def stream() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        now = asyncio.get_running_loop().time
        try:
            async with hub.listen() as listener:
                said_at, has_changed = now(), False
                while still():
                    due_at = next_beat(said_at, PACE if has_changed else at_least)
                    notice = await listener.next(max(0.0, due_at - now()))
                    if listener.is_closed or not still():
                        return
                    if notice is not None:
                        has_changed |= any(_concerns(one, job) for one in (notice, *listener.waiting()))
                    if now() >= next_beat(said_at, PACE if has_changed else at_least):
                        said_at, has_changed = now(), False
                        yield CHANGED
        except StoreUnavailable:
            yield CHANGED  # the page finds out that the store is away, and opens another stream

    return _response(stream())


def next_beat(behind: float, every: float) -> float:
    """Return the first beat behind a time."""
    return (behind // every + 1) * every


async def _notices(listener: Listener, still: Still) -> AsyncIterator[Notice | None]:
    """Yield what comes, None in each silence, as long as the viewer may see it."""
    while still() and not listener.is_closed:
        notice = await listener.next(HEARTBEAT)
        if still() and not listener.is_closed:
            yield notice


def _concerns(notice: Notice, job: str | None) -> bool:
    return job is None or notice.document.get("id", job) == job


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
