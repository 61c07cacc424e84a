"""Handles worker messages and enforces limits on runs. Does not start or stop workers."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial

from taskqueue.daemon.manager import crash_outcomes
from taskqueue.daemon.manager.failing_workers import FailingWorkers, Pauses
from taskqueue.daemon.manager.progress_monitor import LogMonitor, ProgressMonitor
from taskqueue.daemon.manager.runs import CurrentRun, QueuedRun, ReportQueue, RunQueue
from taskqueue.daemon.manager.stack_monitor import StackMonitor
from taskqueue.daemon.manager.worker_handle import EndReason, RunSlot, StopEscalation, WorkerHandle
from taskqueue.daemon.protocol import messages
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.runtime.prefetch import RunTimes
from taskqueue.daemon.settings import Settings
from taskqueue.execution.run import Run
from taskqueue.model.conditions import CHECK_LIMIT

log = logging.getLogger(__name__)

HOOKS_LIMIT = 60.0
"""Seconds that the hooks of one run may take."""


class RunMonitor:
    """The runs of all workers: their starts, limits and ends."""

    def __init__(
        self, loop: Loop, settings: Settings, reports: ReportQueue, queue: RunQueue, *, on_first_run: Callable[[], None]
    ) -> None:
        """``on_first_run`` is called whenever a worker starts its first run."""
        self._loop = loop
        self._reports = reports
        self._queue = queue
        self._on_first_run = on_first_run
        self._max_memory = settings.max_memory
        self._progress = ProgressMonitor(loop, reports)
        self._lines = LogMonitor(loop, reports)
        self.stacks = StackMonitor(loop)
        self.grace = settings.grace
        self._limits = TimeLimits(loop, self._progress, self._on_limit)
        self.run_times = RunTimes()
        self._failing = FailingWorkers(self.replace)
        self._replaced: dict[str, tuple[WorkerHandle, Pauses]] = {}
        """The last worker of each class that was replaced while it had runs."""
        self.changed_at = 0.0
        """When a run last started or ended."""
        self.unrequested_stop = ""
        """Why all runs end although the node has not asked for it; empty otherwise."""
        self.startup_failure: messages.StartupFailed | None = None
        """Why the last worker that failed to start did so."""

    def refresh(self, slot: RunSlot) -> None:
        """Read from the start log whether the worker has started its next run; it sends no message for that."""
        if slot.current is not None or not slot.pending:
            return
        key, at = slot.start_entry.read()
        _, queued = slot.pending[0]
        if key == queued.key:
            started = messages.Started(*key, pid=slot.pid, at=at)
            self._on_started(slot, started, encode(started))

    def on_message(self, worker: WorkerHandle, payload: bytes) -> None:
        """Handle a worker's message; raise ``ChannelBroken`` for a message that it cannot have sent."""
        message = decode(payload)
        slot = worker.slot_of(message) if worker.is_shared else worker.slot
        match message:
            case messages.Started():
                slot.check_run((message.id, message.claims))
                self._on_started(slot, message, payload)
            case messages.Ended():
                slot.check_run((message.id, message.claims))
                self._on_ended(slot, message, payload)
            case messages.Progressed():
                self.refresh(slot)
                self._progress.on_progressed(slot, message, payload)
            case messages.Logged() | messages.WaitsFor():
                self._reports.forward(payload)
            case messages.Ready():
                slot.check_permit(message.missed)
                slot.became_ready(time.monotonic())
            case messages.NeedsReplacement(id=id, job=job, reason=reason):
                if not message.is_patient or self._replaces_now(worker):
                    self._replace(worker, id, job, reason)
            case messages.StartupFailed():
                self.startup_failure = message

    def replace(self, worker: WorkerHandle, reason: str) -> None:
        """Replace a worker because of what its last or current run left in it."""
        suspect = worker.suspect
        if suspect is not None:
            self._replace(worker, suspect.run.id, suspect.run.job, reason)

    def _replace(self, worker: WorkerHandle, id: str, job: str, reason: str) -> None:
        extra = {"job_id": id, "job": job}
        log.warning("a worker is replaced after %s: pid %d: %s", job, worker.pid, reason, extra=extra)
        worker.replace_later(EndReason(reason), id)
        self.requeue(worker)

    def _replaces_now(self, worker: WorkerHandle) -> bool:
        """Return whether to replace a worker with running jobs, and remember that it was replaced.

        It is not while the worker before it ends its own jobs: otherwise jobs that all change the same thing would soon
        have a worker each.
        """
        before, pauses = self._replaced.get(worker.job, (None, Pauses()))
        has_runs = before is not None and before.channel.fileno() >= 0 and not before.is_free
        if worker.to_be_replaced or has_runs or not pauses.has_passed(time.monotonic()):
            return False
        self._replaced[worker.job] = worker, pauses
        return True

    def on_signal(self, worker: WorkerHandle) -> None:
        """Handle a signal that a worker received: a SIGTERM of another process ends its runs and the worker."""
        signals = os.read(worker.signal_pipe, 4096)
        if not signals:  # the worker has closed its end
            self._loop.unwatch(worker.signal_pipe)
        if signal.SIGTERM not in signals or worker.note_signal():
            return
        worker.replace_later(EndReason("another process sent it SIGTERM"))
        for slot in worker.busy_slots:
            self.refresh(slot)
            self._revoke(slot, "shutdown")
            if slot.current is not None and slot.escalation is None:
                escalation = StopEscalation(self._loop, slot, kill_at=time.monotonic() + self.grace)
                slot.stop_current("shutdown", escalation)
                escalation.signal_later()

    def allow_hooks(self, slot: RunSlot, settled: messages.OutcomeSettled) -> None:
        """Let a worker call the hooks of its last run, and limit their time."""
        slot.hooks_timer = self._loop.at(time.monotonic() + HOOKS_LIMIT, partial(self._on_hooks_limit, slot))
        slot.worker.unsent.append(encode(settled))

    def requeue(self, worker: WorkerHandle) -> None:
        """Put runs that a worker has not started back into the queue."""
        back = worker.take_back()
        if back:
            self._queue.put_back(back)

    def stop_run(self, slot: RunSlot, key: messages.Key, reason: str) -> None:
        """End one run of a worker, now or as soon as it starts; it could not be taken back."""
        self.refresh(slot)
        slot.stop_pending(reason, key)
        if slot.current is not None and slot.current.queued.key == key:
            self._interrupt(slot, reason, self.grace)
        elif slot.pending and slot.pending[0][1].key == key:
            self._end_unbegun_later(slot, self.grace)

    def end_run(self, slot: RunSlot, reason: str, grace: float) -> None:
        """Take back the runs that a worker has not started, and end the current run and hooks of the slot."""
        self.refresh(slot)
        self._revoke(slot, reason)
        self._interrupt(slot, reason, grace)

    def _revoke(self, slot: RunSlot, reason: str) -> None:
        """Take back the runs that a worker has not started; a run that is just starting ends after its start."""
        self.requeue(slot.worker)
        slot.stop_pending(reason)

    def _interrupt(self, slot: RunSlot, reason: str, grace: float) -> None:
        """Ask the run or the hooks of a worker to end, and kill it after ``grace``, or after an earlier one."""
        if slot.current is None and slot.hooks_key is None:
            self._end_unbegun_later(slot, grace)
            return
        self.requeue(slot.worker)
        kill_at = time.monotonic() + grace
        if slot.escalation is not None:
            slot.escalation.hasten(kill_at)
            return
        slot.request_stop(reason)
        escalation = StopEscalation(self._loop, slot, kill_at=kill_at)
        slot.stop_current(reason, escalation)
        self.stacks.request_last(slot)
        escalation.signal_now()

    def _on_limit(self, slot: RunSlot) -> None:
        self._interrupt(slot, "timeout", self.grace)

    def _end_unbegun_later(self, slot: RunSlot, grace: float) -> None:
        """Check after ``grace`` whether a concurrent worker, whose runs cannot be taken back, has started its run."""
        if slot.worker.is_shared and slot.pending:
            self._loop.at(time.monotonic() + grace, partial(self._end_unbegun, slot, slot.pending[0][1], grace))

    def _end_unbegun(self, slot: RunSlot, queued: QueuedRun, grace: float) -> None:
        """Kill a worker that never starts a run already asked to stop, if that is its only run: its loop is stuck.

        While it has another run, that may be what holds it up: check again later.
        """
        worker = slot.worker
        for busy in worker.busy_slots:
            self.refresh(busy)
        if not slot.pending or slot.pending[0][1] is not queued:
            return
        if any(busy.current is not None or busy.hooks_key is not None for busy in worker.busy_slots):
            self._end_unbegun_later(slot, grace)
            return
        worker.kill_reason = f"it did not start job {queued.run.id}, which had to end ({queued.stop_reason})"
        log.warning("killing a worker: pid %d: %s", worker.pid, worker.kill_reason)
        worker.child.kill_group()

    def report_death(self, worker: WorkerHandle, exit: child_process.ChildExit, killer: str = "") -> None:
        """Report the runs of a dead worker, and hand back or requeue the runs that it had not started.

        ``killer`` says who killed it, if known.
        """
        for slot in worker.busy_slots:
            self.refresh(slot)
        running = sum(slot.current is not None for slot in worker.busy_slots)
        cause = crash_outcomes.cause_of(_kill_reason(worker, killer), running)
        for slot in worker.busy_slots:
            self._report_death(slot, exit, cause)

    def _report_death(self, slot: RunSlot, exit: child_process.ChildExit, cause: str) -> None:
        current = slot.current
        if current is not None:
            self._progress.read_page(slot, current)
            self._lines.read(slot, current)
            ended = crash_outcomes.of_death(current, slot.stop_reason, exit, self.grace, cause)
            ended = messages.changed(ended, stack=self.stacks.last(slot, current))
            self._reports.run_ended(current.queued, encode(self._with_reason(slot, ended)))
        self._report_unseen(slot, exit)
        self.requeue(slot.worker)
        self._reports.hand_back([queued for _, queued in slot.pending])

    def _with_reason(self, slot: RunSlot, ended: messages.Ended) -> messages.Ended:
        """Return the end of a run, with the reason if it was interrupted without a request of the node."""
        if ended.outcome != "Interrupted" or (_was_stop_requested(slot) and not self.unrequested_stop):
            return ended
        return crash_outcomes.by_foreign_signal(ended, self.unrequested_stop)

    def _report_unseen(self, slot: RunSlot, exit: child_process.ChildExit) -> None:
        """Report runs that started after the last one the worker reported: its later messages were lost.

        The first of them broke the channel and has crashed; the others are interrupted.
        """
        is_first = slot.current is None
        key, at = slot.start_entry.read()
        keys = [queued.key for _, queued in slot.pending]
        for _ in range(keys.index(key) + 1 if key in keys else 0):
            number, queued = pending = slot.pending.popleft()
            slot.worker.pending.remove(pending)
            current = CurrentRun(queued, number, messages.Started(*queued.key, pid=slot.pid, at=at), at)
            ended = crash_outcomes.of_death(current, "", exit, self.grace, _kill_reason(slot.worker, ""))
            self._reports.run_ended(queued, encode(ended if is_first else crash_outcomes.after_earlier_run(ended)))
            is_first = False

    def _on_started(self, slot: RunSlot, started: messages.Started, payload: bytes) -> None:
        now = time.monotonic()
        current = self._begin(slot, started, now)
        current.is_checking = started.checking
        if current.is_checking:
            self._limits.start_check(slot, current, now)
        else:
            self._reports.run_began(current.queued, payload)
            self._lines.watch(slot)
            self._limits.start(slot, current, now)
        if current.queued.stop_reason:
            self._interrupt(slot, current.queued.stop_reason, self.grace)

    def _begin(self, slot: RunSlot, started: messages.Started, now: float) -> CurrentRun:
        """Return the run that has started, which may be the one whose condition was checked before."""
        current = slot.current
        if current is not None:
            current.restart(started)
            return current
        self.changed_at = now
        current = slot.begin(started, now)
        if slot.worker.runs_begun == 1:
            self._on_first_run()
        return current

    def _on_hooks_limit(self, slot: RunSlot) -> None:
        log.warning("the hooks of a job took more than %g s and were stopped: pid %d", HOOKS_LIMIT, slot.pid)
        self._interrupt(slot, "timeout", self.grace)

    def _on_ended(self, slot: RunSlot, ended: messages.Ended, payload: bytes) -> None:
        current = slot.current
        if current is None:
            at = ended.started_at or child_process.boottime()
            current = self._begin(slot, messages.Started(ended.id, ended.claims, pid=slot.pid, at=at), time.monotonic())
        if slot.stop_reason and not crash_outcomes.fits_stop(ended.outcome, slot.stop_reason):
            ended = crash_outcomes.overruled_by_stop(ended, slot.stop_reason, current)
            payload = encode(ended)
        if ended.outcome == "TimedOut":
            ended = messages.changed(crash_outcomes.with_limit(ended, current), stack=self.stacks.last(slot, current))
            payload = encode(crash_outcomes.stalled(ended) if current.has_stalled else ended)
        if ended.outcome == "Interrupted":
            payload = encode(self._with_reason(slot, ended))
        self._progress.report_held(current)
        self._reports.run_ended(current.queued, payload)
        if ended.took is not None:
            self.run_times.add(current.queued.run.job, ended.took)
        self.changed_at = time.monotonic()
        slot.finish(self.changed_at, has_hooks=ended.confirm)
        if not slot.worker.is_shared:
            self._failing.on_ended(slot.worker, current.queued.run.job, ended.outcome, ended.took, self.changed_at)
        if self._max_memory and child_process.memory_of(slot.pid) > self._max_memory:
            limit = f"{self._max_memory / crash_outcomes.MIB:.0f} MiB"
            words = f"it holds more than {limit} of memory"
            slot.worker.replace_later(EndReason(words, messages.EndKind.MAX_MEMORY), ended.id)


