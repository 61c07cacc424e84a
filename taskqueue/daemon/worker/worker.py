"""The worker process: executes the runs that its manager sends, one at a time, and reports how each ended."""

from __future__ import annotations

import logging
import os
import select
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskqueue.daemon.protocol.channel import Channel, ChannelBroken, ChannelClosed
from taskqueue.daemon.protocol.codec import decode, encode, outcome_fields
from taskqueue.daemon.protocol.messages import (
    CheckRuns,
    Ended,
    Message,
    NeedsReplacement,
    OutcomeSettled,
    Ready,
    RunHook,
    StartupFailed,
    changed,
    run_of,
)
from taskqueue.daemon.protocol.shared_memory import Entry, WorkerPage
from taskqueue.daemon.protocol.stack_file import StackFile
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime import child_process, child_setup, leftovers
from taskqueue.daemon.settings import Settings
from taskqueue.daemon.worker import run_threads
from taskqueue.daemon.worker.inspection import Inspection
from taskqueue.daemon.worker.interrupts import SignalInterrupts
from taskqueue.daemon.worker.job_loader import JobLoader
from taskqueue.daemon.worker.stack_dump import StackDump, running_tasks
from taskqueue.daemon.worker.worker_context import WorkerContext
from taskqueue.execution import log_capture, sentry
from taskqueue.execution.attempt import call_hooks, run_attempt
from taskqueue.execution.executor import Ran
from taskqueue.execution.failures import brief
from taskqueue.execution.run import Run
from taskqueue.execution.run_hooks import RunHooks
from taskqueue.exit_codes import Exit
from taskqueue.model import log_fields
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.record import Status
from taskqueue.store.open import database_of

if TYPE_CHECKING:  # asyncio is imported for async jobs only
    from taskqueue.daemon.worker.watched_loop import WatchedLoop

log = logging.getLogger(__name__)

SETTLED_WITHIN = 30.0
"""Seconds that a worker waits for an outcome to be settled; after that it skips the hooks."""


