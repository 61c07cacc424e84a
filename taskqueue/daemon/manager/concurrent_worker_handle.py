"""The worker of one class with ``concurrency`` as its manager knows it: one process with many run slots."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from taskqueue.daemon.manager.run_slot import CurrentRun, EndReason, QueuedRun, RunSlot
from taskqueue.daemon.manager.stop_escalation import Process
from taskqueue.daemon.manager.worker_handle import OUTDATED, WorkerHandle, WorkerStage
from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.codec import encode
from taskqueue.daemon.protocol.messages import (
    SIGNAL_IS_OURS_FOR,
    AssignSlots,
    Ended,
    Key,
    Message,
    Progressed,
    Ready,
    Started,
)
from taskqueue.daemon.protocol.shared_memory import Entry
from taskqueue.daemon.runtime.loop import Timer


@dataclass(eq=False, kw_only=True)
class SharedSlot(RunSlot):
    """One of the run slots of a worker; its run ends alone, unless the whole worker has to be killed for it."""

    number: int
    owner: ConcurrentWorkerHandle
    _stopped_number: int = 0
    _reason: str = ""

    @property
    def worker(self) -> ConcurrentWorkerHandle:
        return self.owner

    @property
    def process(self) -> Process:
        return self

    @property
    def was_signalled(self) -> bool:
        return self._stopped_number == self.current_number

    def signal(self, signum: int) -> None:
        """Signal the worker, which looks up the run that must end."""
        self.owner.signalled_at = time.monotonic()
        self.owner.page.note_signal(self.owner.signalled_at)
        self.owner.child.signal(signum)

    def signal_group(self, signum: int) -> None:
        """Kill the worker, because this run has not ended."""
        run = self.suspect
        if run is not None and not self.owner.kill_reason:
            self.owner.kill_reason = f"job {run.run.id} was asked to end ({self._reason}) and did not within its grace"
        for slot in self.owner.slots:  # all end with the worker, so one line about it is enough
            if slot.escalation is not None:
                slot.escalation.cancel()
        self.owner.child.signal_group(signum)

    def request_stop(self, reason: str) -> None:
        self._stopped_number, self._reason = self.current_number, reason
        self.page.request_stop(self.current_number, reason)

    def start_hooks(self, settled: bytes, timer: Timer) -> None:
        self.owner.queue_message(settled)
        self.hooks_timer = timer

    def begin(self, started: Started, now: float) -> CurrentRun:
        self.owner.runs_begun += 1
        self.owner.pending.remove(self.pending[0])
        return super().begin(started, now)

    def finish(self, now: float, *, has_hooks: bool) -> None:
        super().finish(now, has_hooks=has_hooks)
        if not has_hooks:
            self.owner.release(self)

    def became_ready(self, now: float) -> None:
        super().became_ready(now)
        if self.escalation is not None:  # the hooks were asked to end
            self.escalation.cancel()
            self.escalation = None
        self.owner.release(self)


@dataclass(eq=False, kw_only=True)
class ConcurrentWorkerHandle(WorkerHandle):
    """One worker with run slots for ``concurrency`` jobs of one class. ``pending`` are those of all slots."""

    job: str
    concurrency: int
    free_slots: list[SharedSlot] = field(default_factory=list)
    signalled_at: float = float("-inf")
    idle_timer: Timer | None = None
    """Has it retired when it has had no run for a while."""
    _taken: dict[Key, SharedSlot] = field(default_factory=dict)
    _by_number: dict[int, SharedSlot] = field(default_factory=dict)
    _assigned: list[int] = field(default_factory=list)
    _heard_at: float = float("-inf")
    """When the manager sent the last signal that the worker has reported."""

    def add_slot(self, slot: SharedSlot) -> None:
        """Add a slot, before the first run."""
        self.free_slots.append(slot)
        self._by_number[slot.number] = slot

    @property
    def slots(self) -> Collection[RunSlot]:
        """Return the slots that have a run or hooks."""
        return tuple(self._taken.values())

    @property
    def start_entries(self) -> Collection[Entry]:
        return (self.start_entry, *(slot.start_entry for slot in self._by_number.values()))

    @property
    def is_free(self) -> bool:
        return not self._taken

    @property
    def was_signalled(self) -> bool:
        return time.monotonic() - self.signalled_at < SIGNAL_IS_OURS_FOR

    def note_signal(self) -> bool:
        is_unheard, self._heard_at = self.signalled_at != self._heard_at, self.signalled_at
        return is_unheard or self.was_signalled

    @property
    def suspect(self) -> QueuedRun | None:
        """Return its only run, or the last one if it has none; None if there are several to choose from."""
        if not self._taken:
            return self.last_queued
        return next(iter(self._taken.values())).suspect if len(self._taken) == 1 else None

    @property
    def reached_max_runs(self) -> bool:
        return 0 < self.max_runs <= self.runs_given

    @property
    def accepts(self) -> bool:
        """Return whether it is given runs, now or when it has started."""
        is_over = self.channel.fileno() < 0 or self.stage is WorkerStage.LEAVING or self.kill_reason
        return not (is_over or self.to_be_replaced or self.reached_max_runs)

    @property
    def has_room(self) -> bool:
        """Return whether it can be given a run now."""
        return self.stage is WorkerStage.READY and self.accepts and bool(self.free_slots)

    @property
    def spent_reason(self) -> EndReason | None:
        return self.has_done_all if self.reached_max_runs else None

    @property
    def named_suspect(self) -> str:
        return f"one of {len(self._taken)} jobs of {self.job}" if len(self._taken) > 1 else super().named_suspect

    def slot_of(self, message: Message) -> RunSlot:
        """Return the slot that a message is about, or the worker itself; raise ``ChannelBroken`` if it has no run."""
        match message:
            case Started() | Ended() | Progressed():
                slot = self._taken.get((message.id, message.claims))
            case Ready() if message.slot:
                slot = self._by_number.get(message.slot)
            case _:
                return self
        if slot is None:
            raise ChannelBroken(f"the worker reports a run that it does not have: {str(message)[:200]}")
        return slot

    def give(self, queued: QueuedRun) -> None:
        """Give a run to a free slot, to be sent by ``flush``."""
        slot = self.free_slots.pop()
        slot.runs_given += 1
        self.runs_given += 1
        slot.pending.append((slot.runs_given, queued))
        self.pending.append((slot.runs_given, queued))
        self._taken[queued.key] = slot
        self._assigned.append(slot.number)
        self.unsent.append(queued.payload)
        self._ask_again_at = self._pause = 0.0

    def release(self, slot: SharedSlot) -> None:
        """Make a slot free whose run and hooks have ended."""
        self.last_queued, self.idle_since = slot.last_queued, slot.idle_since
        if slot.last_queued is not None:
            self._taken.pop(slot.last_queued.key, None)
        self.free_slots.append(slot)

    def take_back(self) -> list[QueuedRun]:
        """Return nothing: a run starts as soon as it is received."""
        return []

    def mark_unresponsive(self, now: float) -> None:
        """Ask it whether its runs have arrived; its loop may be blocked by one of them, so it gets more."""
        self.ask_for_runs(now)

    def mark_outdated(self) -> None:
        """Request its replacement when its runs have ended; another worker takes the next ones."""
        self.replace_later(OUTDATED)

    def flush(self) -> None:
        if self._assigned:
            self.unsent.insert(0, encode(AssignSlots(numbers=self._assigned.copy())))
            self._assigned.clear()
        super().flush()

    def close(self) -> None:
        for slot in self._by_number.values():
            slot.stop_timers()
            slot.page.close()
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        super().close()
