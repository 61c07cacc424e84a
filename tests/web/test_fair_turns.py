"""The event loop is divided: one call, and one request, of each client in each pass."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from taskqueue import Scheduler
from taskqueue.web import app
from taskqueue.web.server import Server
from taskqueue.web.user_shares import FairTurns


def test_many_calls_of_one_delay_only_this_one() -> None:
    order: list[str] = []

    async def play() -> None:
        turns = FairTurns()
        for _ in range(50):
            turns.call("ana", lambda: order.append("ana"))
        for _ in range(2):
            turns.call("bob", lambda: order.append("bob"))
        for _ in range(50):
            await turns.turn("cid")

    asyncio.run(play())
    assert order == ["ana", "bob"] * 2 + ["ana"] * 48


def test_an_error_in_a_turn_is_none_of_the_others() -> None:
    order: list[str] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: order.append(str(context["exception"])))
        turns = FairTurns()
        turns.call("ana", lambda: int("of ana"))
        turns.call("bob", lambda: order.append("bob"))
        await turns.turn("ana")

    asyncio.run(play())
    assert order == ["invalid literal for int() with base 10: 'of ana'", "bob"]


def test_one_that_waits_no_more_takes_no_turn_from_others() -> None:
    async def play() -> None:
        turns = FairTurns()
        waiting = asyncio.ensure_future(turns.turn("ana"))
        await asyncio.sleep(0)
        waiting.cancel()
        await turns.turn("ana")
        assert waiting.cancelled()

    asyncio.run(play())


def test_one_request_of_each_client_begins_in_each_pass(scheduler: Scheduler) -> None:
    began: list[str] = []
    made = app(scheduler, users=None, header="X-User", proxies=["10.0.0.1"], hosts=["localhost"])

    async def begin(request: Request) -> Response:
        began.append(request.client.host if request.client else "")
        return Response()

    made.router.routes.insert(0, Route("/begin", begin))
    served: Any = Server(made).config.app

    async def ask(peer: str, *forwarded: tuple[bytes, bytes]) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_: Any) -> None:
            pass

        headers = [(b"host", b"localhost"), *forwarded]
        scope = {"type": "http", "method": "GET", "path": "/begin", "query_string": b"", "headers": headers}
        await served({**scope, "client": (peer, 1), "server": None, "scheme": "http"}, receive, send)

    async def play() -> None:
        many = [ask("203.0.113.9") for _ in range(20)]
        by_proxy = [ask("10.0.0.1", (b"x-forwarded-for", b"203.0.113.7")) for _ in range(2)]
        await asyncio.gather(*many, *by_proxy)

    asyncio.run(play())
    assert began[:4] == ["203.0.113.9", "203.0.113.7"] * 2
