"""The job of a run as code outside of its class has it: a task, what a job calls, and hooks."""

from __future__ import annotations

from typing import Any

from taskqueue.errors import NoCurrentJob
from taskqueue.model.job import RunFacilities
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.run_context import RunContext
from taskqueue.model.serializer import decode


class RunningJob(RunFacilities):
    """The job of a run, as ``current_job()``, tasks with ``context=True`` and run hooks have it.

    It has what a ``Job`` has on ``self``; ``data`` and ``state`` are copies each time, as they are stored.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context

    @property
    def job(self) -> str:
        """The import path of its class or function."""
        return self._running.fields.job

    @property
    def data(self) -> Any:
        """The data as they are stored, a copy each time."""
        return decode(self._running.data)

    @property
    def state(self) -> Any:
        """The state of the last ``checkpoint`` before this run, as it is stored, a copy each time; None without."""
        text = self._running.state
        return None if text is None else decode(text)

    @property
    def queue(self) -> str:
        """The queue."""
        return self._running.fields.queue

    def __repr__(self) -> str:
        return f"<RunningJob {self.job} {self.id}, attempt {self.attempt}>"


def current_job() -> RunningJob:
    """Return the job whose run calls this: a task, a method of a job, a hook, or any code that these call.

    Tasks of asyncio, and threads that a job starts in a worker, belong to its run; elsewhere a thread does if it was
    started with ``contextvars.copy_context().run``. Raises ``NoCurrentJob`` outside of a run, and after its end.
    """
    fields = CURRENT.get()
    if fields is None or fields.context is None:
        raise NoCurrentJob(
            "no job is running here: call current_job() in a task, in a job, or in code that one of them calls; catch "
            "NoCurrentJob in code that is also called elsewhere"
        )
    context = fields.context()
    if context is None:
        raise NoCurrentJob(f"job {fields.job_id} has ended, but this code is still running: end it before the job ends")
    return RunningJob(context)
