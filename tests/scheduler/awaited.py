"""An ``AsyncScheduler`` that is used like a ``Scheduler``: one suite of tests says what both do."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from taskqueue import AsyncScheduler
from tests.nodes import LIMIT


class Loop:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event loop of a test")
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        """Return the result of what is awaited there."""

        async def awaited() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def each(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        """Yield the items, one at a time; end the iteration there when it is left here."""
        iterator = items.__aiter__()
        try:
            while True:
                try:
                    yield self.run(iterator.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            self.run(iterator.aclose())  # type: ignore[attr-defined]

    def close(self) -> list[str]:
        """End the loop and return the names of its tasks that do not end by themselves."""

        async def left() -> list[str]:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=LIMIT)
            return [task.get_name() for task in tasks]

        names: list[str] = self.run(left())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()
        return names


class Awaited:
    """An object of the asyncio client whose operations are carried out in a loop while the caller waits."""

    def __init__(self, inner: Any, loop: Loop) -> None:
        self.inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return self._out(getattr(self.inner, name), name)

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return bool(self.inner == _in(other, self))

    def __hash__(self) -> int:
        return hash(self.inner)

    def __repr__(self) -> str:
        return repr(self.inner).replace("<Async", "<")

    def _out(self, value: Any, name: str = "") -> Any:
        """Return what a caller of the blocking client would have got."""
        if inspect.iscoroutine(value):
            return self._out(self._loop.run(value))
        if value is self.inner:
            return self
        if isinstance(value, AsyncIterator):
            return map(self._out, self._loop.each(value))
        if isinstance(value, list):
            return [self._out(one) for one in value]
        if inspect.ismethod(value) or (inspect.isfunction(value) and name):
            return self._called(value)
        return Awaited(value, self._loop) if type(value).__name__.startswith("Async") else value

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(method).bind(*args, **kwargs).arguments
            if method.__name__ == "events" and given.get("cursor") is None:
                method(*args, **kwargs)  # refuses wrong arguments
                kwargs["cursor"] = self.cursor()  # the blocking client listens from the call on
            return self._out(method(*[_in(one, self) for one in args], **{k: _in(v, self) for k, v in kwargs.items()}))

        return call


def _in(value: Any, awaited: Awaited) -> Any:
    """Return what the asyncio client takes for it; a callback becomes one that waits for a thread."""
    if isinstance(value, Awaited):
        return value.inner
    if isinstance(value, list):
        return [_in(one, awaited) for one in value]
    if inspect.isroutine(value):

        async def called(event: Any) -> Any:
            return await asyncio.to_thread(value, awaited._out(event))

        return called
    return value


def called(function: Callable[..., Any], client: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function that takes a client, awaited where the client is one of asyncio."""
    if not isinstance(client, Awaited):
        return function(client, *args, **kwargs)
    return client._out(client._loop.run(function(client.inner, *args, **kwargs)))


def awaited(url: str | None, **defaults: Any) -> tuple[Any, Callable[[], list[str]]]:
    """Return an asyncio client that is used like a blocking one, and how to end its loop."""
    loop = Loop()

    async def made() -> AsyncScheduler:
        return AsyncScheduler(url, **defaults)

    return Awaited(loop.run(made()), loop), loop.close
