"""The manager: does what its node says with the workers that it forks; it never opens the store."""

from __future__ import annotations

import gc
import importlib
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Collection

from taskqueue.daemon.manager.outbox import ReportOutbox
from taskqueue.daemon.manager.run_queue import RunQueue
from taskqueue.daemon.manager.worker_handle import QueuedRun, RunStage, WorkerHandle, Workers
from taskqueue.daemon.manager.worker_pool import WorkerPool
from taskqueue.daemon.node import leftovers
from taskqueue.daemon.protocol.channel import Channel, ChannelBroken, pair
from taskqueue.daemon.protocol.messages import (
    Arm,
    HandBack,
    LeaseExtended,
    OutcomeSettled,
    PoolStatus,
    Recycle,
    Run,
    Shutdown,
    StartupFailed,
    Stop,
    Unlock,
    decode,
)
from taskqueue.daemon.protocol.start_log import StartLog
from taskqueue.daemon.runtime import child_process, child_setup
from taskqueue.daemon.runtime.child_process import Child, fork
from taskqueue.daemon.runtime.loop import Loop, Timer
from taskqueue.daemon.settings import Settings
from taskqueue.model.environment import VOICE

log = logging.getLogger(__name__)

LASTS = 0.2
"""Seconds after which a run counts as long: what waits behind it goes elsewhere."""

LOOK_AFTER = 0.005
"""Seconds after which the ledger is asked whether a worker has begun what it was given; a short run is over by then."""

STOLEN_AFTER = 0.02
"""Seconds after which an idle worker takes what waits behind the run of another."""

ORPHANED_GRACE = 0.5
"""Seconds that running jobs get when the node is gone: its claims are about to be given to others."""

COUNTS_EVERY = 1.0
"""Seconds between two messages, or titles, that say how many workers there are."""

HEARD_WITHIN = 2.0
"""Seconds in which the last reports have to reach the node."""


def fork_manager(settings: Settings, keep: Collection[int] = ()) -> tuple[Child, Channel, StartLog]:
    """Fork a manager that waits for ``Arm``, and return it with the channel to it, and the ledger of what has begun.

    It and its workers have the descriptors in ``keep``. To be called before there are a store and threads.
    """
    ours, theirs = pair()
    ledger = StartLog()

    def live() -> int:
        return Manager(settings, theirs, keep, ledger).run()

    try:
        child = fork(live, name="manager", keep=(*keep, theirs.fileno()), death_signal=signal.SIGTERM)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return child, ours, ledger


