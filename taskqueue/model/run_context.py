"""The context of a running job, as its class sees it: ids and keys, the log, loops, progress and checkpoints."""

from __future__ import annotations

import logging
import types
from collections import deque
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

from bson import ObjectId

from taskqueue.model.lifecycle.continuation import Continuation
from taskqueue.model.log_fields import RunFields
from taskqueue.model.record import Failure

Item = TypeVar("Item")
Items: TypeAlias = (
    Iterable[Item]
    | AsyncIterable[Item]
    | Callable[[Any], Iterable[tuple[Any, Item]]]
    | Callable[[Any], AsyncIterable[tuple[Any, Item]]]
)


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """Give other tasks of the event loop a turn, without the import of asyncio."""
    yield


class Loop(Iterator[Item]):
    """The iterable that ``Job.each`` returns."""

    def __init__(self, items: Iterator[Item], keep: Callable[[], None], source: AsyncSource | None = None) -> None:
        """With a ``source`` some of the items are ``AWAITED`` from it."""
        self._items = items
        self._keep = keep
        self._source = source

    def __iter__(self) -> Iterator[Item]:
        if self._source is not None:
            raise TypeError("each() over an asynchronous source: write async for")
        return self._items

    def __next__(self) -> Item:
        return next(iter(self))

    def __aiter__(self) -> Loop[Item]:
        """Return the loop for ``async for``: other tasks have a turn before each item."""
        return self

    async def __anext__(self) -> Item:
        await _turn()
        try:
            while (item := next(self._items)) is AWAITED and self._source is not None:
                await self._source.fetch()
        except StopIteration:
            raise StopAsyncIteration from None
        return item

    def keep(self) -> None:
        """Count all items that were handed out as finished: an interrupted job continues after them."""
        self._keep()


class RunContext(Protocol):
    """The context of a running job; each run has one."""

    fields: RunFields
    """The fields of its log lines."""
    data: str
    """The job's data, as Extended JSON text."""
    ending: Exception | None
    """The exception that the attempt ends with when the job's code returns; None without."""

    @property
    def id(self) -> ObjectId:
        """The job's id."""

    @property
    def attempt(self) -> int:
        """The number of this attempt."""

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure ends the job."""

    @property
    def previous_error(self) -> Failure | None:
        """The error of the previous attempt."""

    @property
    def key(self) -> str:
        """The idempotency key for effects outside, the same in all runs."""

    @property
    def run_key(self) -> str:
        """``id:claims``, which names this run."""

    @property
    def meta(self) -> Mapping[str, str]:
        """The mapping of text that travels with the job."""

    @property
    def state(self) -> str | None:
        """The last checkpoint before this run, as Extended JSON text."""

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to end."""

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the job."""

    @property
    def scheduler(self) -> Any:
        """A scheduler on the job's own store."""

    @property
    def course(self) -> Continuation | None:
        """The continuation of a job that runs in steps."""

    def each(self, items: Items[Any], name: str, turn: float | None, batch: int | None, manual: bool) -> Loop[Any]:
        """Return the items after the position of the loop."""

    def complete(self, result: Any) -> Any:
        """Return the result of the job's code; a coroutine runs to its end."""

    def uninterrupted(self) -> AbstractContextManager[object]:
        """Return a context in which no ``Interrupted`` is raised; one that is due is raised at its end."""

    def progress(self, percent: float, message: str) -> None:
        """Report the progress of the job."""

    def checkpoint(self, state: Any) -> None:
        """Keep a state for a later attempt."""


AWAITED: Any = object()
"""Stands for an item that has not arrived yet: call ``fetch``."""


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
