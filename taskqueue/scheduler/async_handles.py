"""The handles that an ``AsyncScheduler`` returns: jobs, events and schedules whose operations are awaited."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from taskqueue.errors import JobNotFound
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.model.schedules import Duration
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.scheduler.event import EventSnapshot
from taskqueue.scheduler.process import JobSnapshot, Process, Result, results
from taskqueue.scheduler.schedule import Schedule, ScheduleSnapshot
from taskqueue.store import Event as StoredEvent

if TYPE_CHECKING:
    from typing_extensions import Self

    from taskqueue.model.log_lines import LogLine
    from taskqueue.scheduler.async_scheduler import AsyncScheduler


class AsyncProcess(JobSnapshot, Generic[Result]):
    """A ``Process`` whose operations are awaited: one job as it was when last read.

    ``await process`` waits for the end and returns the result; it raises ``JobFailed`` if the job ended otherwise.
    """

    def __init__(self, scheduler: AsyncScheduler, record: Record, *, existed: bool = False) -> None:
        self._scheduler = scheduler
        self.snapshot = record
        self.existed = existed

    if TYPE_CHECKING:

        @property
        def result(self) -> Result: ...

    @property
    async def children(self) -> list[AsyncProcess]:
        """To be awaited: the child jobs of this one, read now, without pruned jobs."""
        return [process async for process in self._scheduler.get_jobs({"parent": self.id})]

    @property
    async def dependencies(self) -> dict[JobId, Any]:
        """To be awaited: the result of each job in ``depends_on``, None for one without success; read now."""
        return await self._scheduler.in_thread(results, self._scheduler.blocking, self.depends_on)

    async def refresh(self) -> Self:
        """Read the job again and return this; raise ``JobNotFound`` if it was removed."""
        self.snapshot = (await self._scheduler.get_job(self.id)).snapshot
        return self

    async def wait(self, timeout: Duration | None = None, raise_on_error: bool = False) -> Self:
        """Wait for the final status and return this; see ``Scheduler.wait_for``."""
        await self._scheduler.wait_for([self], timeout=timeout, raise_on_error=raise_on_error)
        return self

    async def cancel(self, reason: str = "") -> Self:
        """Cancel the job and return this; see ``Scheduler.cancel_job``."""
        self.snapshot = (await self._scheduler.cancel_job(self.id, reason)).snapshot
        return self

    async def logs(self) -> list[LogLine]:
        """Return the log lines that are kept with the job, read now; see ``Scheduler.logs``."""
        return await self._scheduler.logs(self.id)

    async def stack(self) -> str:
        """Return where the running job is, asked of its node now; see ``Scheduler.stack``."""
        return await self._scheduler.stack(self.id)

    async def why(self) -> str:
        """Say in sentences why the job is in its current state."""
        return await self._scheduler.why(self.id)

    def __await__(self) -> Generator[Any, Any, Result]:
        yield from self.wait(raise_on_error=True).__await__()
        return self.result


class AsyncEvent(EventSnapshot):
    """An event of a job or of a node; times are aware UTC datetimes."""

    def __init__(self, scheduler: AsyncScheduler, stored: StoredEvent, record: Record | None = None) -> None:
        self._scheduler = scheduler
        self._stored = stored
        self._process = None if record is None else AsyncProcess(scheduler, record)

    @property
    async def process(self) -> AsyncProcess | None:
        """To be awaited: the job as it is when you first ask; None without a job, or if it is gone.

        With a query it is the job as it was when it matched.
        """
        if self._process is None and self.job_id is not None:
            try:
                self._process = await self._scheduler.get_job(self.job_id)
            except JobNotFound:
                return None
        return self._process


class AsyncSchedule(ScheduleSnapshot):
    """A ``Schedule`` whose operations are awaited."""

    def __init__(self, scheduler: AsyncScheduler, schedule: Schedule) -> None:
        self._scheduler = scheduler
        self._schedule = schedule

    @property
    def snapshot(self) -> NamedSchedule:  # type: ignore[override]  # read from the schedule
        """Its state as last read."""
        return self._schedule.snapshot

    async def refresh(self) -> AsyncSchedule:
        """Read it again and return it; raise ``ScheduleNotFound`` if it was removed."""
        await self._scheduler.in_thread(self._schedule.refresh)
        return self

    async def pause(self, reason: str = "") -> AsyncSchedule:
        """Stop it from starting jobs until it is resumed; running jobs continue."""
        await self._scheduler.in_thread(self._schedule.pause, reason)
        return self

    async def resume(self) -> AsyncSchedule:
        """Resume it from now on; missed times are not made up."""
        await self._scheduler.in_thread(self._schedule.resume)
        return self

    async def trigger(self) -> AsyncProcess:
        """Start one of its jobs now, whatever else it does, and return the job."""
        process: Process = await self._scheduler.in_thread(self._schedule.trigger)
        return AsyncProcess(self._scheduler, process.snapshot)

    async def preview(self, count: int = 5) -> list[datetime]:
        """Return the next times, in UTC; if they depend on the ends of runs, as if each run ended at once."""
        return await self._scheduler.in_thread(self._schedule.preview, count)

    async def remove(self) -> None:
        """Remove it; the jobs that it has started stay."""
        await self._scheduler.in_thread(self._schedule.remove)
