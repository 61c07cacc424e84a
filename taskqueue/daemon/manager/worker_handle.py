"""One worker as its manager knows it: its process, its stage, the slots in which it has runs, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import NamedTuple

from taskqueue.daemon.manager.runs import CurrentRun, QueuedRun
from taskqueue.daemon.protocol import messages
from taskqueue.daemon.protocol.channel import Channel, ChannelBroken
from taskqueue.daemon.protocol.codec import encode
from taskqueue.daemon.protocol.shared_memory import Entry, WorkerPage
from taskqueue.daemon.protocol.stack_file import StackFile
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime.child_process import Child
from taskqueue.daemon.runtime.loop import Loop, Timer

log = logging.getLogger(__name__)

SIGTERM_EVERY = 1.0
"""Seconds between two SIGTERM; an exception raised inside ``__del__`` or a C callback is lost, so it is repeated."""


class StopEscalation:
    """Ends a worker, or one of its runs: SIGTERM at once and each second, SIGKILL for its group after a grace."""

    def __init__(self, loop: Loop, process: Child | RunSlot, *, kill_at: float) -> None:
        self._loop = loop
        self._process = process
        self._signal_timer: Timer | None = None
        self._kill_timer = loop.at(kill_at, self._kill)

    def signal_now(self) -> None:
        """Send SIGTERM now and each second from now on."""
        self._process.signal(signal.SIGTERM)
        self.signal_later()

    def signal_later(self) -> None:
        """Send SIGTERM each second from now on; the first one has been sent."""
        self._signal_timer = self._loop.at(time.monotonic() + SIGTERM_EVERY, self.signal_now)

    def _stop_signaling(self) -> None:
        """Stop sending SIGTERM; SIGKILL stays scheduled."""
        if self._signal_timer is not None:
            self._signal_timer.cancel()

    def hasten(self, kill_at: float) -> None:
        """Bring SIGKILL forward to ``kill_at``, unless it is due earlier."""
        if self._kill_timer.is_pending and kill_at < self._kill_timer.deadline:
            self._kill_timer.cancel()
            self._kill_timer = self._loop.at(kill_at, self._kill)

    def cancel(self) -> None:
        """Stop sending signals."""
        self._stop_signaling()
        self._kill_timer.cancel()

    def _kill(self) -> None:
        self._stop_signaling()
        log.warning("killing a worker that did not end in time: pid %d", self._process.pid)
        self._process.kill_group()


ASKED_AGAIN_AFTER, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between two queries to a worker that does not answer: the first and the longest pause; they double."""


class EndReason(NamedTuple):
    """Why a worker must end, in words and as it is counted."""

    words: str
    kind: messages.EndKind = messages.EndKind.OTHER


ONE_JOB = EndReason("it was for one job", messages.EndKind.ONE_JOB)
SURPLUS = EndReason("it had nothing to do", messages.EndKind.IDLE)
STOP = EndReason("its node is stopping", messages.EndKind.SHUTDOWN)
"""Usual reasons why workers exit."""

OUTDATED = EndReason("its node was asked to load new code", messages.EndKind.RELOAD)


