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
from taskqueue.daemon.manager.run_queue import Pace, RunQueue
from taskqueue.daemon.manager.stop_escalation import StopEscalation
from taskqueue.daemon.manager.worker_handle import CurrentRun, WorkerHandle
from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import (
    Ended,
    Key,
    OutcomeSettled,
    Progressed,
    Ready,
    Started,
    StartupFailed,
    Worn,
    decode,
    encode,
)
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import Settings
from taskqueue.daemon.worker.run_context import CURSOR_EVERY, TELL_EVERY
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
        backlog: RunQueue,
        *,
        on_first_run: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._reports = reports
        self._backlog = backlog
        self._on_first_run = on_first_run
        self._max_memory = settings.max_memory
        self.grace = settings.grace
        self.pace = Pace()
        self.moved_at = 0.0
        """When a run last began or ended."""
        self.fault: StartupFailed | None = None
        """Why the last worker that could not start says it could not."""

    def look(self, member: WorkerHandle) -> None:
        """Take in what the worker has begun since it was last heard of: of short runs it tells only with their ends."""
        if member.current is not None or not member.ahead:
            return
        key, at = member.entry.read()
        _, order = member.ahead[0]
        if key == order.key:
            id, claims = key
            started = Started(id=id, claims=claims, pid=member.pid, at=at)
            self._on_started(member, started, encode(started))

    def on_message(self, member: WorkerHandle, payload: bytes) -> None:
        """Take in what a worker says; raise ``ChannelBroken`` for what it cannot have said."""
        message = decode(payload)
        match message:
            case Started():
                _check_run(member, (message.id, message.claims))
                self._on_started(member, message, payload)
            case Ended():
                _check_run(member, (message.id, message.claims))
                self._on_ended(member, message, payload)
            case Progressed():
                self._on_noted(member, message, payload)
            case Ready():
                _check_tickets(member, message.missed)
                member.is_ready(time.monotonic())
            case Worn():
                log.warning("a worker is replaced: pid %d: %s: job %s (%s)", member.pid, *message[2:], *message[:2])
                member.wear(message.why, message.id)
                self.recall(member)
            case StartupFailed():
                self.fault = message

    def on_lookout(self, member: WorkerHandle) -> None:
        """Take in that a worker was signalled; if it was not by us, somebody wants it to end its run and to leave."""
        signals = os.read(member.lookout, 4096)
        if not signals:  # it has closed its end
            self._loop.unwatch(member.lookout)
        if signal.SIGTERM not in signals or member.was_signalled:
            return
        self.look(member)
        self._doom(member, "shutdown")
        member.wear("somebody sent it SIGTERM")
        if member.current is not None:
            member.reason = "shutdown"
            member.ladder = StopEscalation(self._loop, member.child, kills_at=time.monotonic() + self.grace)
            member.ladder.ask_later()

    def confirm(self, member: WorkerHandle, confirmed: OutcomeSettled) -> None:
        """Let a worker call the hooks of its last run, within their time."""
        member.tell(encode(confirmed))
        member.hooks_limit = self._loop.at(time.monotonic() + HOOKS_LIMIT, partial(self._on_hooks_limit, member))

    def recall(self, member: WorkerHandle) -> None:
        """Take back what a worker was given and has not begun."""
        self._backlog.put_back(member.take_back())

    def stop(self, member: WorkerHandle, key: Key, reason: str) -> None:
        """End one run of a worker, now or when it begins: it could not be taken back."""
        self.look(member)
        for _, order in member.ahead:
            if order.key == key:
                order.stop = reason
        if member.current is not None and member.current.order.key == key:
            self._interrupt(member, reason, self.grace)

    def end(self, member: WorkerHandle, reason: str, grace: float) -> None:
        """Take back what a worker has not begun, and end its run and its hooks by the ladder."""
        self.look(member)
        self._doom(member, reason)
        self._interrupt(member, reason, grace)

    def _doom(self, member: WorkerHandle, reason: str) -> None:
        """Take back what a worker has not begun; what it is just beginning is ended when it has begun."""
        self.recall(member)
        for _, order in member.ahead:
            order.stop = reason

    def _interrupt(self, member: WorkerHandle, reason: str, grace: float) -> None:
        """Begin the ladder for the run or the hooks of a worker, if there are any; one that has begun is hastened."""
        if member.current is None and member.in_hooks is None:
            return
        self.recall(member)
        kills_at = time.monotonic() + grace
        if member.ladder is not None:
            member.ladder.hasten(kills_at)
            return
        if member.current is not None:
            member.reason = reason
        member.slate.stop(member.current.number if member.current is not None else member.last, reason)
        culprit = member.culprit
        member.wear(f"what ran there was to end ({reason})", "" if culprit is None else culprit.run.id)
        member.was_signalled = True
        member.ladder = StopEscalation(self._loop, member.child, kills_at=kills_at)
        member.ladder.ask()

    def bury(self, member: WorkerHandle, exit: child_process.ChildExit, killer: str = "") -> None:
        """Report the run of a dead worker; what it had not begun goes to others, here or elsewhere.

        ``killer`` says who killed it, where that is known.
        """
        self.look(member)
        current = member.current
        if current is not None:
            self._read_slate(member, current)
            ended = crash_outcomes.of_death(current, member.reason, exit, self.grace, _cause(member, killer))
            if ended.outcome == "Interrupted" and not _was_asked(member):
                ended = crash_outcomes.unasked(ended)
            self._reports.ended(current.order, encode(ended))
        self._bury_unheard(member, exit)
        self.recall(member)
        self._reports.hand_back([order for _, order in member.ahead])

    def _bury_unheard(self, member: WorkerHandle, exit: child_process.ChildExit) -> None:
        """Report runs that began behind the last one that was heard of: nothing that the worker said reached us.

        What made the worker unheard was done by the first; the others have no share in it.
        """
        is_first = member.current is None
        key, at = member.entry.read()
        keys = [order.key for _, order in member.ahead]
        for _ in range(keys.index(key) + 1 if key in keys else 0):
            number, order = member.ahead.popleft()
            id, claims = order.key
            current = CurrentRun(order, number, Started(id=id, claims=claims, pid=member.pid, at=at), at)
            ended = crash_outcomes.of_death(current, "", exit, self.grace, _cause(member, ""))
            self._reports.ended(order, encode(ended if is_first else crash_outcomes.unheard(ended)))
            is_first = False

    def _on_started(self, member: WorkerHandle, started: Started, payload: bytes) -> None:
        now = time.monotonic()
        current = self._begin(member, started, now)
        current.is_checking = started.checking
        if current.is_checking:
            current.limit = self._loop.at(now + CHECK_LIMIT, partial(self._on_check_limit, member, current))
        else:
            self._reports.begun(current.order, payload)
            self._limit(member, current, now)
        if current.order.stop:
            self._interrupt(member, current.order.stop, self.grace)

    def _begin(self, member: WorkerHandle, started: Started, now: float) -> CurrentRun:
        """Return the run that has begun; where it was only checked before, the one that now begins in earnest."""
        current = member.current
        if current is not None:
            current.stop_timers()
            current.started = started
            return current
        self.moved_at = now
        current = member.begin(started, now)
        if member.begun == 1:
            self._on_first_run()
        return current

    def _limit(self, member: WorkerHandle, current: CurrentRun, now: float) -> None:
        """See to it that the run takes no longer than it may, and gives signs of progress."""
        seconds = current.order.run.timeout
        if seconds is not None:
            current.limit = self._loop.at(now + seconds, partial(self._on_limit, member, current))
        current.heard_at = now
        self._watch_progress(member, current)

    def _on_check_limit(self, member: WorkerHandle, current: CurrentRun) -> None:
        log.warning("a check took longer than %g s: job %s", CHECK_LIMIT, current.order.run.id)
        self._interrupt(member, "timeout", self.grace)

    def _on_limit(self, member: WorkerHandle, current: CurrentRun) -> None:
        run = current.order.run
        log.warning("a run took longer than its timeout of %g s: job %s", run.timeout, run.id)
        self._interrupt(member, "timeout", self.grace)

    def _watch_progress(self, member: WorkerHandle, current: CurrentRun) -> None:
        """Look again when the run will have been quiet for as long as it may."""
        seconds = current.order.run.stall_timeout
        if seconds is not None:
            current.patience = self._loop.at(current.heard_at + seconds, partial(self._on_patience, member, current))

    def _on_patience(self, member: WorkerHandle, current: CurrentRun) -> None:
        """End a run that has been quiet for too long, unless the slate has news."""
        run = current.order.run
        assert run.stall_timeout is not None
        self._read_slate(member, current)
        if time.monotonic() < current.heard_at + run.stall_timeout:
            self._watch_progress(member, current)
        elif not member.reason:
            log.warning("a run gave no sign of progress for %g s: job %s", run.stall_timeout, run.id)
            current.has_stalled = True
            self._interrupt(member, "timeout", self.grace)

    def _on_hooks_limit(self, member: WorkerHandle) -> None:
        log.warning("the hooks of a job took more than %g s and are ended: pid %d", HOOKS_LIMIT, member.pid)
        self._interrupt(member, "timeout", self.grace)

    def _on_ended(self, member: WorkerHandle, ended: Ended, payload: bytes) -> None:
        current = member.current
        if current is None:
            id, claims, at = ended.id, ended.claims, ended.started_at or time.time()
            current = self._begin(member, Started(id=id, claims=claims, pid=member.pid, at=at), time.monotonic())
        if member.reason and not crash_outcomes.obeys(ended.outcome, member.reason):
            ended = crash_outcomes.overruled(ended, member.reason, current)
            payload = encode(ended)
        if ended.outcome == "TimedOut":
            ended = crash_outcomes.excess_told(ended, current)
            payload = encode(crash_outcomes.stalled(ended) if current.has_stalled else ended)
        if ended.outcome == "Interrupted" and not _was_asked(member):
            payload = encode(crash_outcomes.unasked(ended))
        self._reports.ended(current.order, payload)
        if ended.took is not None:
            self.pace.learn(current.order.run.job, ended.took)
        self.moved_at = time.monotonic()
        member.end(self.moved_at)
        if ended.confirm:
            member.in_hooks = current.order.key
        if member.ladder is not None:
            member.ladder.stop()
            member.ladder = None
        if self._max_memory and child_process.memory_of(member.pid) > self._max_memory:
            member.wear(f"it holds more than {self._max_memory / crash_outcomes.MIB:.0f} MiB of memory", ended.id)

    def _on_noted(self, member: WorkerHandle, noted: Progressed, payload: bytes) -> None:
        self.look(member)
        self._reports.pass_on(payload)
        current = member.current
        if current is None:
            return
        current.heard_at = time.monotonic()
        if noted.progress is not None:
            current.told, current.progress, current.progress_message = noted.at, noted.progress, noted.message
        if noted.cursor is not None:
            current.place = noted.cursor
        if noted.progress is None and noted.cursor is None:
            return
        current.noted_at = current.heard_at
        if not current.is_looked_at:
            current.is_looked_at = True
            self._look_later(member, current)

    def _look_later(self, member: WorkerHandle, current: CurrentRun) -> None:
        """Look at the slate in a while: the latest news may have come too soon after those before to be sent."""
        after = TELL_EVERY if current.place is None else CURSOR_EVERY
        self._loop.at(time.monotonic() + after, partial(self._look_at_slate, member, current))

    def _look_at_slate(self, member: WorkerHandle, current: CurrentRun) -> None:
        if member.current is not current:
            return
        has_moved = self._read_place(member, current)
        if time.time() - current.told < TELL_EVERY - CURSOR_EVERY / 2:  # progress was told a moment ago (PTS-21)
            current.is_looked_at = True
        else:
            current.is_looked_at = self._read_slate(member, current) or has_moved
        if time.monotonic() - current.noted_at < TELL_EVERY:  # the worker may have written down what it did not tell
            current.is_looked_at = True
        if current.is_looked_at:
            self._look_later(member, current)

    def _read_slate(self, member: WorkerHandle, current: CurrentRun) -> bool:
        """Report progress and places that the node does not know, and return whether there were any."""
        has_moved = self._read_place(member, current)
        mark = member.slate.marked()
        if mark is None or mark.number != current.number or mark.at <= current.told:
            return has_moved
        current.told, current.progress, current.progress_message = mark.at, mark.progress, mark.message
        current.heard_at = time.monotonic()
        id, claims = current.order.key
        noted = Progressed(id=id, claims=claims, progress=mark.progress, message=mark.message, state=None, at=mark.at)
        self._reports.tell(noted)
        return True

    def _read_place(self, member: WorkerHandle, current: CurrentRun) -> bool:
        place = member.slate.placed(current.number)
        if place is None or place == current.place:
            return False
        current.place = place
        current.heard_at = time.monotonic()
        id, claims = current.order.key
        noted = Progressed(id=id, claims=claims, progress=None, message="", state=None, at=time.time(), cursor=place)
        self._reports.tell(noted)
        return True


def _check_run(member: WorkerHandle, key: Key) -> None:
    """Raise ``ChannelBroken`` if it is not the turn of this run: messages to or from the worker are missing."""
    current = member.current
    expected = current.order.key if current is not None else member.ahead[0][1].key if member.ahead else None
    if key != expected:
        raise ChannelBroken(f"it tells of run {key[0]}:{key[1]} when it is the turn of {expected}")


def _check_tickets(member: WorkerHandle, missed: int) -> None:
    """Raise ``ChannelBroken`` if the worker misses a ticket that nobody has taken back: a job has read the pipe."""
    if missed and any(number == missed for number, _ in member.ahead):
        raise ChannelBroken("a permit to begin a run, which the worker had been sent, did not reach it")


def _cause(member: WorkerHandle, killer: str) -> str:
    """Return who ended a worker, as far as that is known."""
    return f"its manager ended it: {member.fault}" if member.fault else killer


def _was_asked(member: WorkerHandle) -> bool:
    """Tell whether node or manager wanted the worker's run to end, or all runs."""
    return member.was_signalled or member.slate.stopping
