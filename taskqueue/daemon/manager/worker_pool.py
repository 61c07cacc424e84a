"""Who works for a manager: as many workers as the pool should have, hired, replaced, and let go."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from functools import partial

from taskqueue.daemon.manager.oom_kills import OomKills
from taskqueue.daemon.manager.outbox import ReportOutbox
from taskqueue.daemon.manager.run_monitor import RunMonitor
from taskqueue.daemon.manager.run_queue import RunQueue
from taskqueue.daemon.manager.scaling import Backoff, PoolMode, PoolSettings, plan
from taskqueue.daemon.manager.stop_escalation import StopEscalation
from taskqueue.daemon.manager.worker_handle import RunStage, WorkerHandle, Workers
from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import PoolStatus, StartupFailed, WorkerChanged
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.child_process import ForkUnsafe
from taskqueue.daemon.runtime.loop import Loop, Timer
from taskqueue.daemon.settings import Settings

log = logging.getLogger(__name__)

EARLY = 5.0
"""A worker that dies within so many seconds, without having begun a run, died early."""

ONE_JOB, SURPLUS, STOP = "it was for one job", "it had nothing to do", "its node stops"
"""Why workers leave in the ordinary course of things."""

LEAVES_WITHIN = 2.0
"""Seconds that a worker gets to leave when it has nothing to do any more."""


class WorkerPool:
    """The members of a crew, as the pool wants them. Nobody is hired after ``is_hiring`` has become false."""

    def __init__(self, loop: Loop, settings: Settings, crew: Workers, reports: ReportOutbox, backlog: RunQueue) -> None:
        self._loop = loop
        self._settings = settings
        self._crew = crew
        self._reports = reports
        self._backlog = backlog
        self._strangers_known = child_process.children()  # those of preloaded modules, say
        self._pool = PoolSettings(
            mode=settings.pm,
            min_children=settings.min_children,
            max_children=settings.max_children,
            idle_timeout=settings.idle_timeout,
        )
        self._backoff = Backoff()
        self._oom_kills = OomKills()
        self._review: Timer | None = None
        self.is_hiring = True
        self.oversight = RunMonitor(loop, settings, reports, backlog, on_first_run=self._on_first_run)

    @property
    def members(self) -> list[WorkerHandle]:
        """Return all workers, those that are about to leave too."""
        return list(self._crew.members)

    @property
    def slots(self) -> int:
        """Return how many runs can go on at once, those with ``force_spawn`` not counted."""
        return self._pool.slots

    @property
    def counts(self) -> PoolStatus:
        """Return how many there are."""
        general = [member for member in self._crew.members if not member.bound]
        idle = sum(member.is_idle for member in general)
        return PoolStatus(idle=idle, busy=len(general) - idle, forced=len(self._crew.members) - len(general))

    def fill(self) -> None:
        """Have as many workers as there should be now."""
        if not self.is_hiring:
            return
        if self._review is not None:
            self._review.cancel()
            self._review = None
        if self._is_at_its_most:
            return
        census = self._crew.census(len(self._backlog.general), len(self._backlog.forced))
        wanted = plan(self._pool, census, now=time.monotonic(), backoff=self._backoff)
        for _ in range(wanted.spawn):
            self._hire_for_all()
        for _ in range(wanted.forced):
            self._hire_for_one()
        for member in self.members:
            if member.pid in wanted.retire:
                member.wear(SURPLUS)
                self._let_go(member)
        if wanted.review_at is not None:
            self._review = self._loop.at(wanted.review_at, self.fill)

    def send_home(self) -> None:
        """Let those go that have nothing to do and are not wanted any more; the outdated ones one by one."""
        for member in self.members:
            if member.phase is RunStage.LEAVING or not member.is_free:
                continue
            if member.is_spent or (member.bound and member.given > 0):
                member.wear(ONE_JOB if member.runs_at_most == 1 else f"it has done its {member.runs_at_most} jobs")
            if member.is_outdated and self._is_complete:
                member.wear("its node was asked to load new code")
            if member.is_worn:
                self._let_go(member)

    def unlock(self, pid: int) -> None:
        """End the worker that is process ``pid``, or has started it: it keeps all others from writing to the store.

        One that is at a run may be about to end its transaction, and is ended when it is asked for again.
        """
        pids = child_process.ancestry(pid)
        for member in self.members:
            if member.pid not in pids or member.phase is RunStage.LEAVING:
                continue
            current, culprit = member.current, member.culprit
            named = "no job has run there" if culprit is None else f"job {culprit.run.id} ({culprit.run.job})"
            if current is not None and member.warned is not current:
                member.warned = current
                log.warning("a job keeps all others from writing to the store: %s, pid %d", named, pid)
                continue
            member.fault = f"it kept all others from writing to the store, in a transaction that was left open: {named}"
            log.error("a worker is ended: pid %d: %s", member.pid, member.fault)
            self._kill(member)

    def dissolve(self) -> None:
        """Hire nobody any more, and let everybody go who has nothing to do."""
        self.is_hiring = False
        for member in self.members:
            member.wear(STOP)
        self.send_home()

    @property
    def _is_at_its_most(self) -> bool:
        """Tell whether each slot has a busy worker, so that nobody is to be hired, and nobody to be let go."""
        members = self._crew.members
        if len(members) != self._pool.slots or self._backlog.forced:
            return False
        return all(member.phase is RunStage.READY and not member.bound and not member.is_free for member in members)

    @property
    def _is_complete(self) -> bool:
        """Tell whether nobody is on the way in or out."""
        return all(member.phase is RunStage.READY for member in self._crew.members)

    def _hire_for_all(self) -> None:
        self._hire(1 if self._settings.pm is PoolMode.ONDEMAND else self._settings.max_jobs_per_child, bound=False)

    def _hire_for_one(self) -> None:
        member = self._hire(1, bound=True)
        if member is not None:
            member.give(self._backlog.forced.popleft())

    def _hire(self, runs_at_most: int, *, bound: bool) -> WorkerHandle | None:
        now = time.monotonic()
        self._oom_kills.forget()
        try:
            member = self._crew.hire(now=now, runs_at_most=runs_at_most, bound=bound)
        except ForkUnsafe as error:
            self._despair(StartupFailed(reason=str(error), bootstrap=True))
            return None
        except OSError as error:
            self._fail(StartupFailed(reason=f"no worker can be forked: {error}"))
            return None
        self._loop.watch(member.child, partial(self._on_exit, member))
        self._loop.watch(member.lookout, partial(self.oversight.on_lookout, member))
        on_message = partial(self.oversight.on_message, member)
        on_close, on_broken = partial(self._on_close, member), partial(self._on_broken, member)
        self._loop.watch_channel(member.channel, on_message, on_close, on_broken)
        self._reports.tell(WorkerChanged(pid=member.pid))
        return member

    def _let_go(self, member: WorkerHandle) -> None:
        """Let a worker leave that has nothing to do: the end of its channel tells it."""
        member.phase = RunStage.LEAVING
        self._loop.unwatch(member.channel)
        member.channel.close()
        if member.ladder is not None:  # somebody told it already
            member.ladder.stop()
        member.ladder = StopEscalation(self._loop, member.child, kills_at=time.monotonic() + LEAVES_WITHIN)

    def _on_close(self, member: WorkerHandle) -> None:
        """Take in that a worker closed its channel: it is dying, or its job has closed what is not its own."""
        self._loop.at(time.monotonic() + LEAVES_WITHIN, partial(self._kill_mute, member))

    def _on_broken(self, member: WorkerHandle, broken: ChannelBroken) -> None:
        """End a worker that cannot be understood any more: its job has written or read what is not its own."""
        member.fault = str(broken)
        log.error("a worker cannot be understood any more and is ended: pid %d: %s", member.pid, broken)
        self._kill(member)

    def _kill_mute(self, member: WorkerHandle) -> None:
        if member in self._crew.members and not member.fault:
            member.fault = "it closed the channel to its manager: a job has closed descriptors that are not its own"
        self._kill(member)

    def _kill(self, member: WorkerHandle) -> None:
        if member in self._crew.members:
            member.child.signal_group(signal.SIGKILL)

    def _on_exit(self, member: WorkerHandle) -> None:
        """Take in that a worker is dead: hear its last words, sweep up what it left behind, and report it."""
        with contextlib.suppress(ChannelBroken):
            for payload in member.last_words():
                self.oversight.on_message(member, payload)
        for source in (member.child, member.lookout, member.channel):
            self._loop.unwatch(source)
        exit = member.child.reap()
        child_process.sweep(member.pid)
        child_process.reap_strangers({*self._strangers_known, *self._crew.pids})
        is_explained = bool(member.fault) or member.ladder is not None
        killer = self._oom_kills.told() if exit.signal == signal.SIGKILL and not is_explained else ""
        culprit = member.culprit if member.fault or killer else None
        self.oversight.bury(member, exit, killer)
        job = member.why_job if culprit is None else culprit.run.id
        why = member.fault or killer or member.why
        if why:
            level = logging.DEBUG if why in (ONE_JOB, SURPLUS, STOP) else logging.INFO
            log.log(level, "a worker has left: pid %d, %s: %s%s", member.pid, exit, why, job and f": job {job}")
        self._reports.tell(WorkerChanged(pid=member.pid, exit=str(exit), why=why, job=job))
        self._judge(member, exit)
        self._crew.dismiss(member)

    def _judge(self, member: WorkerHandle, exit: child_process.ChildExit) -> None:
        """Note whether a worker died before it was of any use."""
        told_to_go = member.phase is RunStage.LEAVING or member.is_worn
        survived = member.phase is RunStage.READY and time.monotonic() - member.born_at > EARLY
        if member.begun or told_to_go or survived:
            return
        log.warning("a worker %s before its first job: pid %d", exit, member.pid)
        self._fail(self.oversight.fault or StartupFailed(reason=f"workers die before their first job: {exit}"))

    def _on_first_run(self) -> None:
        self._backoff = self._backoff.survived()
        self.oversight.fault = None

    def _fail(self, hopeless: StartupFailed) -> None:
        """Note that a worker could not be had; again and again, that is hopeless."""
        self._backoff = self._backoff.died_early(time.monotonic())
        if self._backoff.exhausted:
            self._despair(hopeless)

    def _despair(self, hopeless: StartupFailed) -> None:
        """Tell the node that there can be no workers; it will say what to do."""
        self.is_hiring = False
        self._reports.tell(hopeless)