class Manager:
    """Obeys one node. All callbacks run one at a time, in the turns of one loop."""

    def __init__(self, settings: Settings, node: Channel, keep: Collection[int], ledger: StartLog) -> None:
        self._settings = settings
        self._node = node
        self._keep = keep
        self._ledger = ledger
        self._loop = Loop()
        self._reports = ReportOutbox(node)
        self._backlog = RunQueue(self._reports)
        self._places = itertools.count()
        self._staff: WorkerPool | None = None
        self._is_draining = False
        self._is_stopping = False
        self._finish: Timer | None = None
        self._trust: Timer | None = None
        self._trusted_until = float("inf")
        self._check: Timer | None = None
        self._look: Timer | None = None
        self._counts = PoolStatus(idle=0, busy=0, forced=0)
        self._counting: Timer | None = None

    def run(self) -> int:
        """Obey until the node has let everything go; return the exit status."""
        loop = self._loop
        loop.on_signal(signal.SIGTERM, self._on_orphaned)  # also sent by the kernel when the node dies
        loop.on_signal(signal.SIGINT, _nothing)
        loop.on_signal(signal.SIGHUP, _nothing)
        loop.watch_channel(self._node, self._on_node, self._on_orphaned, self._on_broken)
        loop.after_turn(self._after_turn)
        child_process.become_subreaper()
        leftovers.mark()
        child_process.allow_signals()
        loop.run()
        self._node.drain(HEARD_WITHIN)
        return 0

    @property
    def _members(self) -> list[WorkerHandle]:
        return self._staff.members if self._staff is not None else []

    # What the node says

    def _on_node(self, payload: bytes) -> None:
        message = decode(payload)
        match message:
            case Run():
                self._on_run(message, payload)
            case Arm():
                self._on_arm(message)
            case Stop():
                self._on_stop(message)
            case HandBack(most=most):
                self._on_return(most)
            case LeaseExtended(until=until):
                self._on_trust(until)
            case Shutdown(how=how):
                self._on_drain(how)
            case Unlock(pid=pid):
                if self._staff is not None:
                    self._staff.unlock(pid)
            case Recycle():
                for member in self._members:
                    member.is_outdated = True
            case OutcomeSettled():
                self._on_confirmed(message)

    def _on_arm(self, arm: Arm) -> None:
        """Begin: import what is to be shared by all workers, and be ready to fork them."""
        for name in VOICE:
            os.environ.pop(name, None)
        os.chdir(self._settings.chdir)
        sys.path.insert(0, str(self._settings.chdir))
        before = child_setup.descriptors()
        for name in self._settings.preload:
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:
                log.exception("module %s cannot be preloaded", name)
                self._reports.tell(StartupFailed(reason=f"module {name} cannot be preloaded: {error}", bootstrap=True))
                return
        gc.freeze()  # a collection in here would write to all pages that are shared with workers: a copy of each
        opened = child_setup.descriptors() - before  # a log file, say
        settings = self._settings
        keep = {*self._keep, *opened}
        crew = Workers(url=arm.url, bootstrap=settings.bootstrap, allow=settings.allow, keep=keep, ledger=self._ledger)
        self._staff = WorkerPool(self._loop, self._settings, crew, self._reports, self._backlog)

    def _on_run(self, run: Run, payload: bytes) -> None:
        self._backlog.add(QueuedRun(run, payload, time.monotonic(), next(self._places)))

    def _on_stop(self, stop: Stop) -> None:
        """End the run wherever it is by now: not given yet, not begun yet, or under way."""
        key = (stop.id, stop.claims)
        if self._backlog.hand_back(key) or self._staff is None:
            return
        for member in self._members:
            if any(order.key == key for _, order in member.ahead):
                self._staff.oversight.recall(member)
                if self._backlog.hand_back(key):
                    return
            self._staff.oversight.stop(member, key, stop.reason)

    def _on_return(self, count: int) -> None:
        if self._staff is not None and count > len(self._backlog.general):
            for member in self._members:
                self._staff.oversight.recall(member)
        self._backlog.hand_back_latest(count)
        self._backlog.hand_back_forced()

    def _on_trust(self, until: float) -> None:
        """Be ready to end all runs in time, should this be the last news of the node's lease."""
        self._trusted_until = until
        if not self._is_draining:
            self._backlog.open()
        if self._trust is not None:
            self._trust.cancel()
        # A grace that takes most of the lease would end runs between two renewals.
        begins_at = until - min(self._settings.grace, self._settings.lease / 3)
        self._trust = self._loop.at(time.monotonic() + begins_at - child_process.boottime(), self._on_distrust)
        self._reports.tell(self._counts)  # the node hears that we are alive

    def _on_distrust(self) -> None:
        log.error("no news of its lease came from the node: all its runs are ended, and its workers replaced")
        self._backlog.close()
        for member in self._members:  # what a job has left in one of them may be what the node cannot renew for
            member.wear("the lease of its node was in doubt")
        self._end_all("lost", self._trusted_until - child_process.boottime())

    def _on_drain(self, how: str) -> None:
        """Begin nothing more and end what runs, in the given way: what ends it sooner than an earlier wish wins."""
        self._is_draining = True
        self._backlog.close()
        if self._staff is None:
            return
        for member in self._members:
            self._staff.oversight.recall(member)
            if how != "patient":
                member.slate.announce_stop()
        self._staff.dissolve()
        if how == "quick":
            self._stop_all()
        elif how == "finish" and self._finish is None:
            self._finish = self._loop.at(time.monotonic() + self._settings.finish, self._stop_all)

    def _stop_all(self) -> None:
        """Begin the ladder for every run; asked again, skip the rest of its waiting."""
        if self._staff is None:
            return
        self._end_all("shutdown", 0.0 if self._is_stopping else self._staff.oversight.grace)
        self._is_stopping = True

    def _on_confirmed(self, confirmed: OutcomeSettled) -> None:
        for member in self._members:
            if self._staff is not None and member.in_hooks == (confirmed.id, confirmed.claims):
                self._staff.oversight.confirm(member, confirmed)

    def _on_orphaned(self) -> None:
        """End everything at once and leave: the node is gone, or somebody wants this manager to go."""
        was_draining, self._is_draining, self._is_stopping = self._is_draining, True, True
        self._backlog.close()
        if self._staff is None:  # the node could not begin, and says why
            return
        if not was_draining:
            log.warning("the node is gone: its manager ends all jobs and leaves")
        oversight = self._staff.oversight
        oversight.grace = min(oversight.grace, ORPHANED_GRACE)
        self._staff.dissolve()
        self._end_all("shutdown", oversight.grace)

    def _on_broken(self, broken: ChannelBroken) -> None:
        """End everything: what the node wants can no longer be understood, nor whether its claims still hold."""
        log.error("the manager cannot understand its node any more: %s", broken)
        self._on_orphaned()

    def _end_all(self, reason: str, grace: float) -> None:
        assert self._staff is not None
        for member in self._members:
            self._staff.oversight.end(member, reason, grace)

    # What follows

    def _after_turn(self) -> None:
        """Do what follows from all that was heard in this turn."""
        if self._staff is not None:
            self._staff.send_home()
            self._share_out(self._staff)
            self._send()  # before the rest, which nobody waits for
            self._staff.fill()
            self._watch_the_given(self._staff)
            self._watch_the_waiting(self._staff)
            self._count(self._staff.counts)
        self._send()
        if self._is_draining and not self._members:
            self._loop.stop()

    def _send(self) -> None:
        """Send the workers what they were given, and the node what was reported."""
        for member in self._members:
            member.flush()
        self._reports.send()

    def _share_out(self, staff: WorkerPool) -> None:
        """Give runs to those who can take them."""
        now = time.monotonic()
        if not self._backlog.general and any(member.is_idle for member in self._members):
            for member in self._members:
                if member.ahead and member.current is not None and now - member.current.began_at > STOLEN_AFTER:
                    staff.oversight.recall(member)
        if self._backlog.general:
            self._backlog.deal(self._members, staff.oversight.pace, now)

    def _watch_the_given(self, staff: WorkerPool) -> None:
        """Look after a while which runs have begun."""
        if self._look is not None and self._look.is_pending:
            return
        now = time.monotonic()
        if any(member.is_given and now - member.busy_since < LASTS for member in self._members):
            self._look = self._loop.at(now + LOOK_AFTER, lambda: self._look_at_the_given(staff))

    def _look_at_the_given(self, staff: WorkerPool) -> None:
        for member in self._members:
            staff.oversight.look(member)

    def _watch_the_waiting(self, staff: WorkerPool) -> None:
        """Look after a while whether what waits has begun."""
        waits = self._backlog.general or any(member.ahead for member in self._members)
        if waits and (self._check is None or not self._check.is_pending):
            self._check = self._loop.at(time.monotonic() + LASTS / 2, lambda: self._look_at_the_waiting(staff))

    def _look_at_the_waiting(self, staff: WorkerPool) -> None:
        """Take back what waits behind a long run, and hand back what does not fit into the pool."""
        now = time.monotonic()
        for member in self._members:
            staff.oversight.look(member)  # a worker that was stopped may have gone on meanwhile
            if member.ahead and member.phase is RunStage.READY and now - member.busy_since > LASTS:
                staff.oversight.recall(member)
                member.is_silent = member.is_free
        busy = sum(not member.bound and not member.is_free for member in self._members)
        excess = len(self._backlog.general) - max(0, staff.slots - busy)
        if excess <= 0:
            return
        if now - max(staff.oversight.moved_at, self._backlog.general[0].came_at) > LASTS:
            self._backlog.hand_back_latest(excess)

    def _count(self, counts: PoolStatus) -> None:
        """Say how many workers there are, at most once in a while."""
        if counts == self._counts or (self._counting is not None and self._counting.is_pending):
            return
        self._counts = counts
        child_process.title(f"manager {counts.busy} busy, {counts.idle} idle")
        self._reports.tell(counts)
        self._counting = self._loop.at(time.monotonic() + COUNTS_EVERY, _nothing)


def _nothing() -> None:
    """Do nothing; the turn that follows does what is due."""
