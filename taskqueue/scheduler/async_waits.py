"""The asyncio half of the client: its methods and steps in threads, and waits that share one reading task."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from functools import partial, wraps
from threading import Thread
from typing import TYPE_CHECKING, Any, Concatenate, Generic, TypeVar, cast

from typing_extensions import ParamSpec

from taskqueue.errors import JobFailed, JobNotFound
from taskqueue.insight.records import LAST_LOOK, read
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record, Status
from taskqueue.scheduler.async_handles import AsyncProcess
from taskqueue.scheduler.connection import Connections
from taskqueue.scheduler.end_listener import Listener
from taskqueue.scheduler.poll import NUDGED, Item, Poll, Ready, Steps
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.scheduler.wait import followed, timed_out

if TYPE_CHECKING:  # few waits are of running jobs
    from taskqueue.scheduler.async_scheduler import AsyncScheduler
    from taskqueue.scheduler.job_wait import JobWait

OF_EMBEDDED = 1
"""Threads for an embedded store: it has one connection, and more threads only take turns with the event loop."""

OF_SERVER = 4
"""Threads for a store on the network: they wait for answers at the same time."""


_END: Any = object()


class Threads:
    """The threads of a scheduler; a forked child has its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_process: tuple[int, ThreadPoolExecutor] | None = None

    def submit(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Let a thread make the call."""
        if self._of_process is None or self._of_process[0] != os.getpid():
            self._of_process = os.getpid(), ThreadPoolExecutor(self._most, thread_name_prefix="taskqueue")
        return self._of_process[1].submit(call, *args, **kwargs)

    async def close(self) -> None:
        """Wait for the calls that have started and for the end of the threads, in a thread that ends last."""
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
        """Yield the items; clean up no matter where the task is canceled."""
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
        """End the current poll, or else the next one, at once."""
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


AT_ONCE = 100
"""How many records go to their waiters before other tasks of the loop run: about a tenth of a millisecond's worth."""


class Waiter:
    """One wait: the pending jobs, the records of ended ones, and its end as a future."""

    def __init__(self, ids: Iterable[JobId], raise_on_error: bool) -> None:
        self.open = dict.fromkeys(ids)
        """The pending jobs, least recently read first."""
        self.ended: dict[JobId, Record] = {}
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._raise_on_error = raise_on_error

    def take(self, id: JobId, record: Record | None) -> None:
        """Note the record of a job as it was read; None if the store has none."""
        if self.over.done() or id not in self.open:
            return
        if record is None:
            self.over.set_exception(JobNotFound(id))
            return
        del self.open[id]
        if record.status.is_pending:
            self.open[id] = None
        else:
            self.ended[id] = record
            if self._raise_on_error and record.status is not Status.DONE:
                self.over.set_exception(JobFailed(record.id, record.status.name, record.error))
            elif not self.open:
                self.over.set_result(None)


class AsyncWaits:
    """The waits of one event loop."""

    def __init__(self, connections: Connections, threads: Threads) -> None:
        self._connections = connections
        self._threads = threads
        self._listener: Listener | None = None
        self._waiters: dict[JobId, tuple[Waiter, ...]] = {}
        self._changes: deque[tuple[Collection[JobId], bool]] = deque()
        self._steps: AsyncSteps[Mapping[JobId, Record | None]] | None = None
        self._reader: asyncio.Task[None] | None = None

    async def ends(
        self, ids: Collection[JobId], timeout: float | None, raise_on_error: bool, job_wait: JobWait | None = None
    ) -> dict[JobId, Record]:
        """Return the record of each job once all have ended; raise as ``Scheduler.wait_for`` does.

        ``job_wait`` watches the wait of a running job.
        """
        waiter = Waiter(ids, raise_on_error)
        try:
            if timeout != 0:
                self._add(waiter, ids)
                await self._over(waiter, timeout, job_wait)
            if not waiter.over.done():  # a job that ended in time has ended, even before its event arrives
                look_at = [*waiter.open]
                records = await self._threads.call(self._read, look_at)
                for record in records:
                    waiter.take(record.id, record)
                if not waiter.over.done() and timeout is not None:
                    still_open = [id for id in ids if id in waiter.open]
                    unread, store = len(look_at) - len(records), self._connections.store
                    raise await self._threads.call(timed_out, store, still_open, timeout, unread)
            waiter.over.result()
            return waiter.ended
        finally:
            self._remove(waiter, ids)
            if not waiter.over.cancel():
                waiter.over.exception()  # the exception is retrieved, even if the task was canceled

    async def _over(self, waiter: Waiter, timeout: float | None, job_wait: JobWait | None) -> None:
        """Wait until the waiter's jobs have ended, or for the timeout."""
        if job_wait is None:
            await asyncio.wait([waiter.over], timeout=timeout)
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while not waiter.over.done():
            left = job_wait.seconds if deadline is None else min(job_wait.seconds, deadline - time.monotonic())
            if deadline is not None and left <= 0 and time.monotonic() >= deadline:
                return
            await asyncio.wait([waiter.over], timeout=max(0.0, left))
            if not waiter.over.done() and not job_wait.seconds:
                await self._threads.call(job_wait.look, [*waiter.open])

    def _read(self, ids: Collection[JobId]) -> list[Record]:
        return read(self._connections.store, ids, time.monotonic() + LAST_LOOK)

    def _add(self, waiter: Waiter, ids: Collection[JobId]) -> None:
        if self._listener is not None and self._listener.is_closed:  # its store was closed, and its waits with it
            self._listener = self._reader = self._steps = None
            self._waiters, self._changes = {}, deque()
        waiters, alone = self._waiters, (waiter,)
        for id in ids:
            waiters[id] = waiters.get(id, ()) + alone
        self._changes.append((ids, True))  # also of a job that is watched: it is read for each new wait
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_for_all(waiters, self._changes))
        elif self._steps is not None:
            self._steps.nudge()

    def _remove(self, waiter: Waiter, ids: Iterable[JobId]) -> None:
        waiters, alone, gone = self._waiters, (waiter,), []
        for id in ids:
            of_job = waiters.get(id, ())
            if of_job == alone:
                del waiters[id]
                gone.append(id)
            elif waiter in of_job:
                waiters[id] = tuple(other for other in of_job if other is not waiter)
        if gone:
            self._changes.append((gone, False))
        if not self._waiters and self._steps is not None:
            self._steps.nudge()

    async def _read_for_all(
        self, waiters: Mapping[JobId, tuple[Waiter, ...]], changes: deque[tuple[Collection[JobId], bool]]
    ) -> None:
        """Give each waiter the records of its jobs until nobody waits, or until the scheduler leaves the store."""
        try:
            if self._listener is None or self._listener.is_closed:
                self._listener = await self._threads.call(self._connections.listener_of_loop)
                weakref.finalize(self, self._listener.close)  # the loop of these waits is gone
            store = self._connections.store
            steps = AsyncSteps(followed(store, self._listener, changes), self._threads)
            self._steps = steps
            async with aclosing(steps.items()) as pages:
                async for records in pages:
                    for number, (id, record) in enumerate(records.items(), 1):
                        for waiter in waiters.get(id, ()):
                            waiter.take(id, record)
                        if number % AT_ONCE == 0:
                            await asyncio.sleep(0)
                    if not waiters:
                        return
        except Exception as error:
            _end_all(waiters, error)
        finally:
            _end_all(waiters, None)
            if self._reader is asyncio.current_task():
                self._reader = self._steps = None


