"""Runs a job's coroutines in an event loop, where a request to end the run cancels the job's task.

The settings of the loop that the job has changed are reset for the jobs that follow.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from taskqueue.execution.executor import came_up_after
from taskqueue.execution.job_context import Interrupts
from taskqueue.model.job import Interrupted, JobTimeout
from taskqueue.model.log_fields import CURRENT

log = logging.getLogger(__name__)

NAMED = 3
"""Maximum number of tasks left running by a job that the log names."""

LEFT_FOR = 10.0
"""Maximum number of seconds to wait, at the end of a job, for tasks that it left running and that do not end."""

ROUNDS = 100
"""How often the tasks that a job left running are canceled; canceled tasks may start others."""

BLOCKED_FOR = 0.5
"""Seconds after which a request to end that the loop has not handled means that the job blocks the loop."""


class EventLoop:
    """An event loop that successive runs share, so that connections which a module keeps open stay usable."""

    def __init__(self, left_for: float = LEFT_FOR) -> None:
        """``left_for`` is how many seconds the tasks that a job left running may take to end."""
        self._left_for = left_for
        self._open()
        self._task: asyncio.Task[Any] | None = None
        """The task of the current run."""
        self._requested_at: float | None = None
        """When a cancel was requested that the loop has not handled yet."""

    def run(self, coroutine: Coroutine[Any, Any, Any], interrupts: Interrupts) -> Any:
        """Return the result of the coroutine, after ending all tasks that it left running.

        Raise ``Interrupted`` if it ends by ``CancelledError`` after a request to end. A job that blocks the loop is
        interrupted as one without a loop is, by the next signal.
        """
        if self._loop.is_closed():  # by the previous run
            self._open()
        task = self._task = self._loop.create_task(coroutine)
        self._requested_at = None
        interrupts.deliver_to(partial(self._request_cancel, task))
        try:
            try:
                return self._run_until_complete(task)
            finally:
                self._cancel_rest()
        except BaseException as error:
            if task.done() and not task.cancelled():
                task.exception()  # otherwise asyncio logs that a SystemExit was never retrieved
            interrupt = as_interrupt(error, interrupts)
            if interrupt is not None:
                raise interrupt from interrupt.__cause__
            raise
        finally:
            self._task = None
            self._settings.leave_busy_executor()
            self._settings.restore()

    def _run_until_complete(self, task: asyncio.Task[Any]) -> Any:
        """Return the result of the task; keep running if this job, or a callback of an earlier one, stops the loop."""
        while True:
            try:
                return self._loop.run_until_complete(task)
            except RuntimeError:
                if task.done() or self._loop.is_closed() or has_running_loop():
                    raise
            except SystemExit as error:
                if task.done() or not _is_of_earlier_run(error):
                    raise
                log.warning("ignored SystemExit(%s) of a callback that an earlier job left in the event loop", error)

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._settings = LoopSettings(self._loop)

    def close(self) -> None:
        """Close the loop and any remaining asynchronous generators."""
        if self._loop.is_closed():
            return
        self._run_until_complete(self._loop.create_task(self._loop.shutdown_asyncgens()))
        self._loop.close()

    def _request_cancel(self, task: asyncio.Task[Any], reason: str) -> bool:
        """Make the loop cancel the task; return False if it is blocked. Called by a signal handler."""
        if self._loop.is_closed():
            return False
        now = time.monotonic()
        if self._requested_at is not None and now - self._requested_at >= BLOCKED_FOR:
            return False
        self._requested_at = self._requested_at or now
        self._loop.call_soon_threadsafe(self._cancel, task, reason)
        return True

    def _cancel(self, task: asyncio.Task[Any], reason: str) -> None:
        """Cancel the task, or the tasks that it left running."""
        if task is not self._task:  # the request came after the run had ended
            return
        self._requested_at = None
        tasks: Iterable[asyncio.Task[Any]] = asyncio.all_tasks(self._loop) if task.done() else (task,)
        for running in tasks:
            running.cancel(reason)

    def _cancel_rest(self) -> None:
        """End the tasks left running by the job; close the loop if some do not end, or the next job gets them."""
        tasks = asyncio.all_tasks(self._loop)
        if not tasks:
            return
        if self._task is None or self._task.done():
            log_left(tasks)
        exited: SystemExit | None = None
        until = time.monotonic() + self._left_for
        for _ in range(ROUNDS):
            for task in tasks:
                task.cancel()
            try:
                ended = asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))
                self._run_until_complete(self._loop.create_task(ended))
            except SystemExit as error:  # from one of them; the others must still be ended
                exited = exited or error
            tasks = asyncio.all_tasks(self._loop)
            if not tasks or time.monotonic() >= until:
                break
        if tasks:
            log_kept(tasks)
            self._loop.close()
        if exited is not None:
            raise exited


def _is_of_earlier_run(error: SystemExit) -> bool:
    """Return whether a callback of the loop raised it that another run than the current one has scheduled."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        handle: Any = frame.f_locals.get("self")
        if isinstance(handle, asyncio.Handle):
            context: Any = handle._context  # type: ignore[attr-defined]  # noqa: SLF001 - only this tells whose it is
            return context.get(CURRENT) is not CURRENT.get()
    return False


