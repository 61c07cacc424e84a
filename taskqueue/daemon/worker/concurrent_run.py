"""One of the runs that a worker executes at once: its slot, its tasks, its context, and the requests to end it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from taskqueue.daemon.protocol.messages import Key
from taskqueue.daemon.protocol.shared_memory import Entry, WorkerPage
from taskqueue.daemon.worker.interrupts import Shield
from taskqueue.daemon.worker.worker_context import Sender, WorkerContext
from taskqueue.execution.event_loop import BLOCKED_FOR, ROUNDS, awaited
from taskqueue.execution.executor import Ran
from taskqueue.execution.loop_settings import LEFT_FOR, log_left, names_of
from taskqueue.execution.run import Run
from taskqueue.model.job import Interrupted, JobTimeout
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.log_fields import RunFields
from taskqueue.model.record import Failure

CURRENT: ContextVar[ConcurrentRun] = ContextVar("taskqueue_concurrent_run")
"""The run in whose context code runs: its own task and all tasks that it starts."""


class SlotMemory:
    """One run slot in the worker: the memory it shares with the manager, and how many runs it has had."""

    def __init__(self, number: int, page: WorkerPage, start_entry: Entry) -> None:
        self.number = number
        self.page = page
        self.start_entry = start_entry
        self.runs = 0


class ConcurrentRun:
    """A run with its tasks."""

    def __init__(self, run: Run, slot: SlotMemory) -> None:
        self.run = run
        self.slot = slot
        self.number = slot.runs
        self.key: Key = (run.id, run.claims)
        self.interrupts = RunInterrupts(slot.page, slot.runs)
        self.task: RunTask | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        """The tasks that the job has started and that have not ended."""
        self.fields: RunFields | None = None
        """Its log fields."""
        self.is_over = False
        self._is_ending_tasks = False
        self._requested_at: float | None = None
        """When a cancel was requested that the loop has not come to."""

    def enter(self) -> None:
        """Make this the run of the present context."""
        CURRENT.set(self)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Note a task that the job has started; cancel it if the job has ended."""
        if self.is_over:
            task.cancel()
            return
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def note_cancel_request(self, now: float) -> bool:
        """Note the request, and return whether the loop is blocked: it has not handled an earlier one for long."""
        if self._requested_at is None:
            self._requested_at = now
        return now - self._requested_at >= BLOCKED_FOR

    def cancel(self) -> None:
        """Cancel the job's code at its await, or the tasks that it left running, or else its next code."""
        self._requested_at = None
        reason = self.interrupts.stop_reason
        if self.is_over or self.task is None or reason is None:
            return
        if self.interrupts.is_open:
            self.task.cancel(reason)
        elif self._is_ending_tasks:
            for task in self.tasks:
                task.cancel(reason)
        else:
            self.interrupts.is_due = True

    async def forget_cancel(self) -> None:
        """Take a cancel that the job's code has not come to, so that it does not hit what follows."""
        if self.task is not None and self.task.was_canceled:
            self.task.was_canceled = False
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    async def end_tasks(self, within: float = LEFT_FOR) -> str:
        """Cancel the tasks that the job left running, wait for them, and return the names of tasks that still run."""
        left = [task for task in self.tasks if not task.done()]
        if not left:
            return ""
        log_left(left, self.run.id)
        until = time.monotonic() + within
        self._is_ending_tasks = True
        for _ in range(ROUNDS):
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=max(0.0, until - time.monotonic()))
            left = [task for task in self.tasks if not task.done()]
            if not left or time.monotonic() >= until:
                break
        self._is_ending_tasks = False
        self.tasks.difference_update(left)  # they end with their worker
        return names_of(left)


class RunInterrupts(AbstractContextManager[None]):
    """The requests to end one run among others; they come by the loop, or by a signal where the run blocks it."""

    def __init__(self, page: WorkerPage, number: int) -> None:
        self._page = page
        self._number = number
        self.reason = ""
        """Why the run has to end for another reason than a request of the manager."""
        self.is_open = False
        """The job's code is running, or awaits."""
        self.is_due = False
        """A request came while it was not."""
        self.shield = Shield(self)

    @property
    def stop_reason(self) -> str | None:
        """Return why the run has to end; None if it does not."""
        return self._page.stop_reason_of(self._number) or self.reason or None

    @property
    def stopping(self) -> bool:
        """Return whether the run should end by itself."""
        return self._page.is_node_stopping or self.stop_reason is not None

    def __enter__(self) -> None:
        if self.is_due:
            self.is_due = False
            self._interrupt()
        self.is_open = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Do nothing: the run has a task that is canceled."""

    def raise_now(self) -> None:
        """Raise an interrupt in the job's code, which blocks the loop."""
        if self.is_open and not self.shield.depth:
            self._interrupt()

    def raise_due(self) -> None:
        """Do nothing: the next signal comes in a second."""

    def _interrupt(self) -> None:
        reason = self.stop_reason or ""
        raise (JobTimeout if reason == "timeout" else Interrupted)(reason)


class RunTask(asyncio.Task[None]):
    """The task of a run, which only the job's code in it can be canceled: a job may cancel all tasks of the loop."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, interrupts: RunInterrupts
    ) -> None:
        super().__init__(coroutine, loop=loop)
        self._interrupts = interrupts
        self._canceled_by: Run | None = None
        self.was_canceled = False

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task while the job's code runs or awaits."""
        if not self._interrupts.is_open:
            return False
        self.was_canceled = True
        caller = CURRENT.get(None)
        if caller is not None and caller.task is not self:
            self._canceled_by = caller.run
        return super().cancel(msg)

    def end_of(self, ran: Ran) -> Ran:
        """Return the end of the run, interrupted instead of failed where another run has canceled it."""
        by = self._canceled_by
        has_failed = isinstance(ran.outcome, outcomes.Failed) and isinstance(ran.error, asyncio.CancelledError)
        if by is None or not has_failed:
            return ran
        message = (
            f"job {by.id} ({by.job}), which ran in the same event loop, canceled the task of this one: "
            "asyncio.all_tasks() has the tasks of all runs, so let a job cancel only those that it has started"
        )
        failure = Failure(type="taskqueue.Interrupted", message=message)
        return ran._replace(outcome=outcomes.Interrupted(failure=failure))


class ConcurrentContext(WorkerContext):
    """The context of one of many runs: its coroutines are awaited in the task of the run."""

    awaits = staticmethod(awaited)

    def __init__(
        self,
        one: ConcurrentRun,
        channel: Sender,
        scheduler: Callable[[], Any],
        event_loop: Any,
    ) -> None:
        slot = one.slot
        super().__init__(
            one.run, one.number, channel, slot.page, slot.start_entry, one.interrupts, scheduler, lambda: event_loop
        )
        self._one = one

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        coroutine.close()
        raise RuntimeError(f"job {self.id} runs beside others in one event loop: await its coroutines")
