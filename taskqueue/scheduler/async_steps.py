"""Carries out steps for an event loop: the work in a few threads, the waiting in the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, Generic, TypeVar, cast

from typing_extensions import ParamSpec

from taskqueue.scheduler.poll import NUDGED, Item, Poll, Ready, Steps

OF_EMBEDDED = 1
"""Threads for an embedded store: it has one connection, and more threads only take turns with the event loop."""

OF_SERVER = 4
"""Threads for a store on the network: they wait for answers at the same time."""

P = ParamSpec("P")
R = TypeVar("R")

_END: Any = object()


class Threads:
    """The threads of a scheduler; a forked child has its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_process: tuple[int, ThreadPoolExecutor] | None = None

    def submit(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a thread make the call."""
        if self._of_process is None or self._of_process[0] != os.getpid():
            self._of_process = os.getpid(), ThreadPoolExecutor(self._most, thread_name_prefix="taskqueue")
        return self._of_process[1].submit(call, *args, **kwargs)

    async def close(self) -> None:
        """Wait for the calls that have begun, and for the end of the threads, in one that ends last."""
        pool = self._of_process
        if pool is None or pool[0] != os.getpid():
            return
        self._of_process = None
        closed: Future[None] = Future()

        def shut_down() -> None:
            pool[1].shutdown()
            closed.set_result(None)

        last = Thread(target=shut_down, name="taskqueue_close")
        last.start()
        await asyncio.wrap_future(closed)
        last.join()

    async def call(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of the call; a call that has started continues when its task is canceled."""
        return await asyncio.wrap_future(self.submit(call, *args, **kwargs))


class AsyncSteps(Generic[Item]):
    """The steps of a generator: each runs in a thread, and the loop watches the descriptors of its polls."""

    def __init__(self, steps: Steps[Item], threads: Threads) -> None:
        self._steps = steps
        self._threads = threads
        self._step: Future[Poll | Item] | None = None
        self._ended_poll: asyncio.Future[Ready] | None = None
        self._is_nudged = False

    async def items(self) -> AsyncGenerator[Item, None]:
        """Yield the items; clean up wherever the task is canceled."""
        try:
            step = await self._next(None)
            while step is not _END:
                if isinstance(step, Poll):
                    step = await self._next(await self._polled(step))
                else:
                    yield step
                    step = await self._next(None)
        finally:
            if self._step is not None:
                self._step.add_done_callback(lambda _: self._steps.close())

    def nudge(self) -> None:
        """End the present poll, or else the next one, at once."""
        self._is_nudged = True
        self._end_poll(NUDGED)

    async def _next(self, ready: Ready | None) -> Poll | Item:
        self._step = self._threads.submit(_advance, self._steps, ready)
        return await asyncio.wrap_future(self._step)

    async def _polled(self, poll: Poll) -> Ready:
        loop = asyncio.get_running_loop()
        self._ended_poll = loop.create_future()
        timer = loop.call_later(poll.seconds, self._end_poll, frozenset())
        for descriptor in poll.descriptors:
            loop.add_reader(descriptor, self._end_poll, frozenset([descriptor]))
        try:
            return NUDGED if self._is_nudged else await self._ended_poll
        finally:
            timer.cancel()
            for descriptor in poll.descriptors:
                loop.remove_reader(descriptor)
            self._ended_poll = None
            self._is_nudged = False

    def _end_poll(self, ready: Ready) -> None:
        if self._ended_poll is not None and not self._ended_poll.done():
            self._ended_poll.set_result(ready)


def _advance(steps: Steps[Item], ready: Ready | None) -> Poll | Item:
    """Return the next value of the generator, or ``_END``; in a thread, where StopIteration cannot be raised."""
    try:
        return next(steps) if ready is None else steps.send(ready)
    except StopIteration:
        return cast(Item, _END)
