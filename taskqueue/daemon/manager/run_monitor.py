"""Handles worker messages and enforces limits on runs. Does not start or stop workers."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial

from taskqueue.daemon.manager import crash_outcomes
from taskqueue.daemon.manager.log_monitor import LogMonitor
from taskqueue.daemon.manager.progress_monitor import ProgressMonitor
from taskqueue.daemon.manager.queues import ReportQueue, RunQueue
from taskqueue.daemon.manager.stop_escalation import StopEscalation
from taskqueue.daemon.manager.worker_handle import CurrentRun, WorkerHandle
from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import (
    Ended,
    Key,
    Logged,
    NeedsReplacement,
    OutcomeSettled,
    Progressed,
    Ready,
    Started,
    StartupFailed,
    decode,
    encode,
)
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.runtime.prefetch import RunTimes
from taskqueue.daemon.settings import Settings
from taskqueue.model.conditions import CHECK_LIMIT

log = logging.getLogger(__name__)

HOOKS_LIMIT = 60.0
"""Seconds that the hooks of one run may take."""


class RunMonitor:
    """The runs of all workers: their starts, limits and ends."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        reports: ReportQueue,
        queue: RunQueue,
        *,
        on_first_run: Callable[[], None],
    ) -> None:
        """``on_first_run`` is called whenever a worker starts its first run."""
        self._loop = loop
        self._reports = reports
        self._queue = queue
        self._on_first_run = on_first_run
        self._max_memory = settings.max_memory
        self._progress = ProgressMonitor(loop, reports)
        self._lines = LogMonitor(loop, reports)
        self.grace = settings.grace
        self.run_times = RunTimes()
        self.changed_at = 0.0
        """Time when a run last started or ended."""
        self.startup_failure: StartupFailed | None = None
        """Why the last worker that failed to start did so."""

    def refresh(self, worker: WorkerHandle) -> None:
        """Read from the start log whether the worker has started its next run; it sends no message for that."""
        if worker.current is not None or not worker.pending:
            return
        key, at = worker.start_entry.read()
        _, queued = worker.pending[0]
        if key == queued.key:
            id, claims = key
            started = Started(id=id, claims=claims, pid=worker.child.pid, at=at)
            self._on_started(worker, started, encode(started))

    def on_message(self, worker: WorkerHandle, payload: bytes) -> None:
        """Handle a worker's message; raise ``ChannelBroken`` for one that it cannot have sent."""
        message = decode(payload)
        match message:
            case Started():
                _check_run(worker, (message.id, message.claims))
                self._on_started(worker, message, payload)
            case Ended():
                _check_run(worker, (message.id, message.claims))
                self._on_ended(worker, message, payload)
            case Progressed():
                self.refresh(worker)
                self._progress.on_progressed(worker, message, payload)
            case Logged():
                self._reports.forward(payload)
            case Ready():
                _check_permit(worker, message.missed)
                worker.became_ready(time.monotonic())
            case NeedsReplacement(id=id, job=job, reason=reason):
                log.warning("a worker is replaced: pid %d: %s: job %s (%s)", worker.pid, reason, id, job)
                worker.replace_later(reason, id)
                self.requeue(worker)
            case StartupFailed():
                self.startup_failure = message

    def on_signal(self, worker: WorkerHandle) -> None:
        """Handle a signal that a worker received: a SIGTERM of another process ends its run and the worker."""
        signals = os.read(worker.signal_pipe, 4096)
        if not signals:  # the worker has closed its end
            self._loop.unwatch(worker.signal_pipe)
        if signal.SIGTERM not in signals or worker.was_signalled:
            return
        self.refresh(worker)
        self._revoke(worker, "shutdown")
        worker.replace_later("another process sent it SIGTERM")
        if worker.current is not None:
            escalation = StopEscalation(self._loop, worker.child, kill_at=time.monotonic() + self.grace)
            worker.stop_current("shutdown", escalation)
            escalation.signal_later()

    def allow_hooks(self, worker: WorkerHandle, settled: OutcomeSettled) -> None:
        """Let a worker call the hooks of its last run, and limit their time."""
        timer = self._loop.at(time.monotonic() + HOOKS_LIMIT, partial(self._on_hooks_limit, worker))
        worker.start_hooks(encode(settled), timer)

    def requeue(self, worker: WorkerHandle) -> None:
        """Put runs that a worker has not started back into the queue."""
        self._queue.put_back(worker.take_back())

    def stop_run(self, worker: WorkerHandle, key: Key, reason: str) -> None:
        """End one run of a worker, now or as soon as it starts; it could not be taken back."""
        self.refresh(worker)
        worker.stop_pending(reason, key)
        if worker.current is not None and worker.current.queued.key == key:
            self._interrupt(worker, reason, self.grace)

    def end_run(self, worker: WorkerHandle, reason: str, grace: float) -> None:
        """Take back the runs that a worker has not started, and end its present run and hooks."""
        self.refresh(worker)
        self._revoke(worker, reason)
        self._interrupt(worker, reason, grace)

    def _revoke(self, worker: WorkerHandle, reason: str) -> None:
        """Take back the runs that a worker has not started; one that is just starting ends after its start."""
        self.requeue(worker)
        worker.stop_pending(reason)

    def _interrupt(self, worker: WorkerHandle, reason: str, grace: float) -> None:
        """Ask the run or the hooks of a worker to end, and kill it after ``grace``, or after an earlier one."""
        if worker.current is None and worker.hooks_key is None:
            return
        self.requeue(worker)
        kill_at = time.monotonic() + grace
        if worker.escalation is not None:
            worker.escalation.hasten(kill_at)
            return
        worker.page.request_stop(worker.current_number, reason)
        suspect = worker.suspect
        worker.replace_later(f"its run was asked to end ({reason})", "" if suspect is None else suspect.run.id)
        worker.was_signalled = True
        escalation = StopEscalation(self._loop, worker.child, kill_at=kill_at)
        worker.stop_current(reason, escalation)
        escalation.signal_now()

    def report_death(self, worker: WorkerHandle, exit: child_process.ChildExit, killer: str = "") -> None:
        """Report the run of a dead worker, and hand back or requeue the runs that it had not started.

        ``killer`` says who killed it, if known.
        """
        self.refresh(worker)
        current = worker.current
        if current is not None:
            self._progress.read_page(worker, current)
            self._lines.read(worker, current)
            cause = _kill_reason(worker, killer)
            ended = crash_outcomes.of_death(current, worker.stop_reason, exit, self.grace, cause)
            if ended.outcome == "Interrupted" and not _was_stop_requested(worker):
                ended = crash_outcomes.by_foreign_signal(ended)
            self._reports.run_ended(current.queued, encode(ended))
        self._report_unseen(worker, exit)
        self.requeue(worker)
        self._reports.hand_back([queued for _, queued in worker.pending])

    def _report_unseen(self, worker: WorkerHandle, exit: child_process.ChildExit) -> None:
        """Report runs that started after the last one the worker reported: its later messages were lost.

        The first of them broke the channel and has crashed; the others are interrupted.
        """
        is_first = worker.current is None
        key, at = worker.start_entry.read()
        keys = [queued.key for _, queued in worker.pending]
        for _ in range(keys.index(key) + 1 if key in keys else 0):
            number, queued = worker.pending.popleft()
            id, claims = queued.key
            current = CurrentRun(queued, number, Started(id=id, claims=claims, pid=worker.child.pid, at=at), at)
            ended = crash_outcomes.of_death(current, "", exit, self.grace, _kill_reason(worker, ""))
            self._reports.run_ended(queued, encode(ended if is_first else crash_outcomes.after_earlier_run(ended)))
            is_first = False

    def _on_started(self, worker: WorkerHandle, started: Started, payload: bytes) -> None:
        now = time.monotonic()
        current = self._begin(worker, started, now)
        current.is_checking = started.checking
        if current.is_checking:
            current.timeout_timer = self._loop.at(now + CHECK_LIMIT, partial(self._on_check_limit, worker, current))
        else:
            self._reports.run_began(current.queued, payload)
            self._lines.watch(worker)
            self._start_timers(worker, current, now)
        if current.queued.stop_reason:
            self._interrupt(worker, current.queued.stop_reason, self.grace)

    def _begin(self, worker: WorkerHandle, started: Started, now: float) -> CurrentRun:
        """Return the run that has started, which may be the one whose condition was checked before."""
        current = worker.current
        if current is not None:
            current.restart(started)
            return current
        self.changed_at = now
        current = worker.begin(started, now)
        if worker.runs_begun == 1:
            self._on_first_run()
        return current

    def _start_timers(self, worker: WorkerHandle, current: CurrentRun, now: float) -> None:
        """Set the timers for ``timeout`` and ``stall_timeout``."""
        seconds = current.queued.run.timeout
        if seconds is not None:
            current.timeout_timer = self._loop.at(now + seconds, partial(self._on_timeout, worker, current))
        current.progress_at = now
        self._set_stall_timer(worker, current)

    def _on_check_limit(self, worker: WorkerHandle, current: CurrentRun) -> None:
        log.warning("a check took longer than %g s: job %s", CHECK_LIMIT, current.queued.run.id)
        self._interrupt(worker, "timeout", self.grace)

    def _on_timeout(self, worker: WorkerHandle, current: CurrentRun) -> None:
        run = current.queued.run
        log.warning("a run took longer than its timeout of %g s: job %s", run.timeout, run.id)
        self._interrupt(worker, "timeout", self.grace)

    def _set_stall_timer(self, worker: WorkerHandle, current: CurrentRun) -> None:
        seconds = current.queued.run.stall_timeout
        if seconds is not None:
            callback = partial(self._on_stall_timer, worker, current)
            current.stall_timer = self._loop.at(current.progress_at + seconds, callback)

    def _on_stall_timer(self, worker: WorkerHandle, current: CurrentRun) -> None:
        """End a run without progress for too long, unless the worker page has newer progress."""
        run = current.queued.run
        assert run.stall_timeout is not None
        self._progress.read_page(worker, current)
        if time.monotonic() < current.progress_at + run.stall_timeout:
            self._set_stall_timer(worker, current)
        elif not worker.stop_reason:
            log.warning("a run gave no sign of progress for %g s: job %s", run.stall_timeout, run.id)
            current.has_stalled = True
            self._interrupt(worker, "timeout", self.grace)

    def _on_hooks_limit(self, worker: WorkerHandle) -> None:
        log.warning("the hooks of a job took more than %g s and are ended: pid %d", HOOKS_LIMIT, worker.pid)
        self._interrupt(worker, "timeout", self.grace)

    def _on_ended(self, worker: WorkerHandle, ended: Ended, payload: bytes) -> None:
        current = worker.current
        if current is None:
            id, claims, at = ended.id, ended.claims, ended.started_at or time.time()
            current = self._begin(worker, Started(id=id, claims=claims, pid=worker.child.pid, at=at), time.monotonic())
        if worker.stop_reason and not crash_outcomes.fits_stop(ended.outcome, worker.stop_reason):
            ended = crash_outcomes.overruled_by_stop(ended, worker.stop_reason, current)
            payload = encode(ended)
        if ended.outcome == "TimedOut":
            ended = crash_outcomes.with_limit(ended, current)
            payload = encode(crash_outcomes.stalled(ended) if current.has_stalled else ended)
        if ended.outcome == "Interrupted" and not _was_stop_requested(worker):
            payload = encode(crash_outcomes.by_foreign_signal(ended))
        self._reports.run_ended(current.queued, payload)
        if ended.took is not None:
            self.run_times.add(current.queued.run.job, ended.took)
        self.changed_at = time.monotonic()
        worker.finish(self.changed_at, has_hooks=ended.confirm)
        if self._max_memory and child_process.memory_of(worker.pid) > self._max_memory:
            limit = f"{self._max_memory / crash_outcomes.MIB:.0f} MiB"
            worker.replace_later(f"it holds more than {limit} of memory", ended.id)


def _check_run(worker: WorkerHandle, key: Key) -> None:
    """Raise ``ChannelBroken`` if another run is due: messages to or from the worker are missing."""
    current = worker.current
    expected = current.queued.key if current is not None else worker.pending[0][1].key if worker.pending else None
    if key != expected:
        raise ChannelBroken(f"the worker reports run {key[0]}:{key[1]} when it is the turn of {expected}")


def _check_permit(worker: WorkerHandle, missed: int) -> None:
    """Raise ``ChannelBroken`` if the worker lacks a permit that was not revoked: a job has read the pipe."""
    if missed and any(number == missed for number, _ in worker.pending):
        raise ChannelBroken("a permit to begin a run, which the worker had been sent, did not reach it")


def _kill_reason(worker: WorkerHandle, killer: str) -> str:
    """Return in words why a worker was killed, as far as that is known."""
    return f"its manager ended it: {worker.kill_reason}" if worker.kill_reason else killer


def _was_stop_requested(worker: WorkerHandle) -> bool:
    """Return whether node or manager asked the worker to end its run."""
    return worker.was_signalled or worker.page.is_node_stopping
