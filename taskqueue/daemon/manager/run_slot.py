"""A run slot as the manager knows it: room for one run in a worker, with its present run and its timers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from taskqueue.daemon.manager.stop_escalation import Process, StopEscalation
from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import EndKind, Key, Started
from taskqueue.daemon.protocol.shared_memory import Entry, WorkerPage
from taskqueue.daemon.protocol.stack_file import StackFile
from taskqueue.daemon.runtime.child_process import Child
from taskqueue.daemon.runtime.loop import Timer
from taskqueue.execution.run import Run


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
    """When the latest progress was made that the node knows, in seconds since the boot of the host."""
    is_page_watched: bool = False
    """A timer is set that reads newer progress from the worker page."""
    progress: float = 0.0
    progress_message: str = ""
    page_reported_at: float = float("-inf")
    """Time of the last report of progress that was read from the worker page."""
    held_progress: bytes = b""
    """A worker's message that came too soon after such a report; newer progress supersedes it."""
    position: str | None = None
    """The latest position of its loops that the node knows."""
    stack_request: int = 0
    """The number of the request for its last stack, made when it was asked to end; 0 if it was not."""

    def restart(self, started: Started) -> None:
        """Begin the run itself after the check of its condition."""
        self.stop_timers()
        self.started = started

    def note_progress(self, progress: float, message: str, at: float) -> None:
        """Record the progress that is reported to the node; ``at`` is in seconds since the boot of the host."""
        self.known_progress_at, self.progress, self.progress_message = at, progress, message
        self.held_progress = b""

    def stop_timers(self) -> None:
        """Cancel the timers that would end the run."""
        for timer in (self.timeout_timer, self.stall_timer):
            if timer is not None:
                timer.cancel()


class EndReason(NamedTuple):
    """Why a worker must end, in words and as it is counted."""

    words: str
    kind: EndKind = EndKind.OTHER


class Owner(Protocol):
    """The worker that has a run slot."""

    kill_reason: str
    stack_file: StackFile
    child: Child

    def replace_later(self, reason: EndReason, job: str = "") -> None:
        """Request its replacement as soon as it has no run."""

    def take_back(self) -> list[QueuedRun]:
        """Return the runs that it can no longer start."""


@dataclass(eq=False, kw_only=True)
class RunSlot(ABC):
    """Room for one run. Its runs are numbered in the order it gets them; ``pending`` are those not started."""

    pid: int
    """The process id of its worker."""
    page: WorkerPage
    start_entry: Entry
    idle_since: float = 0.0
    current: CurrentRun | None = None
    pending: deque[tuple[int, QueuedRun]] = field(default_factory=deque)
    runs_given: int = 0
    runs_begun: int = 0
    last_number: int = 0
    """The number of the run that ended last."""
    last_queued: QueuedRun | None = None
    """The run that ended last."""
    lines_seen: int = 0
    """The bytes of log lines that its page had at the last look."""
    hooks_key: Key | None = None
    """The claim whose outcome the node has yet to settle, or whose hooks are running."""
    hooks_timer: Timer | None = None
    escalation: StopEscalation | None = None
    stop_reason: str = ""
    """Why its present run has to end; empty if it was not asked to."""

    @property
    @abstractmethod
    def worker(self) -> Owner:
        """Return the worker that has the slot."""

    @property
    @abstractmethod
    def process(self) -> Process:
        """Return the process that ends with the run if the run does not end."""

    @property
    @abstractmethod
    def was_signalled(self) -> bool:
        """Return whether the manager has sent the SIGTERM that ends the run."""

    @property
    def is_free(self) -> bool:
        """Return whether it has no run and no hooks."""
        return self.current is None and not self.pending and self.hooks_key is None

    @property
    def suspect(self) -> QueuedRun | None:
        """Return the present run, or else the last one: the one to blame if the worker dies."""
        return self.current.queued if self.current is not None else self.last_queued

    @property
    def current_number(self) -> int:
        """Return the number of the current run, or of the last one while its hooks run."""
        return self.current.number if self.current is not None else self.last_number

    def check_run(self, key: Key) -> None:
        """Raise ``ChannelBroken`` if another run is due: messages to or from the worker are missing."""
        current, pending = self.current, self.pending
        expected = current.queued.key if current is not None else pending[0][1].key if pending else None
        if key != expected:
            raise ChannelBroken(f"the worker reports run {key[0]}:{key[1]} when it is the turn of {expected}")

    def check_permit(self, missed: int) -> None:
        """Raise ``ChannelBroken`` if the worker lacks a permit that was not revoked: a job has read the pipe."""
        if missed and any(number == missed for number, _ in self.pending):
            raise ChannelBroken("a permit to start a run was sent to the worker but did not reach it")

    def stop_pending(self, reason: str, key: Key | None = None) -> None:
        """End pending runs, or only the one with ``key``, as soon as they have started."""
        for _, queued in self.pending:
            if key is None or queued.key == key:
                queued.stop_reason = reason

    @abstractmethod
    def request_stop(self, reason: str) -> None:
        """Tell the worker why its present run, or the hooks, have to end."""

    def stop_current(self, reason: str, escalation: StopEscalation) -> None:
        """Note that the current run or its hooks are asked to end, by ``escalation``."""
        if self.current is not None:
            self.stop_reason = reason
        self.escalation = escalation

    @abstractmethod
    def start_hooks(self, settled: bytes, timer: Timer) -> None:
        """Send the message after which the worker calls its hooks; ``timer`` limits their time."""

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
        """Note that its hooks have ended, and it can take a run."""
        self.hooks_key = None
        if self.hooks_timer is not None:
            self.hooks_timer.cancel()
        self.idle_since = now

    def stop_timers(self) -> None:
        """Cancel all timers of its run."""
        if self.escalation is not None:
            self.escalation.cancel()
        if self.current is not None:
            self.current.stop_timers()
        if self.hooks_timer is not None:
            self.hooks_timer.cancel()
        self.current = None  # a timer that reads the page may be due
