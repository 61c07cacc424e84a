"""One worker as its manager knows it: its process, its state, and its runs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from taskqueue.daemon.manager.stop_escalation import StopEscalation
from taskqueue.daemon.protocol.channel import Channel, ChannelClosed
from taskqueue.daemon.protocol.messages import Key, Run, Started
from taskqueue.daemon.protocol.shared_memory import Entry, WorkerPage
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime.child_process import Child
from taskqueue.daemon.runtime.loop import Timer


@dataclass(eq=False, slots=True)
class QueuedRun:
    """A run with the bytes of its message, which go to the worker unchanged."""

    run: Run
    payload: bytes
    queued_at: float
    sequence: int
    """Runs start in this order."""
    is_hook: bool = False
    """It is a leader hook: not a claim, so it is never handed back for another node to run."""
    stop_reason: str = ""
    """Why to end the run as soon as it has started; empty if it should run."""

    @property
    def key(self) -> Key:
        """Return the key of the claim."""
        return self.run.id, self.run.claims


@dataclass(eq=False, slots=True)
class CurrentRun:
    """The run that a worker is executing."""

    queued: QueuedRun
    number: int
    started: Started
    began_at: float
    timeout_timer: Timer | None = None
    stall_timer: Timer | None = None
    """Ends the run if it gives no sign of progress for its ``stall_timeout``."""
    progress_at: float = 0.0
    """Time of the last sign of progress, or of the start."""
    is_checking: bool = False
    """The worker only checks the job's condition."""
    has_stalled: bool = False
    reported_at: float = 0.0
    """Time of the worker's last message with progress or position."""
    known_progress_at: float = 0.0
    """Time, on the host's clock, of the latest progress that the node knows."""
    is_page_watched: bool = False
    """A timer is set that reads newer progress from the worker page."""
    progress: float = 0.0
    progress_message: str = ""
    position: str | None = None
    """The latest position of its loops that the node knows."""

    def restart(self, started: Started) -> None:
        """Begin the run itself after the check of its condition."""
        self.stop_timers()
        self.started = started

    def note_progress(self, progress: float, message: str, at: float) -> None:
        """Record the progress that is reported to the node; ``at`` is a time of the host's clock."""
        self.known_progress_at, self.progress, self.progress_message = at, progress, message

    def stop_timers(self) -> None:
        """Cancel the timers that would end the run."""
        for timer in (self.timeout_timer, self.stall_timer):
            if timer is not None:
                timer.cancel()


