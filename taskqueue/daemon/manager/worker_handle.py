"""One worker as its manager knows it: its process, its state, and its runs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum

from taskqueue.daemon.manager.run_slot import CurrentRun, EndReason, QueuedRun, RunSlot
from taskqueue.daemon.manager.stop_escalation import Process, StopEscalation
from taskqueue.daemon.protocol.channel import Channel, ChannelClosed
from taskqueue.daemon.protocol.codec import encode
from taskqueue.daemon.protocol.messages import CheckRuns, EndKind
from taskqueue.daemon.protocol.shared_memory import Entry
from taskqueue.daemon.protocol.stack_file import StackFile
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime.child_process import Child
from taskqueue.daemon.runtime.loop import Timer

ASKED_AGAIN_AFTER, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between two questions to a worker that does not answer: the first and the longest pause; they double."""

ONE_JOB = EndReason("it was for one job", EndKind.ONE_JOB)
SURPLUS = EndReason("it had nothing to do", EndKind.IDLE)
STOP = EndReason("its node stops", EndKind.SHUTDOWN)
"""Usual reasons for which workers exit."""

OUTDATED = EndReason("its node was asked to load new code", EndKind.RELOAD)


class WorkerStage(Enum):
    """The stages in the life of a worker."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(eq=False, kw_only=True)
class WorkerHandle(RunSlot):
    """One worker, which is one run slot, too."""

    child: Child
    channel: Channel
    permits: StartPermits
    signal_pipe: int
    stack_file: StackFile
    forked_at: float
    max_runs: int
    """Runs after which it is replaced; 0 for no limit."""
    is_forced: bool = False
    """It was started for one job with ``force_spawn``, outside the bounds of the pool."""
    stage: WorkerStage = WorkerStage.STARTING
    is_unresponsive: bool = False
    """It did not start the runs it was given, as if stopped by SIGSTOP; it gets none until it sends a message."""
    to_be_replaced: bool = False
    """It is replaced as soon as it has no run."""
    is_outdated: bool = False
    """It is replaced as soon as it has no run and no other worker is starting or leaving."""
    has_signal: bool = False
    """Its manager has sent it SIGTERM."""
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
    _ask_again_at: float = 0.0
    _pause: float = 0.0

    @property
    def worker(self) -> WorkerHandle:
        return self

    @property
    def process(self) -> Process:
        return self.child

    @property
    def slots(self) -> Collection[RunSlot]:
        """Return the slots that have a run or hooks, or could."""
        return (self,)

    @property
    def start_entries(self) -> Collection[Entry]:
        """Return its entries in the start log."""
        return (self.start_entry,)

    @property
    def was_signalled(self) -> bool:
        return self.has_signal

    def note_signal(self) -> bool:
        """Note that it has received a SIGTERM, and return whether that is one of its manager."""
        return self.has_signal

    @property
    def is_idle(self) -> bool:
        """Return whether it can take a run at once."""
        return self.stage is WorkerStage.READY and self.is_free and not self.is_unresponsive

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
    def named_suspect(self) -> str:
        """Return in words which job is to blame."""
        suspect = self.suspect
        return "no job has run there" if suspect is None else f"job {suspect.run.id} ({suspect.run.job})"

    @property
    def spent_reason(self) -> EndReason | None:
        """Return why it has run enough jobs; None if it has not."""
        if not (self.max_runs and self.reached_max_runs) and not (self.is_forced and self.runs_given > 0):
            return None
        return ONE_JOB if self.max_runs == 1 else self.has_done_all

    @property
    def has_done_all(self) -> EndReason:
        """Return the reason that it has had as many runs as it may execute."""
        return EndReason(f"it has done its {self.max_runs} jobs", EndKind.MAX_JOBS)

    def replace_later(self, reason: EndReason, job: str = "") -> None:
        """Request its replacement as soon as it has no run; the first reason and its job are kept."""
        self.to_be_replaced = True
        if self.replace_reason is None:
            self.replace_reason, self.replace_job = reason, job

    def give(self, queued: QueuedRun) -> None:
        """Add a run with its permit, to be sent by ``flush``."""
        self.runs_given += 1
        self._unissued.append(self.runs_given)
        self.pending.append((self.runs_given, queued))
        self.unsent.append(queued.payload)

    def request_stop(self, reason: str) -> None:
        """Write the reason to its page, and have it replaced: the signal may come when its run has ended."""
        self.page.request_stop(self.current_number, reason)
        suspect = self.suspect
        words = f"its run was asked to end ({reason})"
        self.replace_later(EndReason(words, EndKind.RUN_ENDED), "" if suspect is None else suspect.run.id)
        self.has_signal = True

    def start_hooks(self, settled: bytes, timer: Timer) -> None:
        self.queue_message(settled)
        self.hooks_timer = timer

    def retire(self, escalation: StopEscalation) -> None:
        """Close its channel, which tells it to exit; ``escalation`` kills it if it does not."""
        self.stage = WorkerStage.LEAVING
        self.channel.close()
        if self.escalation is not None:  # another process has sent it SIGTERM
            self.escalation.cancel()
        self.escalation = escalation

    def mark_unresponsive(self, now: float) -> None:
        """Give it no runs until it answers, if it has started none of those it was given.

        It may be stopped; or a job has read the runs in place of it, which it finds out by the number of them.
        """
        self.is_unresponsive = self.is_free
        if self.is_unresponsive:
            self.ask_for_runs(now)

    def ask_for_runs(self, now: float) -> None:
        """Ask it whether its runs have arrived, unless it was asked a moment ago.

        It is asked again, since a job may have read the question too, and ever more seldom, since it may be stopped.
        """
        if now < self._ask_again_at:
            return
        self._pause = min(2 * self._pause or ASKED_AGAIN_AFTER, LONGEST_PAUSE)
        self._ask_again_at = now + self._pause
        self.queue_message(encode(CheckRuns(given=self.runs_given)))

    def mark_outdated(self) -> None:
        """Request its replacement, one worker at a time, to load new code."""
        self.is_outdated = True

    def queue_message(self, payload: bytes) -> None:
        """Add a message, to be sent by ``flush``."""
        self.unsent.append(payload)

    def flush(self) -> None:
        """Send runs and messages in one write; permits first, so that every run has its permit when it arrives."""
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

    def became_ready(self, now: float) -> None:
        """Note that it can take a run: it has started, its hooks have ended, or a run it got was revoked."""
        if self.stage is WorkerStage.STARTING:
            self.stage = WorkerStage.READY
        self.is_unresponsive = False
        self._ask_again_at = self._pause = 0.0
        super().became_ready(now)

    @property
    def busy_since(self) -> float:
        """Return the time when its current run started, or when the next one could have."""
        if self.current is not None:
            return self.current.began_at
        return max(self.idle_since, self.pending[0][1].queued_at) if self.pending else self.idle_since

    def busy_for(self, now: float) -> float:
        """Return for how many seconds its current run has been in progress; 0 if it has none."""
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
        self.stop_timers()
        self.channel.close()
        self.permits.close()
        self.page.close()
        self.stack_file.close()
        self.child.close()
        os.close(self.signal_pipe)