@dataclass(eq=False, kw_only=True)
class RunSlot:
    """Room for one run. Its runs are numbered in the order it gets them; ``pending`` are those not started."""

    worker: WorkerHandle
    number: int
    """Its number among the slots of its worker, from 1."""
    pid: int
    """The process id of its worker."""
    page: WorkerPage
    start_entry: Entry
    current: CurrentRun | None = None
    pending: deque[tuple[int, QueuedRun]] = field(default_factory=deque)
    runs_given: int = 0
    last_number: int = 0
    """The number of the run that ended last."""
    last_queued: QueuedRun | None = None
    """The run that ended last."""
    lines_seen: int = 0
    """The bytes of log lines that its page had when it was last read."""
    hooks_key: messages.Key | None = None
    """The claim whose outcome the node has yet to settle, or whose hooks are running."""
    hooks_timer: Timer | None = None
    escalation: StopEscalation | None = None
    stop_reason: str = ""
    """Why its current run has to end; empty if it was not asked to."""
    _stop_request: tuple[int, str] = 0, ""
    """The last request to end a run or its hooks: the number of the run and the reason."""

    @property
    def suspect(self) -> QueuedRun | None:
        """Return the current run, or else the last one: the run to blame if the worker dies."""
        return self.current.queued if self.current is not None else self.last_queued

    @property
    def current_number(self) -> int:
        """Return the number of the current run, or of the last one while its hooks run."""
        return self.current.number if self.current is not None else self.last_number

    @property
    def was_signalled(self) -> bool:
        """Return whether the manager has sent the SIGTERM that ends the run."""
        return self._stop_request[0] == self.current_number

    def check_run(self, key: messages.Key) -> None:
        """Raise ``ChannelBroken`` if another run is due: messages to or from the worker are missing."""
        current, pending = self.current, self.pending
        expected = current.queued.key if current is not None else pending[0][1].key if pending else None
        if key != expected:
            raise ChannelBroken(f"the worker reports run {key[0]}:{key[1]} when {expected} is next")

    def check_permit(self, missed: int) -> None:
        """Raise ``ChannelBroken`` if the worker lacks a permit that was not revoked: a job has read the pipe."""
        if missed and any(number == missed for number, _ in self.pending):
            raise ChannelBroken("a permit to start a run was sent to the worker but did not reach it")

    def stop_pending(self, reason: str, key: messages.Key | None = None) -> None:
        """End pending runs, or only the one with ``key``, as soon as they have started."""
        for _, queued in self.pending:
            if key is None or queued.key == key:
                queued.stop_reason = reason

    def request_stop(self, reason: str) -> None:
        """Tell the worker why its current run, or its hooks, have to end.

        A worker with one slot is replaced: the signal may come when its run has ended.
        """
        self._stop_request = self.current_number, reason
        self.page.request_stop(self.current_number, reason)
        if not self.worker.is_shared:
            words = f"its run was asked to end ({reason})"
            suspect = self.suspect
            self.worker.replace_later(
                EndReason(words, messages.EndKind.RUN_ENDED), "" if suspect is None else suspect.run.id
            )
            self.worker.has_signal = True

    def stop_current(self, reason: str, escalation: StopEscalation) -> None:
        """Note that the current run or its hooks are asked to end, by ``escalation``."""
        if self.current is not None:
            self.stop_reason = reason
        self.escalation = escalation

    def signal(self, signum: int) -> None:
        """Signal the worker, which looks up the run that must end."""
        worker = self.worker
        worker.signalled_at = time.monotonic()
        worker.slot.page.note_signal(worker.signalled_at)
        worker.child.signal(signum)

    def kill_group(self) -> None:
        """Kill the worker, because this run has not ended."""
        worker, queued = self.worker, self.suspect
        if worker.is_shared and queued is not None and not worker.kill_reason:
            reason = self._stop_request[1]
            worker.kill_reason = f"job {queued.run.id} was asked to end ({reason}) and did not within its grace"
        for slot in worker.busy_slots:  # all end with the worker, so one line about it is enough
            if slot.escalation is not None:
                slot.escalation.cancel()
        worker.child.kill_group()

    def begin(self, started: messages.Started, now: float) -> CurrentRun:
        """Make the next pending run the current one, and return it."""
        number, queued = pending = self.pending.popleft()
        self.worker.pending.remove(pending)
        self.worker.runs_begun += 1
        self.current = CurrentRun(queued, number, started, now)
        return self.current

    def finish(self, now: float, *, has_hooks: bool) -> None:
        """End the current run; with ``has_hooks`` the worker waits until the outcome is settled."""
        assert self.current is not None
        self.current.stop_timers()
        self.last_number = self.current.number
        self.last_queued = self.worker.last_queued = self.current.queued
        self.current = None
        self.stop_reason = ""
        self.worker.idle_since = now
        if self.escalation is not None:
            self.escalation.cancel()
            self.escalation = None
        if has_hooks:
            self.hooks_key = self.last_queued.key
        elif self.worker.is_shared:
            self.worker.release(self)

    def became_ready(self, now: float) -> None:
        """Note that its worker has started, its hooks have ended, or a run it got was revoked."""
        self.hooks_key = None
        if self.hooks_timer is not None:
            self.hooks_timer.cancel()
        if self.current is None and self.escalation is not None:  # the hooks were asked to end
            self.escalation.cancel()
            self.escalation = None
        self.worker.became_ready(now)
        self.worker.release(self)

    def stop_timers(self) -> None:
        """Cancel all timers of its run."""
        if self.escalation is not None:
            self.escalation.cancel()
        if self.current is not None:
            self.current.stop_timers()
        if self.hooks_timer is not None:
            self.hooks_timer.cancel()
        self.current = None  # a timer that reads the page may be due