class Worker:
    """The life of one worker process."""

    def __init__(
        self,
        *,
        channel: Channel,
        slots: Sequence[tuple[WorkerPage, Entry]],
        permits: StartPermits,
        signal_pipe: int,
        stack_file: StackFile,
        url: str,
        bootstrap: Path | None,
        settings: Settings,
    ) -> None:
        """``slots`` has the page and the entry of each run slot; ``bootstrap`` is the file without links."""
        self._channel = channel
        self._page, self._start_entry = slots[0]
        self._permits = permits
        self._signal_pipe = signal_pipe
        self._stack_file = stack_file
        self._url = url
        self._bootstrap = bootstrap
        self._capture_output = settings.capture_output
        self._interrupts = SignalInterrupts(self._page)
        self._pid = os.getpid()
        self._number = 0
        self._unsent: list[bytes] = []
        self._received_early: deque[Message] = deque()
        self._loader = JobLoader(allow=settings.allow, scheduler=self._open_scheduler)
        self._scheduler: Any = None
        self._event_loop: WatchedLoop | None = None
        self._last_run: Run | None = None
        self._to_be_replaced = False

    def run(self) -> int:
        """Execute runs until the manager closes the channel or the worker must exit; return the exit status."""
        self._pid = os.getpid()
        self._interrupts.install(self._signal_pipe)
        stack_dump = StackDump(self._stack_file, self._interrupts.shield, self._tasks_of)
        stack_dump.install()
        self._interrupts.on_signal = stack_dump.answer
        if not leftovers.mark_worker():  # its orphans go to the manager, which could not tell whose they are
            child_process.become_subreaper()
        log_fields.install()
        run_threads.install()
        log_capture.attach()
        child_process.title("worker starting")
        child_process.allow_signals()
        if self._bootstrap is not None and not self._boot(self._bootstrap):
            return Exit.BOOTSTRAP
        if self._capture_output:
            log_capture.capture_output()
        self._inspection = Inspection(database_of(self._url), self._signal_pipe)
        self._loader.importing = self._inspection.importing
        self._loader.keeping_settings = self._inspection.keeping_settings
        self._send(Ready())
        try:
            self._work()
        except ChannelBroken as broken:
            log.error("a worker is exiting because a job read from or wrote to its descriptors: %s", broken)
            return child_setup.CRASHED
        except ChannelClosed:
            log.debug("a worker exits")
        finally:
            sentry.send()
        if self._scheduler is not None:
            self._scheduler.close()
        if self._event_loop is not None:
            self._event_loop.close()
        return Exit.OK

    def _boot(self, path: Path) -> bool:
        """Run the bootstrap file as a module; return False if it fails."""
        try:
            self._loader.boot(path)
        except BaseException as error:
            log.exception("the bootstrap file %s failed", path)
            self._send(StartupFailed(reason=f"the bootstrap file {path} failed: {brief(error)}", bootstrap=True))
            self._channel.flush_blocking()
            return False
        return True

    def _work(self) -> None:
        while not self._interrupts.leaving:
            message = self._next()
            match message:
                case Run():  # context variables that jobs and hooks set end with the run
                    self._inspection.settings.call(self._handle_run, message, self._loader.run_hooks)
                case RunHook():
                    self._loader.load_hook(message.name, message.source)
                    self._inspection.settings.call(self._handle_run, run_of(message))
                case CheckRuns(given=given) if not self._to_be_replaced:
                    self._check_received(self._number, given)
                    self._send(Ready())
            if self._interrupts.stop_reason is not None:  # leftovers of the job end with this process
                break
        self._flush()
        self._channel.flush_blocking()

    def _next(self) -> Message | None:
        """Return the next message; None if the worker may have to exit instead."""
        if self._received_early:
            return self._received_early.popleft()
        payload = self._channel.take() or self._channel.wait(0)  # the next run may have come during the last one
        if payload is None:
            self._flush()  # first: a caller may wait for the result of this job
            os.sched_yield()  # the manager, which hands on the end of the last run, often waits for this processor
            self._interrupts.look()
            self._inspect()
            may_be_busy = self._inspection.has_left_threads
            with self._inspection.idle() if may_be_busy else nullcontext():
                payload = self._channel.wait(self._inspection.look_again_after, wake_on=self._interrupts.wake_up)
            if may_be_busy and (reason := self._inspection.of_threads()):
                self._replace(reason)
        return None if payload is None else decode(payload)

    def _check_received(self, received: int, given: int) -> None:
        """Raise ``ChannelBroken`` if not all runs have arrived: a job has read the others."""
        if received != given:
            raise ChannelBroken(f"{given} runs were sent to this worker, but {received} arrived")

    def _inspect(self) -> None:
        """Reset the changes of the last run to the worker, and ask to be replaced if that is impossible."""
        child_process.title("worker idle")
        if self._last_run is not None and not self._to_be_replaced:
            reason = self._inspection.look(self._last_run.id)
            if reason:
                self._replace(reason)

    def _replace(self, reason: str) -> None:
        """Ask to be replaced, between two runs."""
        if self._last_run is not None and not self._to_be_replaced:
            self._request_replacement(reason)
            self._flush()

    def _handle_run(self, run: Run, hooks: RunHooks | None = None) -> None:
        """Execute the run, unless the manager has revoked it."""
        if self._to_be_replaced:  # the manager is about to requeue it
            return
        self._number += 1
        if not self._permits.take(self._number):
            self._send(Ready(missed=self._number))
            return
        self._interrupts.begin(self._number)
        child_process.title(f"worker {run.job.rpartition(':')[2]} {run.id}")
        if self._unsent or self._channel.unsent:  # the end of the previous run, before the start of this one
            self._flush()
            self._channel.flush_blocking()
        if run.not_before is not None:
            self._wait_until(run.not_before)
        context = WorkerContext(
            run,
            self._number,
            self._channel,
            self._page,
            self._start_entry,
            self._interrupts,
            self._open_scheduler,
            self._open_event_loop,
        )
        if hooks is not None:
            context.set_hooks(*hooks)
        ran = run_attempt(context, self._loader, self._interrupts)
        self._unsent += context.close()
        ended = self._ended(run, ran, context)
        self._post(ended)
        if ended.confirm:
            self._call_hooks(run, ran, context)
        has_failed = isinstance(ran.outcome, outcomes.Failed)
        del ran, context  # with the error and the objects that it refers to
        self._last_run = run
        reason = self._inspection.after_run(run.id, has_failed=has_failed)
        if reason:
            self._request_replacement(reason)

    def _request_replacement(self, reason: str) -> None:
        """Ask to be replaced for this reason, mark the unsent end of the last run, and start no more."""
        assert self._last_run is not None
        self._to_be_replaced = True
        for place, payload in enumerate(self._unsent):
            message = decode(payload)
            if isinstance(message, Ended) and (message.id, message.claims) == (
                self._last_run.id,
                self._last_run.claims,
            ):
                self._unsent[place] = encode(changed(message, exit=f"was replaced: {reason}"))
        self._post(NeedsReplacement(id=self._last_run.id, job=self._last_run.job, reason=reason))

    def _ended(self, run: Run, ran: Ran, context: WorkerContext) -> Ended:
        """Return how the run ended; the node confirms that this is settled if there are hooks to call then."""
        return Ended(
            id=run.id,
            claims=run.claims,
            outcome=type(ran.outcome).__name__,
            fields=outcome_fields(ran.outcome),
            pid=self._pid,
            started_at=None if isinstance(ran.outcome, outcomes.HandedBack) else context.started_at,
            took=ran.took,
            confirm=ran.job is not None
            or (context.run_ended is not None and ran.took is not None)
            or (context.sentry is not None and sentry.may_report(ran)),
        )

    def _call_hooks(self, run: Run, ran: Ran, context: WorkerContext) -> None:
        """Call the hooks of the run's class and of all jobs when its outcome is settled."""
        self._flush()
        status = self._accepted(self._await_settlement(run), run, context)
        if status is not None:
            call_hooks(ran, status, context, self._interrupts)
        self._post(Ready())

    def _accepted(self, settled: OutcomeSettled | None, run: Run, context: WorkerContext) -> Status | None:
        """Return the status for the hooks; None if the store has refused the outcome, or not settled it in time."""
        if settled is None:
            extra = dict(context.fields.items())
            log.warning("outcome of %s not settled within %g s; hooks skipped", run.job, SETTLED_WITHIN, extra=extra)
        return Status(settled.status) if settled is not None and settled.accepted else None

    def _await_settlement(self, run: Run) -> OutcomeSettled | None:
        """Wait until the store has accepted or refused the outcome; keep other messages for later."""
        deadline = time.monotonic() + SETTLED_WITHIN
        while (payload := self._channel.wait(max(0.0, deadline - time.monotonic()))) is not None:
            message = decode(payload)
            if isinstance(message, OutcomeSettled) and (message.id, message.claims) == (run.id, run.claims):
                return message
            self._received_early.append(message)
        return None

    def _wait_until(self, moment: float) -> None:
        """Wait for a time of the monotonic clock, or until the worker must exit."""
        poll = select.poll()  # not select(), which ends at descriptor 1023
        poll.register(self._interrupts.wake_up, select.POLLIN)
        if not poll.poll(int(max(0.0, moment - time.monotonic()) * 1000)):
            select.select((), (), (), max(0.0, moment - time.monotonic()))  # the rest of a millisecond

    def _tasks_of(self, _job: str) -> Iterable[tuple[str, Any]]:
        """Return the asyncio tasks of a running job, each with its id if there may be others."""
        return running_tasks()

    def _open_scheduler(self) -> Any:
        if self._scheduler is None:
            from taskqueue.scheduler import Scheduler

            self._scheduler = Scheduler(self._url, before_add=self._loader.before_add)
        return self._scheduler

    def _open_event_loop(self) -> WatchedLoop:
        """Return the event loop of all async jobs of this worker."""
        if self._event_loop is None:
            from taskqueue.daemon.worker.watched_loop import WatchedLoop

            self._event_loop = WatchedLoop()
        return self._event_loop

    def _send(self, message: Message) -> None:
        self._post(message)
        self._flush()

    def _post(self, message: Message) -> None:
        """Buffer a message, so that an end and the next start are one write."""
        if os.getpid() != self._pid:  # this is a child that the job has forked: it must not send messages
            os._exit(0)
        self._unsent.append(encode(message))

    def _flush(self) -> None:
        if self._unsent:
            self._channel.send(*self._unsent)
            self._unsent.clear()
