"""Divides the event loop among those who send requests: each has one turn in each pass of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class FairTurns:
    """Makes calls in the event loop, one of each key in a pass of it: many calls of a key delay only this key."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], object]]] = {}

    def call(self, key: str, call: Callable[[], object]) -> None:
        """Make the call in the next free turn of the key."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._take)
        self._waiting.setdefault(key, deque()).append(call)

    async def turn(self, key: str) -> None:
        """Return in the next free turn of the key."""
        reached = asyncio.get_running_loop().create_future()
        self.call(key, lambda: None if reached.done() else reached.set_result(None))
        await reached

    def _take(self) -> None:
        """Make the first call of each key, and those after them in the next passes."""
        loop = asyncio.get_running_loop()
        for key, calls in [*self._waiting.items()]:
            loop.call_soon(calls.popleft())  # each on its own: an error of one is none of the others
            if not calls:
                del self._waiting[key]
        if self._waiting:
            loop.call_soon(self._take)
