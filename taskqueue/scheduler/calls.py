"""Divides an operation into calls of a client: one of the blocking client has answered, one of asyncio is awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar

from taskqueue.model.ids import JobId

Item = TypeVar("Item")
Result = TypeVar("Result")

Calls: TypeAlias = Generator[Any, Any, Result]
"""Yields the return value of each call, and is sent its result."""


def answered(calls: Calls[Result]) -> Result:
    """Return the result of calls that have answered when they are yielded."""
    try:
        answer = next(calls)
        while True:
            answer = calls.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result


async def awaited(calls: Calls[Result]) -> Result:
    """Return the result of calls that are awaited; the exception of one is raised where it was yielded."""
    try:
        call = next(calls)
        while True:
            try:
                answer = await call if isawaitable(call) else call
            except Exception as error:
                call = calls.throw(error)
            else:
                call = calls.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result


def all_of(items: Iterable[Item] | AsyncIterator[Item]) -> Any:
    """Return the call that gives all items as a list."""
    return _collected(items) if isinstance(items, AsyncIterator) else list(items)


async def _collected(items: AsyncIterator[Item]) -> list[Item]:
    return [item async for item in items]


def results(client: Any, ids: Sequence[JobId]) -> Calls[dict[JobId, Any]]:
    """Return the results of these jobs as ``received.sources`` finds them."""
    from taskqueue.model.received import sources  # few jobs depend on others

    steps = sources(ids)
    try:
        wanted = next(steps)
        while True:
            handles = yield all_of(client.get_jobs({"id": {"$in": wanted}}))
            wanted = steps.send(handles)
    except StopIteration as end:
        return {id: handle.result for id, handle in end.value.items()}
