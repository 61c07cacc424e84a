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
    came_at: float
    place: int
    """Runs are begun in this order."""
    stop: str = ""
    """Why the run is to be ended as soon as it has begun; empty if it is not."""

    @property
    def key(self) -> Key:
        """Return what names the claim."""
        return self.run.id, self.run.claims


@dataclass(eq=False, slots=True)
class CurrentRun:
    """The run that a member is busy with."""

    order: QueuedRun
    number: int
    started: Started
    began_at: float
    limit: Timer | None = None
    patience: Timer | None = None
    """Ends the run if it gives no sign of progress for its ``stall_timeout``."""
    heard_at: float = 0.0
    """When it last gave such a sign, or began."""
    is_checking: bool = False
    """It is only asked whether it is ready."""
    has_stalled: bool = False
    noted_at: float = 0.0
    """When the worker last told its progress or position by itself."""
    told: float = 0.0
    """The moment, on the host's clock, of the latest progress that the node knows."""
    is_looked_at: bool = False
    """The slate will be looked at for newer progress."""
    progress: float = 0.0
    progress_message: str = ""
    place: str | None = None
    """The latest place of its loops that the node knows."""

    def stop_timers(self) -> None:
        """Ask for no more ends of the run."""
        for timer in (self.limit, self.patience):
            if timer is not None:
                timer.cancel()