class WorkerStage(Enum):
    """The stages in the life of a worker."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(eq=False, kw_only=True)
class WorkerHandle:
    """One worker: in the pool with one slot, which gets runs in advance, or with many slots for the jobs of a class."""

    child: Child
    pid: int
    channel: Channel
    permits: StartPermits
    signal_pipe: int
    stack_file: StackFile
    memory: InitVar[Iterable[tuple[WorkerPage, Entry]]]
    """The page and the entry of each slot."""
    forked_at: float
    max_runs: int
    """Runs after which it is replaced; 0 for no limit."""
    is_forced: bool
    """Whether it was started outside the bounds of the pool, for a job with ``force_spawn`` or for a class."""
    job: str = ""
    """The class with ``concurrency`` whose jobs it runs at once; empty if it runs one job of any class at a time."""
    slots: list[RunSlot] = field(init=False)
    free_slots: list[RunSlot] = field(init=False)
    """The slots that runs of its class can be given to."""
    taken_slots: dict[messages.Key, RunSlot] = field(default_factory=dict)
    """The slots with a run of its class, or with the hooks of one."""
    pending: deque[tuple[int, QueuedRun]] = field(default_factory=deque)
    """The runs of all slots that have not started."""
    stage: WorkerStage = WorkerStage.STARTING
    idle_since: float = 0.0
    idle_timer: Timer | None = None
    """Retires the worker of a class when it has had no run for a while."""
    runs_given: int = 0
    runs_begun: int = 0
    last_queued: QueuedRun | None = None
    """The run that ended last."""
    is_unresponsive: bool = False
    """It did not start the runs it was given, as if stopped by SIGSTOP; it gets none until it sends a message."""
    to_be_replaced: bool = False
    """Whether it is replaced as soon as it has no run."""
    is_outdated: bool = False
    """Whether it is replaced as soon as it has no run and no other worker is starting or leaving."""
    has_signal: bool = False
    """Whether its manager has sent it SIGTERM and is replacing it."""
    signalled_at: float = float("-inf")
    """When its manager sent the last SIGTERM."""
    retirement: StopEscalation | None = None
    """Kills it if it does not exit when told to."""
    kill_reason: str = ""
    """Why its manager killed it; empty if it did not."""
    replace_reason: EndReason | None = None
    """Why it is replaced, and for which job; None if it is not."""
    replace_job: str = ""
    failed_jobs: list[str] = field(default_factory=list)
    """The classes of its last runs, as far back as these have failed at once."""
    warned_run: CurrentRun | None = None
    """The run for which a warning was logged that it locks the store."""
    unsent: list[bytes] = field(default_factory=list)
    """Runs and messages to be sent by ``flush``."""
    _unissued: list[int] = field(default_factory=list)
    _assigned: list[int] = field(default_factory=list)
    _ask_again_at: float = 0.0
    _pause: float = 0.0
    _heard_at: float = float("-inf")
    """When the manager sent the last signal that the worker has reported."""

    def __post_init__(self, memory: Iterable[tuple[WorkerPage, Entry]]) -> None:
        self.slots = [
            RunSlot(worker=self, number=number, pid=self.pid, page=page, start_entry=entry)
            for number, (page, entry) in enumerate(memory, start=1)
        ]
        self.slot = self.slots[0]
        self.free_slots = self.slots.copy()
        self.is_shared = bool(self.job)

    @property
    def busy_slots(self) -> Collection[RunSlot]:
        """Return the slots that have a run or hooks; in the pool the only slot, even if it has none."""
        return list(self.taken_slots.values()) if self.is_shared else self.slots

    def note_signal(self) -> bool:
        """Note that it has received a SIGTERM, and return whether that is one of its manager."""
        is_unheard, self._heard_at = self.signalled_at != self._heard_at, self.signalled_at
        return self.has_signal or is_unheard or time.monotonic() - self.signalled_at < messages.SIGNAL_IS_OURS_FOR

    @property
    def is_free(self) -> bool:
        """Return whether it has no run and no hooks."""
        slot = self.slot
        return not self.taken_slots and slot.current is None and not slot.pending and slot.hooks_key is None

    @property
    def is_idle(self) -> bool:
        """Return whether it can take a run at once."""
        return self.stage is WorkerStage.READY and self.is_free and not self.is_unresponsive

    @property
    def is_about_to_start(self) -> bool:
        """Return whether it has a run whose start is not known."""
        is_next = self.is_shared or self.slot.current is None
        return self.stage is WorkerStage.READY and bool(self.pending) and is_next

    @property
    def takes_more(self) -> bool:
        """Return whether its slot may be given a run."""
        unfit = (
            self.to_be_replaced
            or self.is_outdated
            or self.is_unresponsive
            or self.reached_max_runs
            or self.slot.escalation is not None
        )
        return self.stage is WorkerStage.READY and self.slot.hooks_key is None and not unfit

    @property
    def accepts(self) -> bool:
        """Return whether it is given runs of its class, now or when it has started."""
        has_ended = self.channel.fileno() < 0 or self.stage is WorkerStage.LEAVING or self.kill_reason
        return not (has_ended or self.to_be_replaced or self.reached_max_runs)

    @property
    def has_room(self) -> bool:
        """Return whether it can be given a run of its class now."""
        return self.stage is WorkerStage.READY and self.accepts and bool(self.free_slots)

    @property
    def reached_max_runs(self) -> bool:
        """Return whether it was given as many runs as it may execute."""
        return 0 < self.max_runs <= self.runs_begun + len(self.pending)

    @property
    def suspect(self) -> QueuedRun | None:
        """Return its only run, or the last one if it has none; None if there are several to choose from."""
        match list(self.busy_slots):
            case []:
                return self.last_queued
            case [slot]:
                return slot.suspect
        return None

    @property
    def named_suspect(self) -> str:
        """Return in words which job is to blame."""
        if len(self.taken_slots) > 1:
            return f"one of {len(self.taken_slots)} jobs of {self.job}"
        suspect = self.suspect
        return "no job has run there" if suspect is None else f"job {suspect.run.id} ({suspect.run.job})"

    @property
    def is_being_ended(self) -> bool:
        """Return whether its manager has killed it, or may have."""
        is_stopping = not self.is_shared and self.slot.escalation is not None
        return bool(self.kill_reason) or self.retirement is not None or is_stopping

    @property
    def spent_reason(self) -> EndReason | None:
        """Return why it has run enough jobs; None if it has not."""
        is_for_one = self.is_forced and not self.is_shared
        if not self.reached_max_runs and not (is_for_one and self.runs_given > 0):
            return None
        if self.max_runs == 1 and not self.is_shared:
            return ONE_JOB
        return EndReason(f"it has run its {self.max_runs} jobs", messages.EndKind.MAX_JOBS)

    def slot_of(self, message: messages.Message) -> RunSlot:
        """Return the slot that a message is about; raise ``ChannelBroken`` if it has no run."""
        match message:
            case messages.Started() | messages.Ended() | messages.Progressed():
                slot = self.taken_slots.get((message.id, message.claims))
            case messages.Ready(slot=number) if number:
                slot = self.slots[number - 1] if 0 < number <= len(self.slots) else None
            case _:
                slot = self.slot
        if slot is None:
            raise ChannelBroken(f"the worker reports a run that it does not have: {str(message)[:200]}")
        return slot

    def replace_later(self, reason: EndReason, job: str = "") -> None:
        """Request its replacement as soon as it has no run; the first reason and its job are kept."""
        self.to_be_replaced = True
        if self.replace_reason is None:
            self.replace_reason, self.replace_job = reason, job

    def give(self, queued: QueuedRun) -> None:
        """Add a run, to be sent by ``flush``: to its only slot with a permit, or to a free one."""
        if self.is_shared:
            slot = self.taken_slots[queued.key] = self.free_slots.pop()
            self._assigned.append(slot.number)
            self._ask_again_at = self._pause = 0.0
        else:
            slot = self.slot
            self._unissued.append(slot.runs_given + 1)
        slot.runs_given += 1
        self.runs_given += 1
        slot.pending.append((slot.runs_given, queued))
        self.pending.append((slot.runs_given, queued))
        self.unsent.append(queued.payload)

    def release(self, slot: RunSlot) -> None:
        """Make a slot free whose run and hooks have ended."""
        if slot.last_queued is not None and slot.last_queued.key in self.taken_slots:
            del self.taken_slots[slot.last_queued.key]
            self.free_slots.append(slot)

    def take_back(self) -> list[QueuedRun]:
        """Revoke permits, and return the runs that the worker can therefore not start, in order.

        The runs of a class start as soon as they are received.
        """
        if self.is_shared:
            return []
        self.flush()
        revoked = set(self.permits.revoke())
        back = [pending for pending in self.pending if pending[0] in revoked]
        for pending in back:
            self.pending.remove(pending)
            self.slot.pending.remove(pending)
        return [queued for _, queued in back]

    def retire(self, escalation: StopEscalation) -> None:
        """Close its channel, which tells it to exit; ``escalation`` kills it if it does not."""
        self.stage = WorkerStage.LEAVING
        self.channel.close()
        self.retirement = escalation

    def mark_unresponsive(self, now: float) -> None:
        """Give it no runs until it answers, if it has started none of those it was given.

        It may be stopped; or a job has read the runs in place of it, which it finds out by the number of them. The
        loop of a class may be blocked by one of its runs, so it gets more.
        """
        self.is_unresponsive = self.is_free
        if self.is_unresponsive or self.is_shared:
            self.ask_for_runs(now)

    def ask_for_runs(self, now: float) -> None:
        """Ask it whether its runs have arrived, unless it was asked a moment ago.

        It is asked again, since a job may have read the question too, but less and less often, since it may be stopped.
        """
        if now < self._ask_again_at:
            return
        self._pause = min(2 * self._pause or ASKED_AGAIN_AFTER, LONGEST_PAUSE)
        self._ask_again_at = now + self._pause
        self.unsent.append(encode(messages.CheckRuns(given=self.runs_given)))

    def mark_outdated(self) -> None:
        """Request its replacement, one worker of the pool at a time, to load new code."""
        if self.is_shared:  # another worker takes the next runs of the class
            self.replace_later(OUTDATED)
        else:
            self.is_outdated = True

    def flush(self) -> None:
        """Send runs and messages in one write; permits first, so that every run has its permit when it arrives."""
        if self._unissued:
            self.permits.issue(self._unissued)
            self._unissued.clear()
        if self._assigned:
            self.unsent.insert(0, encode(messages.AssignSlots(numbers=self._assigned.copy())))
            self._assigned.clear()
        if self.unsent and self.channel.fileno() >= 0:
            self.channel.send(*self.unsent)
            self.unsent.clear()

    def became_ready(self, now: float) -> None:
        """Note that it can take a run."""
        if self.stage is WorkerStage.STARTING:
            self.stage = WorkerStage.READY
        self.is_unresponsive = False
        self._ask_again_at = self._pause = 0.0
        self.idle_since = now

    @property
    def busy_since(self) -> float:
        """Return the time when its current run started, or when the next one could have."""
        current = None if self.is_shared else self.slot.current
        if current is not None:
            return current.began_at
        return max(self.idle_since, self.pending[0][1].queued_at) if self.pending else self.idle_since

    def close(self) -> None:
        """Cancel its timers and close its descriptors."""
        for slot in self.slots:
            slot.stop_timers()
            slot.page.close()
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        if self.retirement is not None:
            self.retirement.cancel()
        self.channel.close()
        self.permits.close()
        self.stack_file.close()
        self.child.close()
        os.close(self.signal_pipe)
