"""Server-sent events over a real connection: without a gap after a lost one, and only for who may see them."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.web import app, event_hub
from taskqueue.web.event_hub import change_stream, event_stream
from taskqueue.web.overviews import Beats
from tests.nodes import LIMIT
from tests.scheduler.jobs import Echo
from tests.web.conftest import PASSWORD
from tests.web.servers import served

People = tuple[Path, dict[str, str]]


@pytest.fixture
def port(scheduler: Scheduler, people: People) -> Iterator[int]:
    """Serve a dashboard, and return its port."""
    with served(app(scheduler, users=people[0])) as address:
        yield int(address.rpartition(":")[2])


class Stream:
    """An open stream of events."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer

    def next(self) -> dict[str, str]:
        """Return the fields of the next event."""
        fields: dict[str, str] = {}
        for raw in self.answer:
            line = raw.decode().rstrip("\n")
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "event" in fields:
                return fields
            else:
                fields = {}
        return {}


@contextmanager
def stream(port: int, path: str, **headers: str) -> Iterator[Stream]:
    """Open a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        yield Stream(connection.getresponse())
    finally:
        connection.close()


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_a_lost_connection_goes_on_without_a_gap(scheduler: Scheduler, port: int, people: People) -> None:
    token = f"Bearer {people[1]['rita']}"
    path = "/api/v1/events?names=waiting"
    first = scheduler.add_job(Echo, 1, queue="mail")
    with stream(port, f"{path}&cursor=oldest", authorization=token) as opened:
        assert opened.answer.getheader("content-type", "").startswith("text/event-stream")
        seen = opened.next()
    assert json.loads(seen["data"])["id"] == str(first.id)
    assert json.loads(seen["data"])["job"] == first.job

    missed = [str(scheduler.add_job(Echo, number).id) for number in range(3)]
    with stream(port, path, authorization=token, last_event_id=seen["id"]) as opened:
        assert [json.loads(opened.next()["data"])["id"] for _ in missed] == missed
        live = scheduler.add_job(Echo, 9)
        assert json.loads(opened.next()["data"])["id"] == str(live.id)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/events?cursor=nothing", 422),
        ("/api/v1/events?cursor=99999999999", 410),
        ("/api/v1/events?names=nothing", 422),
    ],
)
def test_a_stream_that_cannot_begin_is_a_problem(port: int, people: People, path: str, status: int) -> None:
    with stream(port, path, authorization=f"Bearer {people[1]['rita']}") as opened:
        assert opened.answer.status == status
        assert json.loads(opened.answer.read())["status"] == status


@pytest.mark.parametrize("make", [event_stream, change_stream])
def test_a_stream_that_finds_no_room_ends(scheduler: Scheduler, make: Any) -> None:
    async def in_thread(call: Any, *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    async def play() -> list[Any]:
        hub = event_hub.EventHub(scheduler, in_thread)
        async with AsyncExitStack() as opened:
            for _ in range(event_hub.MOST_LISTENERS):
                await opened.enter_async_context(hub.listen())
            given: Any = (None, lambda: True, frozenset()) if make is event_stream else (Beats(), "/", lambda: True)
            return [text async for text in make(hub, *given).body_iterator]

    assert asyncio.run(play()) == ["retry: 2000\n\n", ': "200 pages are already open: close some"\n\n']


def test_streams_are_for_users_alone_and_end_with_the_session(scheduler: Scheduler, port: int) -> None:
    for path in ("/api/v1/events", "/live?of=/"):
        with stream(port, path) as opened:
            assert opened.answer.status == 401
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)) as connection:
        form = {"content-type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/login", f"name=rita&password={PASSWORD.replace(' ', '+')}", form)
        answer = connection.getresponse()
        answer.read()
        cookie = answer.getheader("set-cookie", "").partition(";")[0]
        connection.request("GET", "/api/v1/session", headers={"cookie": cookie})
        token = json.loads(connection.getresponse().read())["csrf_token"]

        with stream(port, "/api/v1/events", cookie=cookie) as opened:
            connection.request("POST", "/logout", headers={"cookie": cookie, "x-csrf-token": token})
            assert connection.getresponse().status == 303
            scheduler.add_job(Echo, 1)  # the stream looks who listens before it sends anything
            assert opened.next() == {}


def test_fifty_open_pages_read_the_store_twice_a_second_at_most(scheduler: Scheduler, people: People) -> None:
    made = app(scheduler, users=people[0])
    calls: list[float] = []
    seen = threading.Barrier(51, timeout=LIMIT)

    def follow(port: int) -> None:
        with stream(port, "/api/v1/events", authorization=f"Bearer {people[1]['rita']}") as opened:
            seen.wait()
            calls.append(len(opened.next()))

    with served(made) as address:
        port = int(address.rpartition(":")[2])
        pages = [threading.Thread(target=follow, args=(port,)) for _ in range(50)]
        for page in pages:
            page.start()
        seen.wait()
        before, began_at = reads(made), time.monotonic()
        scheduler.add_job(Echo, 1)
        for page in pages:
            page.join(LIMIT)
        assert calls == [3] * 50
        assert reads(made) - before <= 2 * (time.monotonic() - began_at + event_hub.EVERY)


def reads(made: Any) -> int:
    """Return how often a dashboard has read the store for its open pages."""
    number: int = made.state.dashboard.hub.reads
    return number


def test_a_page_is_told_of_all_that_happens_at_once(scheduler: Scheduler, people: People) -> None:
    with served(app(scheduler, users=people[0])) as address:
        port = int(address.rpartition(":")[2])
        token = f"Bearer {people[1]['rita']}"
        with (
            stream(port, "/live?of=/", authorization=token) as one,
            stream(port, "/live?of=/jobs", authorization=token) as other,
        ):
            scheduler.add_jobs([(Echo, number) for number in range(100)])
            assert [opened.next()["event"] for opened in (one, other)] == ["changed", "changed"]
