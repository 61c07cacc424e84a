"""Makes the methods of ``AsyncScheduler`` of those of ``Scheduler``: each is called in a thread, and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, Protocol, TypeVar

from typing_extensions import ParamSpec

from taskqueue.scheduler.async_handles import AsyncJobs, AsyncProcess, AsyncSchedule
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.schedule import Schedule
from taskqueue.scheduler.scheduler import Scheduler

P = ParamSpec("P")
R = TypeVar("R")


class Client(AsyncJobs, Protocol):
    """A scheduler whose calls are made by another one in threads."""

    blocking: Any
    """The ``Scheduler`` that the threads use."""

    async def begin_callbacks(self) -> None:
        """Have the callbacks that were bound since the last call begin now."""


def plain(
    method: Callable[Concatenate[Scheduler, P], R],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]:
    """Return the method as one that is awaited."""

    @wraps(method)
    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.in_thread(partial(method, self.blocking), *args, **kwargs)

    return call


def long(
    method: Callable[Concatenate[Scheduler, P], R],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]:
    """Return a method that may take long as one that is awaited: in a thread of its own, not one of the few."""

    @wraps(method)
    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        await self.begin_callbacks()
        return await asyncio.to_thread(method, self.blocking, *args, **kwargs)

    return call


def process(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, Process]],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, AsyncProcess]]:
    """Return a method that returns a job."""

    @wraps(method)
    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> AsyncProcess:
        return _handle(self, await method(self, *args, **kwargs))

    return call


def processes(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, list[Process]]],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, list[AsyncProcess]]]:
    """Return a method that returns jobs."""

    @wraps(method)
    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> list[AsyncProcess]:
        return [_handle(self, one) for one in await method(self, *args, **kwargs)]

    return call


def schedule(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, Schedule]],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, AsyncSchedule]]:
    """Return a method that returns a schedule."""

    @wraps(method)
    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSchedule:
        return AsyncSchedule(self, await method(self, *args, **kwargs))

    return call


def _handle(scheduler: Client, process: Process) -> AsyncProcess:
    return AsyncProcess(scheduler, process.snapshot, existed=process.existed)
