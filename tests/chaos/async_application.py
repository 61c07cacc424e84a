"""An application in asyncio: it adds the jobs of a storm and waits for each of them, all in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from taskqueue import AsyncProcess, AsyncScheduler, Process
from taskqueue.errors import StoreUnavailable
from taskqueue.model.ids import JobId
from tests.nodes import LIMIT

if TYPE_CHECKING:
    from taskqueue.scheduler.signatures import Entry


class AsyncApplication:
    """Has a thread with an event loop, and in it a task for each job, which waits for the end of the job."""

    def __init__(self, url: str) -> None:
        self._told: dict[JobId, list[str]] = {}
        """How each job has ended as its waits said."""
        self._waits: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._scheduler = AsyncScheduler(url)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def add_jobs(self, jobs: Sequence[Entry]) -> None:
        """Add the jobs and wait for them in the background; raises ``StoreUnavailable``."""
        asyncio.run_coroutine_threadsafe(self._add(jobs), self._loop).result()

    def hear(self) -> None:
        """Wait until every wait has ended."""
        asyncio.run_coroutine_threadsafe(self._hear(), self._loop).result(LIMIT)

    def complaints(self, kept: Sequence[Process]) -> Iterator[str]:
        """Yield in words where the waits have not said once how the job has ended."""
        for process in kept:
            told = self._told.get(process.id, [])
            if told != [process.status.name]:
                yield f"job {process.id} is {process.status.name}, its wait said {told}"

    @property
    def figures(self) -> str:
        """The outcomes of the waits."""
        return f"waits     {dict(Counter(name for names in self._told.values() for name in names))}"

    def close(self) -> None:
        """End the application."""
        asyncio.run_coroutine_threadsafe(self._scheduler.close(), self._loop).result(LIMIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()

    async def _add(self, jobs: Sequence[Entry]) -> None:
        for process in await self._scheduler.add_jobs(jobs):
            if process.id not in self._told:
                self._told[process.id] = []
                self._waits.add(asyncio.create_task(self._wait(process)))

    async def _wait(self, process: AsyncProcess) -> None:
        while not process.is_final:
            with suppress(StoreUnavailable):  # of an outage that took longer than a wait bears
                await process.wait()
        self._told[process.id].append(process.status.name)

    async def _hear(self) -> None:
        await asyncio.gather(*self._waits)
