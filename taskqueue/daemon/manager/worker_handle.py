"""The workers as their manager knows them: who there is, and which run each of them has."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from taskqueue.daemon.manager.scaling import PoolState
from taskqueue.daemon.manager.stop_escalation import StopEscalation
from taskqueue.daemon.protocol.channel import Channel, ChannelClosed, pair
from taskqueue.daemon.protocol.messages import Key, Run, Started
from taskqueue.daemon.protocol.start_log import Entry, StartLog
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.protocol.worker_page import WorkerPage
from taskqueue.daemon.runtime.child_process import Child, fork
from taskqueue.daemon.runtime.loop import Timer
from taskqueue.daemon.worker.worker import Worker


@dataclass(eq=False, slots=True)
class QueuedRun:
    """A run in the hands of the manager, with the bytes in which it came."""

    run: Run
    payload: bytes
    queued_at: float
    sequence: int
    """Runs are begun in this order."""
    stop_reason: str = ""
    """Why the run is to be ended as soon as it has begun; empty if it is not."""

    @property
    def key(self) -> Key:
        """Return what names the claim."""
        return self.run.id, self.run.claims


@dataclass(eq=False, slots=True)
class CurrentRun:
    """The run that a member is busy with."""

    queued: QueuedRun
    number: int
    started: Started
    began_at: float
    timeout_timer: Timer | None = None
    stall_timer: Timer | None = None
    """Ends the run if it gives no sign of progress for its ``stall_timeout``."""
    progress_at: float = 0.0
    """When it last gave such a sign, or began."""
    is_checking: bool = False
    """It is only asked whether it is ready."""
    has_stalled: bool = False
    reported_at: float = 0.0
    """When the worker last told its progress or position by itself."""
    known_progress_at: float = 0.0
    """The moment, on the host's clock, of the latest progress that the node knows."""
    is_page_watched: bool = False
    """The slate will be looked at for newer progress."""
    progress: float = 0.0
    progress_message: str = ""
    position: str | None = None
    """The latest place of its loops that the node knows."""

    def stop_timers(self) -> None:
        """Ask for no more ends of the run."""
        for timer in (self.timeout_timer, self.stall_timer):
            if timer is not None:
                timer.cancel()


