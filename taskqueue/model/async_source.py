"""The items of an asynchronous source: a loop of ``each`` takes the items that are ready, and awaits the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Iterator
from typing import Any

AWAITED: Any = object()
"""Stands for an item that is not there yet: call ``fetch``."""


class AsyncSource(Iterator[Any]):
    """The items of an asynchronous iterable, with ``AWAITED`` in place of each that has not been fetched."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        self._items = aiter(items)
        self._fetched: deque[Any] = deque()
        self._is_over = False

    def __next__(self) -> Any:
        if self._fetched:
            return self._fetched.popleft()
        if self._is_over:
            raise StopIteration
        return AWAITED

    async def fetch(self) -> None:
        """Wait for the next item, or for the end."""
        try:
            self._fetched.append(await anext(self._items))
        except StopAsyncIteration:
            self._is_over = True
