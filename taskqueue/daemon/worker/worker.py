"""The worker process: executes the runs that its manager sends, one at a time, and reports how each ended."""

from __future__ import annotations

import logging
import os
import random
import select
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from taskqueue.daemon.protocol.channel import Channel, ChannelBroken, ChannelClosed
from taskqueue.daemon.protocol.encoding import outcome_fields
from taskqueue.daemon.protocol.hooks import run_of
from taskqueue.daemon.protocol.messages import (
    Ended,
    Message,
    NeedsReplacement,
    Ready,
    Run,
    RunHook,
    Started,
    StartupFailed,
    decode,
    encode,
)
from taskqueue.daemon.protocol.start_log import Entry
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.protocol.worker_page import WorkerPage
from taskqueue.daemon.runtime import child_process, child_setup
from taskqueue.daemon.worker.hooks import OutcomeHooks, defines_hooks
from taskqueue.daemon.worker.inspection import Inspection
from taskqueue.daemon.worker.interrupts import SignalInterrupts
from taskqueue.daemon.worker.job_loader import JobLoader
from taskqueue.daemon.worker.run_context import WorkerContext
from taskqueue.execution.conditions import ask, wanted
from taskqueue.execution.custom_retry import Question, question_of, with_decision
from taskqueue.execution.declared_options import report
from taskqueue.execution.executor import Ran, brief, execute
from taskqueue.execution.loader import CannotLoad, Loaded
from taskqueue.exit_codes import Exit
from taskqueue.model.conditions import Condition
from taskqueue.model.conditions import condition as condition_of
from taskqueue.model.lifecycle import failure, outcomes
from taskqueue.store.open import database_of

log = logging.getLogger(__name__)

LATE_START = 0.01
"""Seconds of loading after which the start of a run is reported again with its real time: rates depend on it."""


class _Attempted(NamedTuple):
    """A finished run: its outcome, its start, and the seconds its job's own code took; None if it was not called."""

    ran: Ran
    started_at: float
    took: float | None