def _end_all(waiters: Mapping[JobId, tuple[Waiter, ...]], error: Exception | None) -> None:
    """End all waits, with the error of their reader, or because that was canceled with its loop."""
    for waiter in {waiter for of_job in waiters.values() for waiter in of_job}:
        if error is None:
            waiter.over.cancel()
        elif not waiter.over.done():
            waiter.over.set_exception(error)


P = ParamSpec("P")
R = TypeVar("R")
Handle = TypeVar("Handle")


def plain(
    method: Callable[Concatenate[Scheduler, P], R],
) -> Callable[Concatenate[AsyncScheduler, P], Coroutine[Any, Any, R]]:
    """Return the method as an awaitable one."""

    @wraps(method)
    async def call(self: AsyncScheduler, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.in_thread(partial(method, self.blocking), *args, **kwargs)

    return call


def long(
    method: Callable[Concatenate[Scheduler, P], R],
) -> Callable[Concatenate[AsyncScheduler, P], Coroutine[Any, Any, R]]:
    """Return a method that may take long as an awaitable one: in its own thread, not one of the few."""

    @wraps(method)
    async def call(self: AsyncScheduler, /, *args: P.args, **kwargs: P.kwargs) -> R:
        await self.begin_callbacks()
        return await asyncio.to_thread(method, self.blocking, *args, **kwargs)

    return call


def returning(
    convert: Callable[[AsyncScheduler, R], Handle],
    method: Callable[Concatenate[AsyncScheduler, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[AsyncScheduler, P], Coroutine[Any, Any, Handle]]:
    """Return the method with its result converted into a handle whose operations are awaited, or a list of handles."""

    @wraps(method)
    async def call(self: AsyncScheduler, /, *args: P.args, **kwargs: P.kwargs) -> Handle:
        return convert(self, await method(self, *args, **kwargs))

    return call


def process(scheduler: AsyncScheduler, process: Process) -> AsyncProcess:
    """Return the handle of a job."""
    return AsyncProcess(scheduler, process.snapshot, existed=process.existed)


def processes(scheduler: AsyncScheduler, processes: Iterable[Process]) -> list[AsyncProcess]:
    """Return the handles of jobs."""
    return [process(scheduler, job) for job in processes]
