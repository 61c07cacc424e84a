"""The thread that calls the store for the screens, so that a slow or hanging call stops none of them."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

CLOSING = 0.5
"""Seconds that the program waits at its end for a call in progress."""


class StoreCalls:
    """A thread that makes one call after another; a call that hangs does not keep the program from ending."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def make(self, call: Callable[[], Result]) -> Result:
        """Return the result of the call, or raise its error."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:
                _hand_over(loop, answer, lambda error=error: answer.set_exception(error))  # type: ignore[misc]
            else:
                _hand_over(loop, answer, lambda: answer.set_result(result))

        self._calls.put(run)
        return await answer

    def close(self) -> None:
        """End the thread after the present call."""
        self._calls.put(None)
        self._thread.join(CLOSING)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _hand_over(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Result], give: Callable[[], None]) -> None:
    """Deliver the answer in the loop, unless the loop has ended or nobody is waiting any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: None if answer.done() else give())