class WorkerStage(Enum):
    """The stages in the life of a worker."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(eq=False, kw_only=True)
class WorkerHandle:
    """One worker. Its runs are numbered in the order it gets them; ``pending`` are those it has not started."""

    child: Child
    channel: Channel
    page: WorkerPage
    start_entry: Entry
    permits: StartPermits
    signal_pipe: int
    forked_at: float
    max_runs: int
    """Runs after which it is replaced; 0 for no limit."""
    is_forced: bool = False
    """It was started for one job with ``force_spawn``, outside the bounds of the pool."""
    stage: WorkerStage = WorkerStage.STARTING
    idle_since: float = 0.0
    current: CurrentRun | None = None
    pending: deque[tuple[int, QueuedRun]] = field(default_factory=deque)
    runs_given: int = 0
    runs_begun: int = 0
    last_number: int = 0
    """The number of the run that ended last."""
    hooks_key: Key | None = None
    """The claim whose outcome the node has yet to settle, or whose hooks are running."""
    hooks_timer: Timer | None = None
    is_unresponsive: bool = False
    """It did not start the runs it was given, as if stopped by SIGSTOP; it gets none until it sends a message."""
    to_be_replaced: bool = False
    """It is replaced as soon as it has no run."""
    is_outdated: bool = False
    """It is replaced as soon as it has no run and no other worker is starting or leaving."""
    escalation: StopEscalation | None = None
    stop_reason: str = ""
    """Why its present run has to end; empty if it was not asked to."""
    was_signalled: bool = False
    kill_reason: str = ""
    """Why its manager killed it; empty if it did not."""
    replace_reason: str = ""
    """Why it is replaced, and for which job."""
    replace_job: str = ""
    last_queued: QueuedRun | None = None
    """The run that ended last."""
    lines_seen: int = 0
    """The bytes of log lines that its page had at the last look."""
    warned_run: CurrentRun | None = None
    """The run for which a warning was logged that it locks the store."""
    unsent: list[bytes] = field(default_factory=list)
    """Runs and messages to be sent by ``flush``."""
    _unissued: list[int] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.child.pid

    @property
    def is_idle(self) -> bool:
        """Return whether it can take a run at once."""
        return self.stage is WorkerStage.READY and self.is_free and not self.is_unresponsive

    @property
    def is_free(self) -> bool:
        """Return whether it has no run and no hooks."""
        return self.current is None and not self.pending and self.hooks_key is None

    @property
    def is_about_to_start(self) -> bool:
        """Return whether it has a run whose start is not known."""
        return self.stage is WorkerStage.READY and bool(self.pending) and self.current is None

    @property
    def takes_more(self) -> bool:
        """Return whether it may be given a run."""
        unfit = (
            self.to_be_replaced
            or self.is_outdated
            or self.is_unresponsive
            or self.reached_max_runs
            or self.escalation is not None
        )
        return self.stage is WorkerStage.READY and self.hooks_key is None and not unfit

    @property
    def reached_max_runs(self) -> bool:
        """Return whether it was given as many runs as it may execute."""
        return 0 < self.max_runs <= self.runs_begun + len(self.pending)

    @property
    def suspect(self) -> QueuedRun | None:
        """Return the present run, or else the last one: the one to blame if the worker dies."""
        return self.current.queued if self.current is not None else self.last_queued

    def replace_later(self, replace_reason: str, job: str = "") -> None:
        """Have it replaced as soon as it has no run; the first reason and its job are kept."""
        self.to_be_replaced = True
        if not self.replace_reason:
            self.replace_reason, self.replace_job = replace_reason, job

    def give(self, queued: QueuedRun) -> None:
        """Add a run with its permit, to be sent by ``flush``."""
        self.runs_given += 1
        self._unissued.append(self.runs_given)
        self.pending.append((self.runs_given, queued))
        self.unsent.append(queued.payload)

    @property
    def current_number(self) -> int:
        """Return the number of the current run, or of the last one while its hooks run."""
        return self.current.number if self.current is not None else self.last_number

    def stop_pending(self, reason: str, key: Key | None = None) -> None:
        """End pending runs, or only the one with ``key``, as soon as they have started."""
        for _, queued in self.pending:
            if key is None or queued.key == key:
                queued.stop_reason = reason

    def stop_current(self, reason: str, escalation: StopEscalation) -> None:
        """Note that the current run or its hooks are asked to end, by ``escalation``."""
        if self.current is not None:
            self.stop_reason = reason
        self.escalation = escalation

    def start_hooks(self, settled: bytes, timer: Timer) -> None:
        """Send the message after which the worker calls its hooks; ``timer`` limits their time."""
        self.queue_message(settled)
        self.hooks_timer = timer

    def retire(self, escalation: StopEscalation) -> None:
        """Close its channel, which tells it to exit; ``escalation`` kills it if it does not."""
        self.stage = WorkerStage.LEAVING
        self.channel.close()
        if self.escalation is not None:  # another process has sent it SIGTERM
            self.escalation.cancel()
        self.escalation = escalation

    def mark_unresponsive(self) -> None:
        """Give it no runs until it sends a message, if it has started none of those it was given."""
        self.is_unresponsive = self.is_free

    def mark_outdated(self) -> None:
        """Have it replaced, one worker at a time, to load new code."""
        self.is_outdated = True

    def queue_message(self, payload: bytes) -> None:
        """Add a message, to be sent by ``flush``."""
        self.unsent.append(payload)

    def flush(self) -> None:
        """Send runs and messages in one write; permits first, so that no run arrives without one."""
        if self._unissued:
            self.permits.issue(self._unissued)
            self._unissued.clear()
        if self.unsent and self.channel.fileno() >= 0:
            self.channel.send(*self.unsent)
            self.unsent.clear()

    def take_back(self) -> list[QueuedRun]:
        """Revoke permits, and return the runs that the worker can no longer start, in order."""
        self.flush()
        taken = set(self.permits.revoke())
        back = [queued for number, queued in self.pending if number in taken]
        self.pending = deque((number, queued) for number, queued in self.pending if number not in taken)
        return back

    def begin(self, started: Started, now: float) -> CurrentRun:
        """Make the next pending run the current one, and return it."""
        self.runs_begun += 1
        number, queued = self.pending.popleft()
        self.current = CurrentRun(queued, number, started, now)
        return self.current

    def finish(self, now: float, *, has_hooks: bool) -> None:
        """End the current run; with ``has_hooks`` the worker waits until the outcome is settled."""
        assert self.current is not None
        self.current.stop_timers()
        self.last_number = self.current.number
        self.last_queued = self.current.queued
        self.current = None
        self.stop_reason = ""
        self.idle_since = now
        if has_hooks:
            self.hooks_key = self.last_queued.key
        if self.escalation is not None:
            self.escalation.cancel()
            self.escalation = None

    def became_ready(self, now: float) -> None:
        """Note that it can take a run: it has started, its hooks have ended, or a run it got was revoked."""
        if self.stage is WorkerStage.STARTING:
            self.stage = WorkerStage.READY
        self.is_unresponsive = False
        self.hooks_key = None
        if self.hooks_timer is not None:
            self.hooks_timer.cancel()
        self.idle_since = now

    @property
    def busy_since(self) -> float:
        """Return the time when its current run started, or when the next one could have."""
        if self.current is not None:
            return self.current.began_at
        return max(self.idle_since, self.pending[0][1].queued_at) if self.pending else self.idle_since

    def busy_for(self, now: float) -> float:
        """Return for how many seconds its current run has been in progress; 0 without one."""
        return 0.0 if self.current is None else now - self.current.began_at

    def remaining_messages(self) -> Iterator[bytes]:
        """Yield the messages that it sent before it died."""
        if self.channel.fileno() < 0:
            return
        try:
            while (payload := self.channel.wait(0)) is not None:
                yield payload
        except ChannelClosed:
            return

    def close(self) -> None:
        """Cancel its timers and close its descriptors."""
        if self.escalation is not None:
            self.escalation.cancel()
        if self.current is not None:
            self.current.stop_timers()
        if self.hooks_timer is not None:
            self.hooks_timer.cancel()
        self.current = None  # a timer that reads the page may be due
        self.channel.close()
        self.permits.close()
        self.page.close()
        self.child.close()
        os.close(self.signal_pipe)
