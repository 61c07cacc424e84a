"""The event loop of a worker with many runs, and one of these: its slot, tasks, context, and requests to end it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, cast

from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.messages import Key
from taskqueue.daemon.protocol.shared_memory import Entry, WorkerPage
from taskqueue.daemon.worker.interrupts import StopRequests
from taskqueue.daemon.worker.watched_loop import WatchedLoop
from taskqueue.daemon.worker.worker_context import Sender, WorkerContext
from taskqueue.execution.event_loop import BLOCKED_FOR, LEFT_FOR, ROUNDS, LoopSettings, awaited, log_left, names_of
from taskqueue.execution.executor import Ran
from taskqueue.execution.run import Run
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
        self.interrupts = StopRequests(slot.page, slot.runs)
        self.task: RunTask | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        """The tasks that the job has started and that have not ended."""
        self.fields: RunFields | None = None
        """Its log fields."""
        self.is_over = False
        self._is_ending_tasks = False
        self._requested_at: float | None = None
        """When a cancel was requested that the loop has not handled yet."""

    def enter(self) -> None:
        """Make this the run of the current context."""
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
        """Discard a pending cancel, so that it does not hit the code after the job."""
        if self.task is not None and self.task.was_canceled:
            self.task.was_canceled = False
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    async def end_tasks(self, within: float = LEFT_FOR) -> str:
        """Cancel the tasks that the job left running, wait for them, and return the names of tasks that still run."""
        running = [task for task in self.tasks if not task.done()]
        if not running:
            return ""
        log_left(running, self.run.id)
        until = time.monotonic() + within
        self._is_ending_tasks = True
        for _ in range(ROUNDS):
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=max(0.0, until - time.monotonic()))
            running = [task for task in self.tasks if not task.done()]
            if not running or time.monotonic() >= until:
                break
        self._is_ending_tasks = False
        self.tasks.difference_update(running)  # they end with their worker
        return names_of(running)


class RunTask(asyncio.Task[None]):
    """The task of a run. Only the job's code in it can be canceled, because a job may cancel all tasks of the loop."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, interrupts: StopRequests
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
        """Return the end of the run, interrupted instead of failed if another run has canceled it."""
        by = self._canceled_by
        has_failed = isinstance(ran.outcome, outcomes.Failed) and isinstance(ran.error, asyncio.CancelledError)
        if by is None or not has_failed:
            return ran
        message = (
            f"job {by.id} ({by.job}), which ran in the same event loop, canceled the task of this one: "
            "asyncio.all_tasks() has the tasks of all runs, so a job must cancel only those that it has started"
        )
        failure = Failure(type="taskqueue.Interrupted", message=message)
        return ran._replace(outcome=outcomes.Interrupted(failure=failure))


class ConcurrentContext(WorkerContext):
    """The context of one of many runs: its coroutines are awaited in the task of the run."""

    awaits = staticmethod(awaited)

    def __init__(self, current: ConcurrentRun, channel: Sender, scheduler: Callable[[], Any], event_loop: Any) -> None:
        run, number, slot, interrupts = current.run, current.number, current.slot, current.interrupts
        super().__init__(run, number, channel, slot.page, slot.start_entry, interrupts, scheduler, lambda: event_loop)

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        coroutine.close()
        raise RuntimeError(f"job {self.id} runs beside others in one event loop: await its coroutines")


class ConcurrentLoop(WatchedLoop):
    """An event loop in which each task belongs to the run that has started it."""

    def __init__(self, runs: Mapping[Key, ConcurrentRun]) -> None:
        """Pass the mapping in which the owner keeps the runs in progress."""
        super().__init__()
        self._runs = runs
        self._loop.set_task_factory(cast("Any", self._create_task))
        self._settings = LoopSettings(self._loop)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop itself."""
        return self._loop

    def serve(self, over: asyncio.Future[None]) -> None:
        """Run the loop until the future is done, and raise its error; a task's ``SystemExit`` is for its run alone."""
        while not over.done():
            with suppress(SystemExit, KeyboardInterrupt, RuntimeError):  # or a job has stopped the loop
                self._loop.run_until_complete(over)
        over.result()

    def set_busy(self) -> None:
        """Note that there are runs: the loop is watched."""
        self._job = "runs"
        if not self._is_busy.is_set():
            self._asked_at = 0.0
            self._be_watched()

    def set_idle(self) -> None:
        """Note that there are no runs."""
        self._job = ""
        self._settings.leave_busy_executor()
        self._settings.restore()

    def current(self) -> ConcurrentRun | None:
        """Return the run whose task runs just now; None between tasks."""
        task = None
        with suppress(RuntimeError):
            task = asyncio.current_task(self._loop)
        return next((run for run in tuple(self._runs.values()) if task is run.task or task in run.tasks), None)

    def restore(self, job: str) -> None:
        """Restore the settings of the loop that a job has changed."""
        self._settings.restore(job)

    def _blocking(self) -> str:
        run = self.current()
        self._fields = None if run is None else run.fields
        return f"{run.run.job} {run.run.id}" if run is not None else "one of its callbacks"

    def _create_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **arguments: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **arguments)
        run = CURRENT.get(None)
        if run is not None:
            run.add_task(task)
        return task


class Outgoing:
    """Sends over the channel from any thread of the process; the rest of a message follows when there is room."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._lock = threading.Lock()

    def send(self, *payloads: bytes) -> None:
        """Send the messages together."""
        with self._lock:
            self._channel.send(*payloads)
            is_full = bool(self._channel.unsent)
        if is_full:
            self._loop.call_soon_threadsafe(self._send_later)

    def flush_blocking(self) -> None:
        """Wait until all messages have left this process."""
        with self._lock:
            self._channel.flush_blocking()

    def _send_later(self) -> None:
        self._loop.add_writer(self._channel.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        with self._lock:
            self._channel.flush()
            is_full = bool(self._channel.unsent)
        if not is_full:
            self._loop.remove_writer(self._channel.fileno())