class RunStage(Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(eq=False, kw_only=True)
class WorkerHandle:
    """One worker. Runs are numbered in the order in which it gets them; ``ahead`` are those it has not begun."""

    child: Child
    channel: Channel
    slate: WorkerPage
    entry: Entry
    tickets: StartPermits
    lookout: int
    born_at: float
    runs_at_most: int
    """0 for no bound."""
    bound: bool = False
    """It was started for one job with ``force_spawn``, outside of the pool."""
    phase: RunStage = RunStage.STARTING
    idle_since: float = 0.0
    current: CurrentRun | None = None
    ahead: deque[tuple[int, QueuedRun]] = field(default_factory=deque)
    given: int = 0
    begun: int = 0
    last: int = 0
    """The number of the run that it ended last."""
    in_hooks: Key | None = None
    """The claim whose outcome is to be confirmed, or whose hooks are running."""
    hooks_limit: Timer | None = None
    is_silent: bool = False
    """It did not begin what it was given, as if it were stopped: until it is heard of again it gets nothing."""
    is_worn: bool = False
    """It is replaced when it is between jobs."""
    is_outdated: bool = False
    """It is replaced when it is between jobs and no other is."""
    ladder: StopEscalation | None = None
    reason: str = ""
    """Why it was asked to end its present run, once it was."""
    was_signalled: bool = False
    fault: str = ""
    """What made its manager end it, whatever it was doing."""
    why: str = ""
    """Why it is replaced."""
    why_job: str = ""
    last_order: QueuedRun | None = None
    """The run that it ended last."""
    warned: CurrentRun | None = None
    """The run of which was told that it keeps the store locked."""
    _unissued: list[int] = field(default_factory=list)
    _unsent: list[bytes] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.child.pid

    @property
    def is_idle(self) -> bool:
        """Tell whether it waits for a run."""
        return self.phase is RunStage.READY and self.is_free and not self.is_silent

    @property
    def is_free(self) -> bool:
        """Tell whether it has nothing to do."""
        return self.current is None and not self.ahead and self.in_hooks is None

    @property
    def is_given(self) -> bool:
        """Tell whether it has a run to begin, as far as is known."""
        return self.phase is RunStage.READY and bool(self.ahead) and self.current is None

    @property
    def takes_more(self) -> bool:
        """Tell whether it may be given a run."""
        unfit = self.is_worn or self.is_outdated or self.is_silent or self.is_spent or self.ladder is not None
        return self.phase is RunStage.READY and self.in_hooks is None and not unfit

    @property
    def is_spent(self) -> bool:
        """Tell whether it was given as many runs as it may do."""
        return 0 < self.runs_at_most <= self.begun + len(self.ahead)

    @property
    def culprit(self) -> QueuedRun | None:
        """Return the run that it is busy with, or else ended last."""
        return self.current.order if self.current is not None else self.last_order

    def wear(self, why: str, job: str = "") -> None:
        """Have it replaced when it is between jobs; the first reason stays, and which job it was."""
        self.is_worn = True
        if not self.why:
            self.why, self.why_job = why, job

    def give(self, order: QueuedRun) -> None:
        """Hand over a run with its ticket, when ``flush`` is called."""
        self.given += 1
        self._unissued.append(self.given)
        self.ahead.append((self.given, order))
        self._unsent.append(order.payload)

    def tell(self, payload: bytes) -> None:
        """Pass on a message, when ``flush`` is called."""
        self._unsent.append(payload)

    def flush(self) -> None:
        """Send what was given, all in one; tickets first, so that no run comes without."""
        if self._unissued:
            self.tickets.issue(self._unissued)
            self._unissued.clear()
        if self._unsent and self.channel.fileno() >= 0:
            self.channel.send(*self._unsent)
            self._unsent.clear()

    def take_back(self) -> list[QueuedRun]:
        """Return the runs that it can no longer begin, first come first."""
        self.flush()
        taken = set(self.tickets.take_back())
        back = [order for number, order in self.ahead if number in taken]
        self.ahead = deque((number, order) for number, order in self.ahead if number not in taken)
        return back

    def begin(self, started: Started, now: float) -> CurrentRun:
        """Take in that the next run began, and return it."""
        self.begun += 1
        number, order = self.ahead.popleft()
        self.current = CurrentRun(order, number, started, now)
        return self.current

    def end(self, now: float) -> None:
        """Take in that the present run is over."""
        assert self.current is not None
        self.current.stop_timers()
        self.last = self.current.number
        self.last_order = self.current.order
        self.current = None
        self.reason = ""
        self.idle_since = now

    def is_ready(self, now: float) -> None:
        """Take in that it can do a run: it has started, its hooks are over, or it missed what was taken back."""
        if self.phase is RunStage.STARTING:
            self.phase = RunStage.READY
        self.is_silent = False
        self.in_hooks = None
        if self.hooks_limit is not None:
            self.hooks_limit.cancel()
        self.idle_since = now

    @property
    def busy_since(self) -> float:
        """Return since when it is at its present run, or could have begun the next one."""
        if self.current is not None:
            return self.current.began_at
        return max(self.idle_since, self.ahead[0][1].came_at) if self.ahead else self.idle_since

    def last_words(self) -> Iterator[bytes]:
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
        if self.ladder is not None:
            self.ladder.stop()
        if self.current is not None:
            self.current.stop_timers()
        if self.hooks_limit is not None:
            self.hooks_limit.cancel()
        self.current = None  # a look at the slate may be due
        self.channel.close()
        self.tickets.close()
        self.slate.close()
        self.child.close()
        os.close(self.lookout)


class Workers:
    """All workers of one manager."""

    def __init__(
        self, *, url: str, bootstrap: Path | None, allow: Collection[str], keep: Collection[int], ledger: StartLog
    ) -> None:
        self._ledger = ledger
        self._url = url
        self._bootstrap = bootstrap
        self._allow = allow
        self._keep = keep
        self.members: list[WorkerHandle] = []

    def hire(self, *, now: float, runs_at_most: int, bound: bool) -> WorkerHandle:
        """Fork a worker. Raises ``ForkUnsafe`` and ``OSError``."""
        ours, theirs = pair()
        slate, entry, tickets = WorkerPage(), self._ledger.open(), StartPermits()
        lookout, signals = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def live() -> int:
            return Worker(
                channel=theirs,
                slate=slate,
                entry=entry,
                tickets=tickets,
                lookout=signals,
                url=self._url,
                bootstrap=self._bootstrap,
                allow=self._allow,
            ).run()

        keep = (*self._keep, theirs.fileno(), tickets.fileno(), signals)
        try:
            child = fork(live, name="worker", keep=keep)
        except BaseException:
            ours.close()
            tickets.close()
            slate.close()
            self._ledger.close(entry)
            os.close(lookout)
            raise
        finally:
            theirs.close()
            os.close(signals)
        member = WorkerHandle(
            child=child,
            channel=ours,
            slate=slate,
            entry=entry,
            tickets=tickets,
            lookout=lookout,
            born_at=now,
            runs_at_most=runs_at_most,
            bound=bound,
        )
        self.members.append(member)
        return member

    def dismiss(self, member: WorkerHandle) -> None:
        """Forget a worker that is gone."""
        self.members.remove(member)
        member.close()
        self._ledger.close(member.entry)

    @property
    def pids(self) -> list[int]:
        """Return the pids of all workers."""
        return [member.pid for member in self.members]

    def census(self, waiting: int, forced_waiting: int) -> PoolState:
        """Return the figures that the pool is planned by."""
        general = [member for member in self.members if not member.bound]
        bound = [member for member in self.members if member.bound]
        present = [member for member in general if member.phase is RunStage.READY]
        idle = {member.pid: member.idle_since for member in present if member.is_idle and not member.is_worn}
        return PoolState(
            idle=idle,
            busy=len(present) - len(idle),
            starting=sum(member.phase is RunStage.STARTING for member in general),
            leaving=sum(member.phase is RunStage.LEAVING for member in general),
            waiting=waiting,
            forced_starting=sum(member.phase is RunStage.STARTING for member in bound),
            forced_waiting=forced_waiting,
        )
