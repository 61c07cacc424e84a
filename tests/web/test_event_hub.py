"""One reader for all open pages: what it hands on, how often it reads, and what happens to slow listeners."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from taskqueue import Scheduler
from taskqueue.errors import StoreReplaced
from taskqueue.web import event_hub
from taskqueue.web.event_hub import EventHub, Listener, Notice, OpenPage, event_stream
from taskqueue.web.problems import Problem
from tests.nodes import LIMIT
from tests.scheduler.jobs import Broken, Echo


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.to_thread(call, *args)


def played(play: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), LIMIT))


async def next_of(listener: Listener) -> Notice:
    """Return the next notice; those that come with it are kept for the next call."""
    came = _CAME.setdefault(listener, deque())
    if not came:
        came += await listener.next(LIMIT)
    return came.popleft()


_CAME: WeakKeyDictionary[Listener, deque[Notice]] = WeakKeyDictionary()


def test_every_listener_gets_what_happens_from_one_reader(scheduler: Scheduler) -> None:
    hub, began = EventHub(scheduler, in_thread), time.monotonic()

    async def play() -> None:
        async with hub.listen() as one, hub.listen() as other:
            process = await asyncio.to_thread(scheduler.run_job, Broken, retry=0)
            seen = [await next_of(one)]
            while seen[-1].name != "failed":
                seen.append(await next_of(one))
            assert seen == [await next_of(other) for _ in seen]
        assert {notice.document["id"] for notice in seen} == {str(process.id)}
        assert {notice.document["job"] for notice in seen} == {process.job}
        assert seen[-1].document["error"]["type"]
        looks = (time.monotonic() - began) / event_hub.EVERY
        assert hub.reads <= 2 * looks + 1  # as many as for one listener

    played(play)


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_the_past_of_a_busy_store_ends_at_the_present(scheduler: Scheduler) -> None:
    hub = EventHub(scheduler, in_thread)
    cursor = scheduler.cursor()
    added = [str(scheduler.add_job(Echo).id) for _ in range(3)]

    async def play() -> None:
        found = []
        async for notices in hub.past(cursor):
            found += [notice.document["id"] for notice in notices]
            await asyncio.to_thread(scheduler.add_job, Echo)
            assert len(found) < 10
        assert found == added

    played(play)


def test_a_flush_concerns_the_pages_of_each_job_and_every_stream(scheduler: Scheduler) -> None:
    shown = scheduler.add_job(Echo)
    hub = EventHub(scheduler, in_thread)

    async def play() -> None:
        async with hub.open_page(str(shown.id)) as page:
            await asyncio.to_thread(scheduler.flush)
            await changed(page)
            async with hub.listen() as listener:
                await asyncio.to_thread(scheduler.flush)
                assert (await next_of(listener)).name == "store_flushed"
                await changed(page)

    played(play)


def test_a_replaced_store_is_a_gap_and_not_the_end(tmp_path: Path) -> None:
    file, backup = tmp_path / "jobs.db", tmp_path / "backup.db"
    with Scheduler(str(backup)) as other:
        other.add_job(Echo)
    with Scheduler(str(file)) as before, Scheduler(str(file)) as after:
        before.add_job(Echo)

        async def opened_anew(call: Callable[..., Any], *args: Any) -> Any:
            try:
                return await asyncio.to_thread(call, *args)
            except StoreReplaced:
                hub.change_to(after)
                raise

        hub = EventHub(before, opened_anew)

        async def play() -> None:
            async with hub.listen() as listener:
                backup.rename(file)
                assert [(await next_of(listener)).name for _ in range(3)] == ["store", "gap", "store"]
                added = await asyncio.to_thread(after.add_job, Echo)
                assert (await next_of(listener)).document["id"] == str(added.id)

        played(play)


def test_an_unforeseen_error_is_a_gap_and_not_the_end(scheduler: Scheduler) -> None:
    errors = [ValueError("of a look at the store")]

    async def failing_once(call: Callable[..., Any], *args: Any) -> Any:
        if call.__name__ == "_page" and errors:
            raise errors.pop()
        return await asyncio.to_thread(call, *args)

    hub = EventHub(scheduler, failing_once)

    async def play() -> None:
        async with hub.listen() as listener:
            assert (await next_of(listener)).name == "gap"
            added = await asyncio.to_thread(scheduler.add_job, Echo)
            assert (await next_of(listener)).document["id"] == str(added.id)

    played(play)


def test_nothing_is_read_while_nobody_listens(scheduler: Scheduler) -> None:
    hub = EventHub(scheduler, in_thread)

    async def play() -> None:
        async with hub.listen():
            pass
        assert hub.reads == 0
        async with hub.listen() as listener:
            await asyncio.to_thread(scheduler.add_job, Echo)
            assert (await next_of(listener)).name == "waiting"

    played(play)


def test_events_behind_a_cursor_come_page_by_page(scheduler: Scheduler) -> None:
    hub = EventHub(scheduler, in_thread)
    cursor = scheduler.cursor()
    processes = scheduler.add_jobs([(Echo, number) for number in range(event_hub.PAGE + 5)])

    async def play() -> None:
        pages = [notices async for notices in hub.past(cursor)]
        found = [notice.document["id"] for notices in pages for notice in notices]
        assert len(pages) == 2
        assert sorted(found) == sorted(str(process.id) for process in processes)

    played(play)


def test_many_events_are_one_text_of_a_stream(scheduler: Scheduler) -> None:
    cursor = scheduler.cursor()
    ids = [str(process.id) for process in scheduler.add_jobs([(Echo, number) for number in range(event_hub.PAGE)])]

    async def texts(hub: EventHub, number: int, cursor: str | None) -> list[str]:
        """Return the texts of a stream up to the one in which it has had so many messages."""
        came: list[str] = []
        async for text in event_stream(hub, cursor, lambda: True, frozenset({"waiting"})).body_iterator:
            came.append(str(text))
            if "".join(came).count("event: waiting") == number:
                break
        return came

    async def play() -> None:
        past = await texts(EventHub(scheduler, in_thread), len(ids), cursor)
        assert len(past) == 2  # the first tells when to connect again
        assert all(id in past[1] for id in ids)

        hub = EventHub(scheduler, in_thread)
        live = asyncio.ensure_future(texts(hub, 100, None))
        while not hub._listeners:
            await asyncio.to_thread(scheduler.cursor)
        [listener] = hub._listeners
        notices = [Notice(name="waiting", document={"id": str(number)}, cursor="1") for number in range(100)]
        for notice in notices:
            listener.put(notice)
        assert (await live)[1:] == ["".join(notice.message for notice in notices)]

    played(play)


def test_a_listener_that_takes_nothing_is_told_of_the_gap() -> None:
    async def play() -> None:
        listener = Listener()
        for number in range(event_hub.WAITING + 3):
            listener.put(Notice(name="done", document={}, cursor=str(number)))
        assert {(await next_of(listener)).name for _ in range(event_hub.WAITING)} == {"done"}
        listener.put(Notice(name="done", document={}, cursor="9999"))
        listener.put(Notice(name="done", document={}, cursor="10000"))
        assert [(await next_of(listener)).name for _ in range(2)] == ["gap", "done"]

    played(play)


def test_a_listener_that_is_canceled_leaves_what_waits_for_it() -> None:
    async def play() -> None:
        listener = Listener()
        for number in range(9):
            listener.put(Notice(name="done", document={}, cursor=str(number)))

        async def follow() -> None:
            while True:
                await listener.next(LIMIT)

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        following.cancel()
        for _ in range(100):
            await asyncio.sleep(0)
        assert following.cancelled()
        assert (await next_of(listener)).name == "done"

    played(play)


async def changed(page: OpenPage) -> None:
    """Wait until the page has changed, and begin anew."""
    while not page.has_changed:
        await page.wait(0.02)
    page.has_changed = False


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_an_open_page_learns_of_events_and_one_of_a_job_of_its_own(scheduler: Scheduler) -> None:
    shown, other = (scheduler.add_job(Echo, number) for number in range(2))
    hub = EventHub(scheduler, in_thread)

    async def play() -> None:
        async with hub.open_page(None) as page:
            await asyncio.to_thread(scheduler.add_job, Echo)
            await changed(page)
            async with hub.open_page(str(shown.id)) as page_of_job:
                await asyncio.to_thread(other.cancel)
                await changed(page)
                assert not page_of_job.has_changed
                await asyncio.to_thread(shown.cancel)
                await changed(page_of_job)

    played(play)


def test_the_page_of_a_job_is_told_where_more_happens_than_is_read(scheduler: Scheduler) -> None:
    shown = scheduler.add_job(Echo)
    hub = EventHub(scheduler, in_thread)

    async def play() -> None:
        async with hub.open_page(str(shown.id)) as page:
            await asyncio.to_thread(scheduler.add_jobs, [(Echo, number) for number in range(3 * event_hub.PAGE)])
            await changed(page)

    played(play)


def test_a_page_that_opens_while_the_server_stops_waits_for_nothing(scheduler: Scheduler) -> None:
    hub = EventHub(scheduler, in_thread)
    hub.close()

    async def play() -> None:
        async with hub.open_page(None) as page:
            await page.wait(LIMIT)
            assert page.is_closed

    played(play)


def test_a_stream_that_begins_while_the_server_stops_ends_at_once(scheduler: Scheduler) -> None:
    hub = EventHub(scheduler, in_thread)
    hub.close()

    async def play() -> None:
        async with hub.listen() as listener:
            assert (await next_of(listener)).name == "gap"
            assert listener.is_closed

    played(play)


def test_the_number_of_listeners_is_bounded(scheduler: Scheduler) -> None:
    hub = EventHub(scheduler, in_thread)

    async def play() -> None:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as opened:
            for _ in range(event_hub.MOST_LISTENERS):
                await opened.enter_async_context(hub.listen())
            with pytest.raises(Problem, match="200 pages are already open"):
                await opened.enter_async_context(hub.listen())

    played(play)
