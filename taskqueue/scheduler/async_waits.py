"""Waits of an event loop for jobs to end: one task reads for all tasks that wait."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from taskqueue.errors import JobFailed, JobNotFound
from taskqueue.insight.records import LAST_LOOK, read
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record, Status
from taskqueue.scheduler.async_steps import AsyncSteps, Threads
from taskqueue.scheduler.connection import Connections
from taskqueue.scheduler.end_listener import Listener
from taskqueue.scheduler.wait import followed, timed_out

if TYPE_CHECKING:  # few waits are of running jobs
    from taskqueue.scheduler.job_wait import JobWait

AT_ONCE = 100
"""Records given to their waiters before other tasks of the loop have their turn: a tenth of a millisecond or so."""


class Waiter:
    """One wait: the pending jobs, the records of ended ones, and its end as a future."""

    def __init__(self, ids: Iterable[JobId], raise_on_error: bool) -> None:
        self.open = dict.fromkeys(ids)
        """The pending jobs, least recently read first."""
        self.ended: dict[JobId, Record] = {}
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._raise_on_error = raise_on_error

    def take(self, id: JobId, record: Record | None) -> None:
        """Note the record of a job as it was read; None if the store does not have it."""
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
                waiter.over.exception()  # retrieved, even if the task was canceled

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
        if self._listener is not None and self._listener.is_closed:  # the store was left, with the waits of its reader
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
                waiters[id] = tuple(one for one in of_job if one is not waiter)
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
                async for found in pages:
                    for number, (id, record) in enumerate(found.items(), 1):
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
    """End all waits, with the error of their reader, or because it was canceled with its loop."""
    for waiter in {waiter for of_job in waiters.values() for waiter in of_job}:
        if error is None:
            waiter.over.cancel()
        elif not waiter.over.done():
            waiter.over.set_exception(error)