def _kill_reason(worker: WorkerHandle, killer: str) -> str:
    """Return in words why a worker was killed, as far as that is known."""
    return f"its manager ended it: {worker.kill_reason}" if worker.kill_reason else killer


def _was_stop_requested(slot: RunSlot) -> bool:
    """Return whether node or manager asked the worker to end its run."""
    return slot.was_signalled or slot.page.is_node_stopping


class TimeLimits:
    """The time limits of all runs of one manager."""

    def __init__(self, loop: Loop, progress: ProgressMonitor, end: Callable[[RunSlot], None]) -> None:
        """``end`` asks the current run of a slot to end, because it has exceeded a limit."""
        self._loop = loop
        self._progress = progress
        self._end = end

    def start(self, slot: RunSlot, current: CurrentRun, now: float) -> None:
        """Set the timers of a run that has started."""
        seconds = current.queued.run.timeout
        if seconds is not None:
            current.timeout_timer = self._loop.at(now + seconds, partial(self._on_timeout, slot, current))
        current.progress_at = now
        self._set_stall_timer(slot, current)

    def start_check(self, slot: RunSlot, current: CurrentRun, now: float) -> None:
        """Set the timer of a check that has started."""
        current.timeout_timer = self._loop.at(now + CHECK_LIMIT, partial(self._on_check_limit, slot, current))

    def _on_check_limit(self, slot: RunSlot, current: CurrentRun) -> None:
        run = current.queued.run
        log.warning("a condition of %s took longer than %g s to check", run.job, CHECK_LIMIT, extra=_fields(run))
        self._end(slot)

    def _on_timeout(self, slot: RunSlot, current: CurrentRun) -> None:
        run = current.queued.run
        log.warning("%s exceeded its timeout of %g s; stopping it", run.job, run.timeout, extra=_fields(run))
        self._end(slot)

    def _set_stall_timer(self, slot: RunSlot, current: CurrentRun) -> None:
        seconds = current.queued.run.stall_timeout
        if seconds is not None:
            callback = partial(self._on_stall_timer, slot, current)
            current.stall_timer = self._loop.at(current.progress_at + seconds, callback)

    def _on_stall_timer(self, slot: RunSlot, current: CurrentRun) -> None:
        """End a run without progress for too long, unless the worker page has newer progress."""
        run = current.queued.run
        assert run.stall_timeout is not None
        self._progress.read_page(slot, current)
        if time.monotonic() < current.progress_at + run.stall_timeout:
            self._set_stall_timer(slot, current)
        elif not slot.stop_reason:
            wait = run.stall_timeout
            log.warning("%s reported no progress for %g s; stopping it", run.job, wait, extra=_fields(run))
            current.has_stalled = True
            self._end(slot)


def _fields(run: Run) -> dict[str, object]:
    """Return the fields of a log line about the run, as the lines of the run itself have them."""
    return {"job_id": run.id, "job": run.job, "queue": run.queue, "attempt": run.attempt}