class Worker:
    """The life of one worker process."""

    def __init__(
        self,
        *,
        channel: Channel,
        page: WorkerPage,
        start_entry: Entry,
        permits: StartPermits,
        signal_pipe: int,
        url: str,
        bootstrap: Path | None,
        allow: Collection[str],
    ) -> None:
        self._channel = channel
        self._page = page
        self._start_entry = start_entry
        self._permits = permits
        self._signal_pipe = signal_pipe
        self._url = url
        self._bootstrap = bootstrap
        self._interrupts = SignalInterrupts(page)
        self._pid = os.getpid()
        self._number = 0
        self._unsent: list[bytes] = []
        self._received_early: deque[Message] = deque()
        self._hooks = OutcomeHooks(channel, self._interrupts, self._received_early)
        self._loader = JobLoader(allow=allow, scheduler=self._open_scheduler)
        self._scheduler: Any = None
        self._last_run: Run | None = None
        self._to_be_replaced = False

    def run(self) -> int:
        """Execute runs until the manager closes the channel or the worker must exit; return the exit status."""
        self._pid = os.getpid()
        self._interrupts.install(self._signal_pipe)
        child_process.become_subreaper()
        child_process.title("worker starting")
        child_process.allow_signals()
        if self._bootstrap is not None and not self._boot(self._bootstrap):
            return Exit.BOOTSTRAP
        self._inspection = Inspection(database_of(self._url), self._signal_pipe)
        self._send(Ready())
        try:
            self._work()
        except ChannelBroken as broken:
            log.error("a worker exits, because a job has read or written the worker's descriptors: %s", broken)
            return child_setup.CRASHED
        except ChannelClosed:
            log.debug("a worker exits")
        if self._scheduler is not None:
            self._scheduler.close()
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
                case Run():
                    self._handle_run(message, self._loader.find)
                case RunHook():
                    self._handle_run(run_of(message), self._loader.find_hook)
            if self._interrupts.stop_reason is not None:  # leftovers of the job end with this process
                break
        self._flush()
        self._channel.flush_blocking()

    def _next(self) -> Message | None:
        """Return the next message; None if the worker may have to exit instead."""
        if self._received_early:
            return self._received_early.popleft()
        payload = self._channel.take()
        if payload is None:
            self._flush()  # first: a caller may wait for the result of this job
            child_process.title("worker idle")
            if self._last_run is not None and not self._to_be_replaced:
                self._request_replacement(self._inspection.look(self._last_run.id))
                self._flush()
            payload = self._channel.wait(self._inspection.look_again_after, wake_on=self._interrupts.fileno())
        return None if payload is None else decode(payload)

    def _handle_run(self, run: Run, find: Callable[[str], Loaded]) -> None:
        """Execute the run, unless the manager has revoked it; ``find`` loads what it calls."""
        if self._to_be_replaced:  # the manager is about to requeue it
            return
        self._number += 1
        if not self._permits.take(self._number):
            self._send(Ready(missed=self._number))
            return
        self._interrupts.begin(self._number)
        child_process.title(f"worker {run.job.rpartition(':')[2]} {run.id}")
        if run.not_before is not None:
            self._wait_until(run.not_before)
        started_at = self._log_start(run) if run.condition is None else self._report_start(run, checking=True)
        question = None if run.retry is None else question_of(run.retry, self._loader.find_policy)
        is_last = run.is_last if question is None else self._is_last(question)
        context = WorkerContext(
            run, self._number, self._channel, self._page, self._interrupts, self._open_scheduler, is_last
        )
        done = self._attempt(run, find, context, started_at)
        if question is not None and done.took is not None:
            done = done._replace(ran=self._decide(question, done.ran, done.took))
        self._unsent += context.close()
        self._report(run, done)
        del done  # with its error and the objects that the error refers to
        self._last_run = run
        reason = self._inspection.after_run(run.id)
        if reason:
            self._request_replacement(reason)

    def _request_replacement(self, reason: str) -> None:
        """Ask to be replaced because of what the last run left behind, and mark its unsent end; start no more runs."""
        if not reason or self._last_run is None:
            return
        self._to_be_replaced = True
        for place, payload in enumerate(self._unsent):
            message = decode(payload)
            if isinstance(message, Ended) and (message.id, message.claims) == (
                self._last_run.id,
                self._last_run.claims,
            ):
                self._unsent[place] = encode(message._replace(exit=f"was replaced: {reason}"))
        self._post(NeedsReplacement(id=self._last_run.id, job=self._last_run.job, reason=reason))

    def _attempt(
        self, run: Run, find: Callable[[str], Loaded], context: WorkerContext, started_at: float
    ) -> _Attempted:
        """Load the job, check its condition, and execute it."""
        loaded = self._load(run, find)
        if isinstance(loaded, Ran):
            return _Attempted(loaded, started_at, None)
        reported = report(loaded) if run.undeclared else None
        if reported is not None:
            return _Attempted(reported, started_at, None)
        condition = _condition(run, loaded)
        ran = self._check_condition(run, context, loaded, condition)
        if ran is not None:
            return _Attempted(ran, started_at, None)
        if condition is not None or time.time() - started_at > LATE_START:
            started_at = self._report_start(run, checking=False)
        begun = time.monotonic()
        ran = execute(loaded, context, self._interrupts, data=run.data, state=run.state)
        return _Attempted(ran, started_at, time.monotonic() - begun)

    def _report(self, run: Run, done: _Attempted) -> None:
        """Report how the run ended, and call the hooks of its class."""
        ran = done.ran
        has_hooks = ran.job is not None and defines_hooks(type(ran.job))
        self._post(
            Ended(
                id=run.id,
                claims=run.claims,
                outcome=type(ran.outcome).__name__,
                fields=outcome_fields(ran.outcome),
                pid=self._pid,
                started_at=None if isinstance(ran.outcome, outcomes.HandedBack) else done.started_at,
                took=done.took,
                confirm=has_hooks,
            )
        )
        if has_hooks:
            self._flush()
            self._hooks.call(run, ran)
            self._post(Ready())

    def _wait_until(self, moment: float) -> None:
        """Wait for a time of the monotonic clock, or until the worker must exit."""
        select.select((self._interrupts,), (), (), max(0.0, moment - time.monotonic()))

    def _log_start(self, run: Run) -> float:
        """Send the end of the previous run, write the start of this one to the start log, and return its time."""
        self._flush()
        self._channel.flush_blocking()
        at = time.time()
        self._start_entry.write((run.id, run.claims), at)
        return at

    def _report_start(self, run: Run, *, checking: bool) -> float:
        """Report that the check or, after it, the run itself starts, and return the time."""
        at = time.time()
        self._post(Started(id=run.id, claims=run.claims, pid=self._pid, at=at, checking=checking))
        self._flush()
        self._channel.flush_blocking()
        return at

    def _load(self, run: Run, find: Callable[[str], Loaded]) -> Loaded | Ran:
        """Return the loaded job, or how the run ends if it cannot be loaded."""
        try:
            with self._interrupts.interruptible():
                return find(run.job)
        except CannotLoad as cannot:
            outcome = outcomes.Unloadable(failure=cannot.failure, patience=failure.UNLOADABLE_PAUSES[1])
            return Ran(outcome=outcome, job=None, error=cannot)
        except BaseException as error:  # an interrupted import ends the run as an interrupted constructor would
            return Loaded(path=run.job, make=_raising(error), work="start")

    def _check_condition(
        self, run: Run, context: WorkerContext, loaded: Loaded, condition: Condition | None
    ) -> Ran | None:
        """Check the condition; return None if it holds, else how the run ends."""
        if condition is None:
            return None
        if run.condition is None:  # the class declares it; the check's time limit starts here
            self._report_start(run, checking=True)
        return ask(condition, loaded, context, self._interrupts, data=run.data, find=self._loader.find_predicate)

    def _is_last(self, question: Question) -> bool:
        try:
            with self._interrupts.interruptible():
                return question.is_last
        except BaseException:  # the run itself will be interrupted again
            return False

    def _decide(self, question: Question, ran: Ran, took: float) -> Ran:
        """Return the run with the decision of a custom retry policy."""
        try:
            with self._interrupts.interruptible():
                return replace(ran, outcome=with_decision(question, ran.outcome, took, random.random()))
        except BaseException as error:
            log.warning("a retry policy was interrupted: %s", brief(error))
            return ran

    def _open_scheduler(self) -> Any:
        if self._scheduler is None:
            from taskqueue.scheduler import Scheduler

            self._scheduler = Scheduler(self._url)
        return self._scheduler

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


def _condition(run: Run, loaded: Loaded) -> Condition | None:
    """Return the condition to check before the run; a job in a later phase has none."""
    if run.condition is None and run.continuation is not None and "phase" in run.continuation:
        return None
    return wanted(None if run.condition is None else condition_of(run.condition), loaded)


def _raising(error: BaseException) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make