def has_running_loop() -> bool:
    """Return whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def as_interrupt(error: BaseException, interrupts: Interrupts) -> Interrupted | None:
    """Return the interrupt to raise for this error; None if no request to end caused it.

    It replaces a ``CancelledError`` and is raised in the same place; any other error becomes its cause.
    """
    reason = interrupts.stop_reason
    if reason is None or not came_up_after(error, asyncio.CancelledError):
        return None
    interrupt = (JobTimeout if reason == "timeout" else Interrupted)(reason)
    if isinstance(error, asyncio.CancelledError):
        return interrupt.with_traceback(error.__traceback__)
    interrupt.__cause__ = error
    return interrupt


async def awaited(coroutine: Coroutine[Any, Any, Any], interrupts: Interrupts) -> Any:
    """Await a coroutine in the running loop and return its result; raise ``Interrupted`` as ``run`` does."""
    try:
        return await coroutine
    except BaseException as error:
        interrupt = as_interrupt(error, interrupts)
        if interrupt is not None:
            raise interrupt from interrupt.__cause__
        raise
    finally:
        _forget_cancel()


def _forget_cancel() -> None:
    """Clear the task's count of cancel requests, so that hooks may use ``asyncio.timeout`` (Python 3.11 and later)."""
    task: Any = asyncio.current_task()
    while getattr(task, "cancelling", lambda: 0)():
        task.uncancel()


def run_alone(coroutine: Coroutine[Any, Any, Any], interrupts: Interrupts) -> Any:
    """Run the coroutine in its own event loop: in this thread, or in another if a loop is already running here."""
    if not has_running_loop():
        return _run_alone(coroutine, interrupts)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(contextvars.copy_context().run, _run_alone, coroutine, interrupts).result()


def _run_alone(coroutine: Coroutine[Any, Any, Any], interrupts: Interrupts) -> Any:
    loop = EventLoop()
    try:
        return loop.run(coroutine, interrupts)
    finally:
        loop.close()


class _Threads(ThreadPoolExecutor):
    """The threads of an event loop, which know their unfinished calls."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self.unfinished: set[Future[Any]] = set()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(function, *args, **kwargs)
        self.unfinished.add(future)
        future.add_done_callback(self.unfinished.discard)  # before asyncio hears of it
        return future


class LoopSettings:
    """The settings of an event loop before the first job. Its timers are left alone: connection pools have some."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Any = loop
        self._executor: Any = _Threads()
        loop.set_default_executor(self._executor)
        self._factory = loop.get_task_factory()
        self._is_debug = loop.get_debug()

    def leave_busy_executor(self) -> None:
        """Make the next run use a new executor if the last one has left most threads of the present one busy.

        They may never end, as calls without a timeout, and calls of the next run would wait for them.
        """
        number = len(self._executor.unfinished)
        if 2 * number > self._executor._max_workers:  # noqa: SLF001
            log.warning("a job has left %d calls unfinished in threads", number)
            self._executor.shutdown(wait=False)

    def restore(self, job: str = "") -> None:
        """Reset the settings that jobs can change; log which of them ``job`` had changed."""
        loop, changed = self._loop, list[str]()
        if self._executor._shutdown:  # noqa: SLF001
            self._executor = _Threads()
        if not loop.is_closed():
            if getattr(loop, "_executor_shutdown_called", False):
                loop._executor_shutdown_called = False  # noqa: SLF001
                changed.append("default executor")
            loop.set_default_executor(self._executor)  # there is no way to read which one it has
        if loop.get_task_factory() != self._factory:
            loop.set_task_factory(self._factory)
            changed.append("task factory")
        if loop.get_exception_handler() is not None:
            loop.set_exception_handler(None)
            changed.append("exception handler")
        if loop.get_debug() != self._is_debug:
            loop.set_debug(self._is_debug)
            changed.append("debug mode")
        if changed:
            log.info("restored what a job had changed in its event loop: %s%s", " and ".join(changed), _of(job))


def log_left(tasks: Collection[asyncio.Task[Any]], job: str = "") -> None:
    """Log that these tasks, left running by ``job``, are canceled."""
    log.warning("canceling the tasks that a job left running: %s%s", names_of(tasks), _of(job))


def log_kept(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Log that these tasks ignored their cancellation, and that their loop is therefore closed."""
    log.warning("closing an event loop: tasks left running by a job ignored cancellation: %s", names_of(tasks))


def names_of(tasks: Collection[asyncio.Task[Any]]) -> str:
    """Return the names of the functions that run in the first few tasks."""
    names = [str(getattr(task.get_coro(), "__qualname__", task.get_name())) for task in list(tasks)[:NAMED]]
    return ", ".join(names) + ("" if len(tasks) <= NAMED else f" and {len(tasks) - NAMED} more")


def _of(job: str) -> str:
    return f": job {job}" if job else ""
