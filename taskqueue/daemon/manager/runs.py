"""Runs in the manager: in the queue until a worker starts them, current until they end, and reported to its node."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.codec import encode
from taskqueue.daemon.protocol.messages import Key, Message, RunsHandedBack, Started
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
    """It is a node hook: not a claim, so it is never handed back for another node to run."""
    stop_reason: str = ""
    """Why to end the run as soon as it has started; empty if it should run."""

    @property
    def key(self) -> Key:
        """Return the key of its claim."""
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
    """Whether the worker is only checking the job's condition."""
    has_stalled: bool = False
    reported_at: float = 0.0
    """Time of the worker's last message with progress or position."""
    known_progress_at: float = 0.0
    """When the latest progress was made that the node knows, in seconds since the boot of the host."""
    is_page_watched: bool = False
    """Whether a timer is set that reads newer progress from the worker page."""
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
        """Start the run itself after the check of its condition."""
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


class ReportQueue:
    """The reports of one turn of the loop, which leave in one write."""

    def __init__(self, node: Channel) -> None:
        self._node = node
        self._payloads: list[bytes] = []
        self._starts: dict[Key, int] = {}

    def add(self, message: Message) -> None:
        """Add a report of the manager itself."""
        self._payloads.append(encode(message))

    def forward(self, payload: bytes) -> None:
        """Add a worker's message as it came."""
        self._payloads.append(payload)

    def run_began(self, queued: QueuedRun, payload: bytes) -> None:
        """Add the start of a run."""
        self._starts[queued.key] = len(self._payloads)
        self._payloads.append(payload)

    def run_ended(self, queued: QueuedRun, payload: bytes) -> None:
        """Add the end of a run, and drop its start if both are of the same turn: the end includes the start time."""
        start = self._starts.pop(queued.key, None) if self._starts else None
        if start is not None:
            self._payloads[start] = b""
        self._payloads.append(payload)

    def hand_back(self, queued_runs: Collection[QueuedRun]) -> None:
        """Report that these runs were not started and come back."""
        if queued_runs:
            self.add(RunsHandedBack(runs=[[queued.run.id, queued.run.claims] for queued in queued_runs]))

    def send(self) -> None:
        """Send all buffered reports."""
        if not self._payloads:
            return
        payloads = [payload for payload in self._payloads if payload]
        self._payloads.clear()
        self._starts.clear()
        if payloads:
            self._node.send(*payloads)


class RunQueue:
    """Runs in the order in which they came; a queue for ``force_spawn`` and for each class with ``concurrency``."""

    def __init__(self, reports: ReportQueue) -> None:
        self._reports = reports
        self._is_open = True
        self.general: deque[QueuedRun] = deque()
        self.forced: deque[QueuedRun] = deque()
        self.concurrent: dict[str, deque[QueuedRun]] = {}
        """The queue of each class with ``concurrency``."""

    def open(self) -> None:
        """Accept runs from now on."""
        self._is_open = True

    def close(self) -> None:
        """Hand back all runs, including runs that arrive from now on."""
        self._is_open = False
        self.put_back(())

    def add(self, queued: QueuedRun) -> None:
        """Add a run at the end, or hand it back if the queue is closed; node hooks run even then."""
        if not self._is_open and not queued.is_hook:
            self._reports.hand_back([queued])
            return
        if queued.run.concurrency > 1:
            self.concurrent.setdefault(queued.run.job, deque()).append(queued)
            return
        (self.forced if queued.run.force_spawn else self.general).append(queued)

    def put_back(self, queued_runs: Iterable[QueuedRun]) -> None:
        """Put runs back at their place in the order."""
        ordered = sorted((*chain(*self._all), *queued_runs), key=attrgetter("sequence"))
        for queue in self._all:
            queue.clear()
        if not self._is_open:
            self._reports.hand_back(ordered)
            return
        for queued in ordered:
            self.add(queued)

    def hand_back(self, key: Key) -> bool:
        """Hand back one run; return whether it was in the queue."""
        for queued_runs in self._all:
            for queued in queued_runs:
                if queued.key == key:
                    queued_runs.remove(queued)
                    self._reports.hand_back([queued])
                    return True
        return False

    def hand_back_latest(self, count: int) -> None:
        """Hand back up to ``count`` runs, the latest first."""
        self._reports.hand_back([self.general.pop() for _ in range(min(count, len(self.general)))])

    def hand_back_concurrent(self, job: str) -> None:
        """Hand back all runs of a class with ``concurrency`` that are without a run slot."""
        self._reports.hand_back(self.concurrent[job].copy())
        self.concurrent[job].clear()

    def hand_back_beside_pool(self) -> None:
        """Hand back all runs whose worker beside the pool is not there; node hooks stay, since they are no claims."""
        for job in self.concurrent:
            self.hand_back_concurrent(job)
        back = [queued for queued in self.forced if not queued.is_hook]
        self.forced = deque(queued for queued in self.forced if queued.is_hook)
        self._reports.hand_back(back)

    @property
    def _all(self) -> tuple[deque[QueuedRun], ...]:
        return self.general, self.forced, *self.concurrent.values()