class WorkerStage(Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(eq=False, kw_only=True)
class WorkerHandle:
    """One worker. Runs are numbered in the order in which it gets them; ``pending`` are those it has not begun."""

    child: Child
    channel: Channel
    page: WorkerPage
    start_entry: Entry
    permits: StartPermits
    signal_pipe: int
    forked_at: float
    max_runs: int
    """0 for no bound."""
    is_forced: bool = False
    """It was started for one job with ``force_spawn``, outside of the pool."""
    stage: WorkerStage = WorkerStage.STARTING
    idle_since: float = 0.0
    current: CurrentRun | None = None
    pending: deque[tuple[int, QueuedRun]] = field(default_factory=deque)
    runs_given: int = 0
    runs_begun: int = 0
    last_number: int = 0
    """The number of the run that it ended last."""
    hooks_key: Key | None = None
    """The claim whose outcome is to be confirmed, or whose hooks are running."""
    hooks_timer: Timer | None = None
    is_unresponsive: bool = False
    """It did not begin what it was given, as if it were stopped: until it is heard of again it gets nothing."""
    to_be_replaced: bool = False
    """It is replaced when it is between jobs."""
    is_outdated: bool = False
    """It is replaced when it is between jobs and no other is."""
    escalation: StopEscalation | None = None
    stop_reason: str = ""
    """Why it was asked to end its present run, once it was."""
    was_signalled: bool = False
    kill_reason: str = ""
    """What made its manager end it, whatever it was doing."""
    replace_reason: str = ""
    """Why it is replaced."""
    replace_job: str = ""
    last_queued: QueuedRun | None = None
    """The run that it ended last."""
    warned_run: CurrentRun | None = None
    """The run of which was told that it keeps the store locked."""
    _unissued: list[int] = field(default_factory=list)
    _unsent: list[bytes] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.child.pid

    @property
    def is_idle(self) -> bool:
        """Return whether it waits for a run."""
        return self.stage is WorkerStage.READY and self.is_free and not self.is_unresponsive

    @property
    def is_free(self) -> bool:
        """Return whether it has nothing to do."""
        return self.current is None and not self.pending and self.hooks_key is None

    @property
    def is_about_to_start(self) -> bool:
        """Return whether it has a run to begin, as far as is known."""
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
        """Return whether it was given as many runs as it may do."""
        return 0 < self.max_runs <= self.runs_begun + len(self.pending)

    @property
    def suspect(self) -> QueuedRun | None:
        """Return the run that it is busy with, or else ended last."""
        return self.current.queued if self.current is not None else self.last_queued

    def replace_later(self, replace_reason: str, job: str = "") -> None:
        """Have it replaced when it is between jobs; the first reason stays, and which job it was."""
        self.to_be_replaced = True
        if not self.replace_reason:
            self.replace_reason, self.replace_job = replace_reason, job

    def give(self, queued: QueuedRun) -> None:
        """Hand over a run with its ticket, when ``flush`` is called."""
        self.runs_given += 1
        self._unissued.append(self.runs_given)
        self.pending.append((self.runs_given, queued))
        self._unsent.append(queued.payload)

    def queue_message(self, payload: bytes) -> None:
        """Pass on a message, when ``flush`` is called."""
        self._unsent.append(payload)

    def flush(self) -> None:
        """Send what was given, all in one; tickets first, so that no run comes without."""
        if self._unissued:
            self.permits.issue(self._unissued)
            self._unissued.clear()
        if self._unsent and self.channel.fileno() >= 0:
            self.channel.send(*self._unsent)
            self._unsent.clear()

    def take_back(self) -> list[QueuedRun]:
        """Return the runs that it can no longer begin, first come first."""
        self.flush()
        taken = set(self.permits.revoke())
        back = [queued for number, queued in self.pending if number in taken]
        self.pending = deque((number, queued) for number, queued in self.pending if number not in taken)
        return back

    def begin(self, started: Started, now: float) -> CurrentRun:
        """Take in that the next run began, and return it."""
        self.runs_begun += 1
        number, queued = self.pending.popleft()
        self.current = CurrentRun(queued, number, started, now)
        return self.current

    def finish(self, now: float) -> None:
        """Take in that the present run is over."""
        assert self.current is not None
        self.current.stop_timers()
        self.last_number = self.current.number
        self.last_queued = self.current.queued
        self.current = None
        self.stop_reason = ""
        self.idle_since = now

    def became_ready(self, now: float) -> None:
        """Take in that it can do a run: it has started, its hooks are over, or it missed what was taken back."""
        if self.stage is WorkerStage.STARTING:
            self.stage = WorkerStage.READY
        self.is_unresponsive = False
        self.hooks_key = None
        if self.hooks_timer is not None:
            self.hooks_timer.cancel()
        self.idle_since = now

    @property
    def busy_since(self) -> float:
        """Return since when it is at its present run, or could have begun the next one."""
        if self.current is not None:
            return self.current.began_at
        return max(self.idle_since, self.pending[0][1].queued_at) if self.pending else self.idle_since

    def remaining_messages(self) -> Iterator[bytes]:
        """Yield what it sent before it died."""
        if self.channel.fileno() < 0:
            return
        try:
            while (payload := self.channel.wait(0)) is not None:
                yield payload
        except ChannelClosed:
            return

    def close(self) -> None:
        """Let go of what belonged to it."""
        if self.escalation is not None:
            self.escalation.cancel()
        if self.current is not None:
            self.current.stop_timers()
        if self.hooks_timer is not None:
            self.hooks_timer.cancel()
        self.current = None  # a look at the slate may be due
        self.channel.close()
        self.permits.close()
        self.page.close()
        self.child.close()
        os.close(self.signal_pipe)


class Workers:
    """All workers of one manager."""

    def __init__(
        self, *, url: str, bootstrap: Path | None, allow: Collection[str], keep: Collection[int], start_log: StartLog
    ) -> None:
        self._start_log = start_log
        self._url = url
        self._bootstrap = bootstrap
        self._allow = allow
        self._keep = keep
        self.handles: list[WorkerHandle] = []

    def spawn(self, *, now: float, max_runs: int, is_forced: bool) -> WorkerHandle:
        """Fork a worker. Raises ``ForkUnsafe`` and ``OSError``."""
        ours, theirs = pair()
        page, start_entry, permits = WorkerPage(), self._start_log.acquire(), StartPermits()
        signal_pipe, signals = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def live() -> int:
            return Worker(
                channel=theirs,
                page=page,
                start_entry=start_entry,
                permits=permits,
                signal_pipe=signals,
                url=self._url,
                bootstrap=self._bootstrap,
                allow=self._allow,
            ).run()

        keep = (*self._keep, theirs.fileno(), permits.fileno(), signals)
        try:
            child = fork(live, name="worker", keep=keep)
        except BaseException:
            ours.close()
            permits.close()
            page.close()
            self._start_log.release(start_entry)
            os.close(signal_pipe)
            raise
        finally:
            theirs.close()
            os.close(signals)
        worker = WorkerHandle(
            child=child,
            channel=ours,
            page=page,
            start_entry=start_entry,
            permits=permits,
            signal_pipe=signal_pipe,
            forked_at=now,
            max_runs=max_runs,
            is_forced=is_forced,
        )
        self.handles.append(worker)
        return worker

    def remove(self, worker: WorkerHandle) -> None:
        """Forget a worker that is gone."""
        self.handles.remove(worker)
        worker.close()
        self._start_log.release(worker.start_entry)

    @property
    def pids(self) -> list[int]:
        """Return the pids of all workers."""
        return [worker.pid for worker in self.handles]

    def pool_state(self, waiting: int, forced_waiting: int) -> PoolState:
        """Return the figures that the pool is planned by."""
        general = [worker for worker in self.handles if not worker.is_forced]
        is_forced = [worker for worker in self.handles if worker.is_forced]
        present = [worker for worker in general if worker.stage is WorkerStage.READY]
        idle = {worker.pid: worker.idle_since for worker in present if worker.is_idle and not worker.to_be_replaced}
        return PoolState(
            idle=idle,
            busy=len(present) - len(idle),
            starting=sum(worker.stage is WorkerStage.STARTING for worker in general),
            leaving=sum(worker.stage is WorkerStage.LEAVING for worker in general),
            waiting=waiting,
            forced_starting=sum(worker.stage is WorkerStage.STARTING for worker in is_forced),
            forced_waiting=forced_waiting,
        )
