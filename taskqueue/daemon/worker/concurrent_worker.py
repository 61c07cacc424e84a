"""The worker process of a class with ``concurrency``: executes many runs at once in one event loop, each in a slot."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from taskqueue.daemon.protocol import messages
from taskqueue.daemon.protocol.channel import ChannelClosed
from taskqueue.daemon.protocol.codec import decode
from taskqueue.daemon.protocol.shared_memory import Entry, WorkerPage
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.worker.concurrent_run import (
    ConcurrentContext,
    ConcurrentLoop,
    ConcurrentRun,
    Outgoing,
    RunTask,
    SlotMemory,
)
from taskqueue.daemon.worker.inspection import LOOKS_EVERY
from taskqueue.daemon.worker.interrupts import UNSAFE_FRAMES, SignalInterrupts
from taskqueue.daemon.worker.worker import SETTLED_WITHIN, Worker
from taskqueue.execution.attempt import attempt, await_hooks
from taskqueue.execution.executor import Ran
from taskqueue.execution.run import Run
from taskqueue.model import log_fields

LOOK_AFTER = 0.1
"""Seconds without a run after which the worker looks for changes that its jobs have made to the process."""

NAMED = 5
"""Maximum number of jobs that are named for a change, of all that ran since the previous check."""


class ConcurrentWorker(Worker):
    """The life of one worker with many run slots."""

    def __init__(self, *, slots: Sequence[tuple[WorkerPage, Entry]], **own: Any) -> None:
        """Pass the arguments of every worker."""
        super().__init__(slots=slots, **own)
        self._interrupts = SharedInterrupts(self._page, self._on_sigterm)
        self._slots = [SlotMemory(number, *slot) for number, slot in enumerate(slots, start=1)]
        self._assigned: deque[int] = deque()
        self._runs: dict[messages.Key, ConcurrentRun] = {}
        self._settled: dict[messages.Key, asyncio.Future[messages.OutcomeSettled]] = {}
        self._is_flush_due = False
        self._heard_at = 0.0
        """When the manager sent the last signal that was handled."""
        self._look_handle: asyncio.TimerHandle | None = None
        self._busy_look: asyncio.TimerHandle | None = None
        self._recent: dict[str, str] = {}
        """The jobs that ran since the last look, each with its class."""

    def _work(self) -> None:
        self._shared_loop = ConcurrentLoop(self._runs)
        self._event_loop = self._shared_loop
        self._loop = self._shared_loop.loop
        self._outgoing = Outgoing(self._channel, self._loop)
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._channel.fileno(), self._on_readable)
        self._shared_loop.serve(self._over)
        self._flush()
        self._channel.flush_blocking()

    # Messages

    def _on_readable(self) -> None:
        try:
            for payload in self._channel.receive():
                match message := decode(payload):
                    case messages.AssignSlots(numbers=numbers):
                        self._assigned.extend(numbers)
                    case Run():
                        self._begin(message)
                    case messages.CheckRuns(given=given):
                        self._check_received(sum(slot.runs for slot in self._slots), given)
                    case messages.OutcomeSettled(id=id, claims=claims):
                        if (id, claims) in self._settled:
                            self._settled.pop((id, claims)).set_result(message)
        except ChannelClosed as closed:
            self._loop.remove_reader(self._channel.fileno())
            self._fail(closed)

    def _begin(self, run: Run) -> None:
        slot = self._slots[self._assigned.popleft() - 1]
        slot.runs += 1
        if self._look_handle is not None:
            self._look_handle.cancel()
            self._look_handle = None
        begun = ConcurrentRun(run, slot)
        self._runs[begun.key] = begun
        self._recent[run.id] = run.job
        if self._busy_look is None:
            self._busy_look = self._loop.call_later(LOOKS_EVERY, self._look_while_busy)
        self._shared_loop.set_busy()
        begun.task = RunTask(self._execute(begun), self._loop, begun.interrupts)
        begun.task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:  # not of a job: its errors are outcomes
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)
            self._loop.stop()  # a future with a SystemExit does not

    def _post_soon(self, message: Any) -> None:
        """Send a message with all others of this turn of the loop."""
        self._post(message)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self._unsent and self._event_loop is not None:
            self._outgoing.send(*self._unsent)
            self._unsent.clear()
        super()._flush()

    # Runs

    async def _execute(self, current: ConcurrentRun) -> None:
        """Execute one run from its start to the end of its hooks."""
        run = current.run
        current.enter()
        if run.not_before is not None:
            await asyncio.sleep(max(0.0, run.not_before - time.monotonic()))
        child_process.title(f"worker {run.job.rpartition(':')[2]}, {len(self._runs)} at once")
        context = ConcurrentContext(current, self._outgoing, self._open_scheduler, self._shared_loop)
        current.fields = context.fields
        if self._loader.run_hooks is not None:
            context.set_hooks(*self._loader.run_hooks)
        log_fields.CURRENT.set(current.fields)
        ran = await attempt(context, self._loader, current.interrupts)
        if current.task is not None and current.task.was_canceled:
            ran = current.task.end_of(ran)
        await current.forget_cancel()
        await self._end_tasks(current)
        self._unsent += context.close()
        ended = self._ended(run, ran, context)
        self._post_soon(ended)
        if ended.confirm:
            await self._await_hooks(current, ran, context)
        current.is_over = True
        del self._runs[current.key]
        self._after_run(run)

    async def _await_hooks(self, current: ConcurrentRun, ran: Ran, context: ConcurrentContext) -> None:
        answer = self._settled[current.key] = self._loop.create_future()
        settled = None
        with suppress(asyncio.TimeoutError):
            settled = await asyncio.wait_for(answer, SETTLED_WITHIN)
        self._settled.pop(current.key, None)
        status = self._accepted(settled, current.run, context)
        if status is not None:
            await await_hooks(ran, status, context, current.interrupts)
            await current.forget_cancel()
            await self._end_tasks(current)
        self._post_soon(messages.Ready(slot=current.slot.number))

    async def _end_tasks(self, current: ConcurrentRun) -> None:
        """End the tasks that a job left running; ask to be replaced if some do not end."""
        if not current.tasks:
            return
        names = await current.end_tasks()
        if names and not self._to_be_replaced:
            self._last_run = current.run
            self._request_replacement(f"tasks left by a job ignored cancellation: {names}")
            self._flush()

    def _after_run(self, run: Run) -> None:
        """Reset the changes of the run to the loop; inspect the process if no run is left."""
        self._last_run = run
        self._interrupts.look()
        self._shared_loop.restore(run.id)
        if self._runs:
            return
        self._shared_loop.set_idle()
        if self._interrupts.leaving:
            self._leave()
        self._look_handle = self._loop.call_later(LOOK_AFTER, self._look)

    def _look(self) -> None:
        """Inspect the process while it has no run, once, and again if a job left a process running."""
        self._look_handle = None
        self._inspect()
        if not self._to_be_replaced and self._inspection.look_again_after is not None:
            self._look_handle = self._loop.call_later(self._inspection.look_again_after, self._look)

    def _look_while_busy(self) -> None:
        """Look for changes while there are runs, and ask to be replaced: nothing can be reset for running jobs."""
        self._busy_look = None
        reason = "" if self._to_be_replaced or not self._runs else self._inspection.look_at_shared()
        if reason:
            ids, classes = [*self._recent], ", ".join(sorted({*self._recent.values()}))
            more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
            reason = f"{reason} while these jobs ran: {', '.join(ids[:NAMED])}{more}"
            self._post_soon(messages.NeedsReplacement(id="", job=classes, reason=reason, is_patient=True))
        self._recent = {run.run.id: run.run.job for run in self._runs.values()}
        if self._runs:
            self._busy_look = self._loop.call_later(LOOKS_EVERY, self._look_while_busy)

    # Signals

    def _tasks_of(self, job: str) -> Iterable[tuple[str, Any]]:
        """Yield the tasks of the job, then those of other runs that must end: one answer serves all of them."""
        for (id, _), current in sorted(self._runs.copy().items(), key=lambda run: run[0][0] != job):
            if id == job or current.interrupts.stop_reason is not None:
                yield from ((id, task) for task in (current.task, *current.tasks) if task is not None)

    def _on_sigterm(self, _signum: int, frame: FrameType | None) -> None:
        """Cancel the runs that must end; if one of them blocks the loop, interrupt that run."""
        self._interrupts.on_signal(frame)
        now, signalled_at = time.monotonic(), self._page.signalled_at
        runs = tuple(self._runs.values())
        is_unheard, self._heard_at = signalled_at != self._heard_at, signalled_at
        is_ours = (
            is_unheard or now - signalled_at <= messages.SIGNAL_IS_OURS_FOR
        )  # unheard: the host may have been suspended
        if not is_ours or self._interrupts.leaving:
            self._interrupts.leaving = True
            for run in runs:
                run.interrupts.reason = run.interrupts.reason or "shutdown"
            if not runs:
                self._loop.call_soon_threadsafe(self._leave)
        ending = [run for run in runs if run.interrupts.stop_reason is not None]
        is_blocked = False
        for run in ending:
            is_blocked |= run.note_cancel_request(now)
            self._loop.call_soon_threadsafe(run.cancel)
        if is_blocked and frame is not None and frame.f_code not in UNSAFE_FRAMES:
            current = self._shared_loop.current()
            if current in ending and current is not None:
                current.interrupts.raise_now()

    def _leave(self) -> None:
        if not self._runs and not self._over.done():
            self._over.set_result(None)


class SharedInterrupts(SignalInterrupts):
    """Handles SIGTERM for all runs of a worker: each has its own requests to end (``ConcurrentRun.interrupts``)."""

    def __init__(self, page: WorkerPage, on_sigterm: Any) -> None:
        super().__init__(page)
        self._on_sigterm = on_sigterm  # type: ignore[method-assign]
