"""The runs of all workers: when they began, how far they are, how they ended, and how they are ended."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial

from taskqueue.daemon.manager import crash_outcomes
from taskqueue.daemon.manager.outbox import ReportOutbox
from taskqueue.daemon.manager.run_queue import RunQueue, RunTimes
from taskqueue.daemon.manager.stop_escalation import StopEscalation
from taskqueue.daemon.manager.worker_handle import CurrentRun, WorkerHandle
from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import (
    POSITION_EVERY,
    PROGRESS_EVERY,
    Ended,
    Key,
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
from taskqueue.daemon.settings import Settings
from taskqueue.model.conditions import CHECK_LIMIT

log = logging.getLogger(__name__)

HOOKS_LIMIT = 60.0
"""Seconds that the hooks of one run may take."""


class RunMonitor:
    """Hears the workers and acts on their runs; who the workers are is not its affair."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        reports: ReportOutbox,
        queue: RunQueue,
        *,
        on_first_run: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._reports = reports
        self._queue = queue
        self._on_first_run = on_first_run
        self._max_memory = settings.max_memory
        self.grace = settings.grace
        self.run_times = RunTimes()
        self.changed_at = 0.0
        """When a run last began or ended."""
        self.startup_failure: StartupFailed | None = None
        """Why the last worker that could not start says it could not."""

    def refresh(self, worker: WorkerHandle) -> None:
        """Take in what the worker has begun since it was last heard of: of short runs it tells only with their ends."""
        if worker.current is not None or not worker.pending:
            return
        key, at = worker.start_entry.read()
        _, queued = worker.pending[0]
        if key == queued.key:
            id, claims = key
            started = Started(id=id, claims=claims, pid=worker.pid, at=at)
            self._on_started(worker, started, encode(started))

    def on_message(self, worker: WorkerHandle, payload: bytes) -> None:
        """Take in what a worker says; raise ``ChannelBroken`` for what it cannot have said."""
        message = decode(payload)
        match message:
            case Started():
                _check_run(worker, (message.id, message.claims))
                self._on_started(worker, message, payload)
            case Ended():
                _check_run(worker, (message.id, message.claims))
                self._on_ended(worker, message, payload)
            case Progressed():
                self._on_progressed(worker, message, payload)
            case Ready():
                _check_permit(worker, message.missed)
                worker.became_ready(time.monotonic())
            case NeedsReplacement():
                log.warning("a worker is replaced: pid %d: %s: job %s (%s)", worker.pid, *message[2:], *message[:2])
                worker.replace_later(message.reason, message.id)
                self.requeue(worker)
            case StartupFailed():
                self.startup_failure = message

    def on_signal(self, worker: WorkerHandle) -> None:
        """Take in that a worker was signalled; if it was not by us, somebody wants it to end its run and to leave."""
        signals = os.read(worker.signal_pipe, 4096)
        if not signals:  # it has closed its end
            self._loop.unwatch(worker.signal_pipe)
        if signal.SIGTERM not in signals or worker.was_signalled:
            return
        self.refresh(worker)
        self._revoke(worker, "shutdown")
        worker.replace_later("somebody sent it SIGTERM")
        if worker.current is not None:
            worker.stop_reason = "shutdown"
            worker.escalation = StopEscalation(self._loop, worker.child, kill_at=time.monotonic() + self.grace)
            worker.escalation.signal_later()

    def allow_hooks(self, worker: WorkerHandle, settled: OutcomeSettled) -> None:
        """Let a worker call the hooks of its last run, within their time."""
        worker.queue_message(encode(settled))
        worker.hooks_timer = self._loop.at(time.monotonic() + HOOKS_LIMIT, partial(self._on_hooks_limit, worker))

    def requeue(self, worker: WorkerHandle) -> None:
        """Take back what a worker was given and has not begun."""
        self._queue.put_back(worker.take_back())

    def stop_run(self, worker: WorkerHandle, key: Key, reason: str) -> None:
        """End one run of a worker, now or when it begins: it could not be taken back."""
        self.refresh(worker)
        for _, queued in worker.pending:
            if queued.key == key:
                queued.stop_reason = reason
        if worker.current is not None and worker.current.queued.key == key:
            self._interrupt(worker, reason, self.grace)

    def end_run(self, worker: WorkerHandle, reason: str, grace: float) -> None:
        """Take back what a worker has not begun, and end its run and its hooks by the ladder."""
        self.refresh(worker)
        self._revoke(worker, reason)
        self._interrupt(worker, reason, grace)

    def _revoke(self, worker: WorkerHandle, reason: str) -> None:
        """Take back what a worker has not begun; what it is just beginning is ended when it has begun."""
        self.requeue(worker)
        for _, queued in worker.pending:
            queued.stop_reason = reason

    def _interrupt(self, worker: WorkerHandle, reason: str, grace: float) -> None:
        """Begin the ladder for the run or the hooks of a worker, if there are any; one that has begun is hastened."""
        if worker.current is None and worker.hooks_key is None:
            return
        self.requeue(worker)
        kill_at = time.monotonic() + grace
        if worker.escalation is not None:
            worker.escalation.hasten(kill_at)
            return
        if worker.current is not None:
            worker.stop_reason = reason
        worker.page.request_stop(worker.current.number if worker.current is not None else worker.last_number, reason)
        suspect = worker.suspect
        worker.replace_later(f"what ran there was to end ({reason})", "" if suspect is None else suspect.run.id)
        worker.was_signalled = True
        worker.escalation = StopEscalation(self._loop, worker.child, kill_at=kill_at)
        worker.escalation.signal_now()

    def report_death(self, worker: WorkerHandle, exit: child_process.ChildExit, killer: str = "") -> None:
        """Report the run of a dead worker; what it had not begun goes to others, here or elsewhere.

        ``killer`` says who killed it, where that is known.
        """
        self.refresh(worker)
        current = worker.current
        if current is not None:
            self._read_page(worker, current)
            ended = crash_outcomes.of_death(current, worker.stop_reason, exit, self.grace, _kill_reason(worker, killer))
            if ended.outcome == "Interrupted" and not _was_stop_requested(worker):
                ended = crash_outcomes.interrupted_by_stranger(ended)
            self._reports.run_ended(current.queued, encode(ended))
        self._report_unseen(worker, exit)
        self.requeue(worker)
        self._reports.hand_back([queued for _, queued in worker.pending])

    def _report_unseen(self, worker: WorkerHandle, exit: child_process.ChildExit) -> None:
        """Report runs that began behind the last one that was heard of: nothing that the worker said reached us.

        What made the worker unheard was done by the first; the others have no share in it.
        """
        is_first = worker.current is None
        key, at = worker.start_entry.read()
        keys = [queued.key for _, queued in worker.pending]
        for _ in range(keys.index(key) + 1 if key in keys else 0):
            number, queued = worker.pending.popleft()
            id, claims = queued.key
            current = CurrentRun(queued, number, Started(id=id, claims=claims, pid=worker.pid, at=at), at)
            ended = crash_outcomes.of_death(current, "", exit, self.grace, _kill_reason(worker, ""))
            self._reports.run_ended(queued, encode(ended if is_first else crash_outcomes.lost_report(ended)))
            is_first = False

    def _on_started(self, worker: WorkerHandle, started: Started, payload: bytes) -> None:
        now = time.monotonic()
        current = self._begin(worker, started, now)
        current.is_checking = started.checking
        if current.is_checking:
            current.timeout_timer = self._loop.at(now + CHECK_LIMIT, partial(self._on_check_limit, worker, current))
        else:
            self._reports.run_began(current.queued, payload)
            self._start_timers(worker, current, now)
        if current.queued.stop_reason:
            self._interrupt(worker, current.queued.stop_reason, self.grace)

    def _begin(self, worker: WorkerHandle, started: Started, now: float) -> CurrentRun:
        """Return the run that has begun; where it was only checked before, the one that now begins in earnest."""
        current = worker.current
        if current is not None:
            current.stop_timers()
            current.started = started
            return current
        self.changed_at = now
        current = worker.begin(started, now)
        if worker.runs_begun == 1:
            self._on_first_run()
        return current

    def _start_timers(self, worker: WorkerHandle, current: CurrentRun, now: float) -> None:
        """See to it that the run takes no longer than it may, and gives signs of progress."""
        seconds = current.queued.run.timeout
        if seconds is not None:
            current.timeout_timer = self._loop.at(now + seconds, partial(self._on_timeout, worker, current))
        current.progress_at = now
        self._watch_progress(worker, current)

    def _on_check_limit(self, worker: WorkerHandle, current: CurrentRun) -> None:
        log.warning("a check took longer than %g s: job %s", CHECK_LIMIT, current.queued.run.id)
        self._interrupt(worker, "timeout", self.grace)

    def _on_timeout(self, worker: WorkerHandle, current: CurrentRun) -> None:
        run = current.queued.run
        log.warning("a run took longer than its timeout of %g s: job %s", run.timeout, run.id)
        self._interrupt(worker, "timeout", self.grace)

    def _watch_progress(self, worker: WorkerHandle, current: CurrentRun) -> None:
        """Look again when the run will have been quiet for as long as it may."""
        seconds = current.queued.run.stall_timeout
        if seconds is not None:
            current.stall_timer = self._loop.at(
                current.progress_at + seconds, partial(self._on_stall_timer, worker, current)
            )

    def _on_stall_timer(self, worker: WorkerHandle, current: CurrentRun) -> None:
        """End a run that has been quiet for too long, unless the slate has news."""
        run = current.queued.run
        assert run.stall_timeout is not None
        self._read_page(worker, current)
        if time.monotonic() < current.progress_at + run.stall_timeout:
            self._watch_progress(worker, current)
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
            current = self._begin(worker, Started(id=id, claims=claims, pid=worker.pid, at=at), time.monotonic())
        if worker.stop_reason and not crash_outcomes.fits_stop(ended.outcome, worker.stop_reason):
            ended = crash_outcomes.overruled_by_stop(ended, worker.stop_reason, current)
            payload = encode(ended)
        if ended.outcome == "TimedOut":
            ended = crash_outcomes.with_limit(ended, current)
            payload = encode(crash_outcomes.stalled(ended) if current.has_stalled else ended)
        if ended.outcome == "Interrupted" and not _was_stop_requested(worker):
            payload = encode(crash_outcomes.interrupted_by_stranger(ended))
        self._reports.run_ended(current.queued, payload)
        if ended.took is not None:
            self.run_times.add(current.queued.run.job, ended.took)
        self.changed_at = time.monotonic()
        worker.finish(self.changed_at)
        if ended.confirm:
            worker.hooks_key = current.queued.key
        if worker.escalation is not None:
            worker.escalation.cancel()
            worker.escalation = None
        if self._max_memory and child_process.memory_of(worker.pid) > self._max_memory:
            worker.replace_later(
                f"it holds more than {self._max_memory / crash_outcomes.MIB:.0f} MiB of memory", ended.id
            )

    def _on_progressed(self, worker: WorkerHandle, progressed: Progressed, payload: bytes) -> None:
        self.refresh(worker)
        self._reports.forward(payload)
        current = worker.current
        if current is None:
            return
        current.progress_at = time.monotonic()
        if progressed.progress is not None:
            current.known_progress_at, current.progress, current.progress_message = (
                progressed.at,
                progressed.progress,
                progressed.message,
            )
        if progressed.position is not None:
            current.position = progressed.position
        if progressed.progress is None and progressed.position is None:
            return
        current.reported_at = current.progress_at
        if not current.is_page_watched:
            current.is_page_watched = True
            self._read_page_later(worker, current)

    def _read_page_later(self, worker: WorkerHandle, current: CurrentRun) -> None:
        """Look at the slate in a while: the latest news may have come too soon after those before to be sent."""
        after = PROGRESS_EVERY if current.position is None else POSITION_EVERY
        self._loop.at(time.monotonic() + after, partial(self._on_page_timer, worker, current))

    def _on_page_timer(self, worker: WorkerHandle, current: CurrentRun) -> None:
        if worker.current is not current:
            return
        has_moved = self._read_position(worker, current)
        if (
            time.time() - current.known_progress_at < PROGRESS_EVERY - POSITION_EVERY / 2
        ):  # progress was told a moment ago (PTS-21)
            current.is_page_watched = True
        else:
            current.is_page_watched = self._read_page(worker, current) or has_moved
        if (
            time.monotonic() - current.reported_at < PROGRESS_EVERY
        ):  # the worker may have written down what it did not tell
            current.is_page_watched = True
        if current.is_page_watched:
            self._read_page_later(worker, current)

    def _read_page(self, worker: WorkerHandle, current: CurrentRun) -> bool:
        """Report progress and places that the node does not know, and return whether there were any."""
        has_moved = self._read_position(worker, current)
        entry = worker.page.read_progress()
        if entry is None or entry.number != current.number or entry.at <= current.known_progress_at:
            return has_moved
        current.known_progress_at, current.progress, current.progress_message = entry.at, entry.progress, entry.message
        current.progress_at = time.monotonic()
        id, claims = current.queued.key
        progressed = Progressed(
            id=id, claims=claims, progress=entry.progress, message=entry.message, state=None, at=entry.at
        )
        self._reports.add(progressed)
        return True

    def _read_position(self, worker: WorkerHandle, current: CurrentRun) -> bool:
        position = worker.page.read_position(current.number)
        if position is None or position == current.position:
            return False
        current.position = position
        current.progress_at = time.monotonic()
        id, claims = current.queued.key
        progressed = Progressed(
            id=id, claims=claims, progress=None, message="", state=None, at=time.time(), position=position
        )
        self._reports.add(progressed)
        return True


def _check_run(worker: WorkerHandle, key: Key) -> None:
    """Raise ``ChannelBroken`` if it is not the turn of this run: messages to or from the worker are missing."""
    current = worker.current
    expected = current.queued.key if current is not None else worker.pending[0][1].key if worker.pending else None
    if key != expected:
        raise ChannelBroken(f"it tells of run {key[0]}:{key[1]} when it is the turn of {expected}")


def _check_permit(worker: WorkerHandle, missed: int) -> None:
    """Raise ``ChannelBroken`` if the worker misses a ticket that nobody has taken back: a job has read the pipe."""
    if missed and any(number == missed for number, _ in worker.pending):
        raise ChannelBroken("a permit to begin a run, which the worker had been sent, did not reach it")


def _kill_reason(worker: WorkerHandle, killer: str) -> str:
    """Return who ended a worker, as far as that is known."""
    return f"its manager ended it: {worker.kill_reason}" if worker.kill_reason else killer


def _was_stop_requested(worker: WorkerHandle) -> bool:
    """Return whether node or manager wanted the worker's run to end, or all runs."""
    return worker.was_signalled or worker.page.is_node_stopping
