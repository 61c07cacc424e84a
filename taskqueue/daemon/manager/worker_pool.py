"""The worker pool: starts, replaces and retires workers, gives them runs, and reaps dead ones."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from operator import attrgetter

from taskqueue.daemon.manager.adopted_processes import AdoptedProcesses
from taskqueue.daemon.manager.crash_outcomes import OomKills
from taskqueue.daemon.manager.run_monitor import RunMonitor
from taskqueue.daemon.manager.runs import QueuedRun, ReportQueue, RunQueue
from taskqueue.daemon.manager.scaling import Backoff, PoolState, decide
from taskqueue.daemon.manager.stack_monitor import NOT_BEGUN
from taskqueue.daemon.manager.worker_handle import (
    ONE_JOB,
    OUTDATED,
    STOP,
    SURPLUS,
    EndReason,
    RunSlot,
    StopEscalation,
    WorkerHandle,
    WorkerStage,
)
from taskqueue.daemon.manager.workers import Workers, shortage
from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import EndKind, PoolStatus, StackTaken, StartupFailed, TakeStack, WorkerChanged
from taskqueue.daemon.runtime import child_process, leftovers
from taskqueue.daemon.runtime.child_process import ForkUnsafe
from taskqueue.daemon.runtime.loop import Loop, Timer
from taskqueue.daemon.settings import PoolMode, Settings

log = logging.getLogger(__name__)

EARLY = 5.0
"""A worker that dies within this many seconds without having started a run died early."""

LEAVES_WITHIN = 2.0
"""How many seconds a retired worker has to exit."""

STEAL_AFTER = 0.02
"""Seconds after which an idle worker takes over runs that are queued after the run of another."""

PREFETCH_SECONDS = 0.01
"""How many seconds of work a worker gets in advance."""

MOST_PREFETCHED = 64
"""Maximum number of runs that a worker gets in advance."""

PREFETCH_BYTES = 128 * 1024
"""Maximum number of bytes of runs that a worker gets in advance: more would fill the channel."""


class WorkerPool:
    """The workers of one manager. No more are started after ``is_spawning`` has become false.

    A class with ``concurrency`` has one worker that takes its runs, in addition to the pool. A worker that must be
    replaced finishes its runs while another one takes over.
    """

    def __init__(self, loop: Loop, settings: Settings, workers: Workers, reports: ReportQueue, queue: RunQueue) -> None:
        self._loop = loop
        self._settings = settings
        self._forker = workers
        self._reports = reports
        self._queue = queue
        self._backoff = Backoff()
        self._oom_kills = OomKills()
        self._review: Timer | None = None
        self._shortage = ""
        """Why the last worker could not be started; empty if it could."""
        self.is_spawning = True
        self.workers: list[WorkerHandle] = []
        """All workers, including workers that are leaving."""
        self.slots = settings.slots
        """How many jobs can run at once, not counting those with ``force_spawn``."""
        self._of_class: dict[str, WorkerHandle] = {}
        """The worker that takes the runs of each class with ``concurrency``."""
        self._idle_timeout = 0.0 if settings.pm is PoolMode.ONDEMAND else settings.idle_timeout
        """Seconds without a run after which such a worker is retired."""
        self.monitor = RunMonitor(loop, settings, reports, queue, on_first_run=self._on_first_run)
        self.adopted = AdoptedProcesses(loop, self.workers, self.monitor.replace)

    @property
    def status(self) -> PoolStatus:
        """Return the numbers of idle and busy workers of the pool, and of those outside its bounds."""
        general = [worker for worker in self.workers if not worker.is_forced]
        idle = sum(worker.is_idle for worker in general)
        concurrent = sum(worker.is_shared for worker in self.workers)
        forced = len(self.workers) - len(general) - concurrent
        return PoolStatus(
            idle=idle, busy=len(general) - idle, forced=forced, concurrent=concurrent, shortage=self.shortage
        )

    @property
    def shortage(self) -> str:
        """Return why no worker can be started until the next attempt; empty if one can."""
        return self._shortage if time.monotonic() < self._backoff.resumes_at else ""

    @property
    def open_slots(self) -> int:
        """Return how many jobs of the pool can run at once, with the workers that there can be now."""
        return sum(not worker.is_forced for worker in self.workers) if self.shortage else self.slots

    def run_slots(self) -> Iterator[RunSlot]:
        """Yield the run slots of all workers."""
        for worker in self.workers:
            yield from worker.busy_slots

    def take_stack(self, message: TakeStack) -> None:
        """Report the stack of a run, now or soon, or why there is none."""

        def report(stack: str, why_not: str) -> None:
            self._reports.add(StackTaken(request=message.request, stack=stack, why_not=why_not))

        self.refresh()
        key = (message.id, message.claims)
        slot = next((slot for slot in self.run_slots() if slot.current and slot.current.queued.key == key), None)
        if slot is None:
            report("", NOT_BEGUN)
        else:
            self.monitor.stacks.take(slot, report)

    def refresh(self) -> None:
        """Read which runs have started."""
        for slot in self.run_slots():
            self.monitor.refresh(slot)

    def end_runs(self, reason: str, grace: float) -> None:
        """Ask all runs to end, and kill the remaining ones after the grace."""
        for slot in self.run_slots():
            self.monitor.end_run(slot, reason, grace)

    def fill(self) -> None:
        """Start and retire workers as scaling decides."""
        if not self.is_spawning:
            return
        if self._review is not None:
            self._review.cancel()
            self._review = None
        if self._is_settled():
            return
        state = self._state()
        change = decide(self._settings, state, now=time.monotonic(), backoff=self._backoff)
        for _ in range(change.spawn):
            self._spawn_pooled()
        for _ in range(change.forced):
            self._spawn_forced()
        for worker in self.workers:
            if worker.pid in change.retire:
                worker.replace_later(SURPLUS)
                self._retire(worker)
        if change.review_at is not None:
            self._review = self._loop.at(change.review_at, self.fill)

    def distribute(self) -> None:
        """Give queued runs to workers, and take runs queued after a long one back for idle workers."""
        now = time.monotonic()
        if not self._queue.general:
            blocked = [
                worker
                for worker in self.workers
                if worker.pending and worker.slot.current is not None and now - worker.busy_since > STEAL_AFTER
            ]
            if blocked and any(worker.is_idle for worker in self.workers):
                for worker in blocked:
                    self.monitor.requeue(worker)
        if self._queue.general:
            self._distribute_general(now)
        for job, queued_runs in self._queue.concurrent.items():
            self._distribute_concurrent(job, queued_runs)

    def _distribute_general(self, now: float) -> None:
        """Give each idle worker a run, and more runs in advance to workers whose runs are short.

        The worker that was busy last gets the first run, so that surplus workers stay idle and can be retired.
        """
        available = [worker for worker in self.workers if not worker.is_forced and worker.takes_more]
        idle = [worker for worker in available if worker.is_idle]
        for worker in sorted(idle, key=attrgetter("idle_since"), reverse=True):
            if not self._queue.general:
                return
            worker.give(self._queue.general.popleft())
        # A worker that has many runs gets none in advance, so that runs are sent in batches.
        with_room = [worker for worker in available if len(worker.pending) <= MOST_PREFETCHED // 2]
        for index, worker in enumerate(with_room):
            if not self._queue.general:
                return
            share = -(-len(self._queue.general) // (len(with_room) - index))
            self._prefetch(worker, share, now)

    def _prefetch(self, worker: WorkerHandle, share: int, now: float) -> None:
        """Give a worker up to ``share`` runs in advance, as long as they are short and small."""
        expected = self.monitor.run_times.expected
        seconds = sum(expected(queued.run.job) for _, queued in worker.pending)
        current = worker.slot.current
        if current is not None:
            seconds += max(expected(current.queued.run.job), now - current.began_at)
        size = sum(len(queued.payload) for _, queued in worker.pending)
        for _ in range(share):
            if not self._queue.general or len(worker.pending) >= MOST_PREFETCHED or worker.reached_max_runs:
                return
            queued = self._queue.general[0]
            seconds += expected(queued.run.job)
            size += len(queued.payload)
            if seconds > PREFETCH_SECONDS or size > PREFETCH_BYTES:
                return
            worker.give(self._queue.general.popleft())

    def _distribute_concurrent(self, job: str, queued_runs: deque[QueuedRun]) -> None:
        """Give queued runs of a class to the free slots of its worker, which is started if it is missing."""
        worker = self._of_class.get(job)
        if worker is None or not worker.accepts:
            worker = self._spawn_concurrent(job, queued_runs[0].run.concurrency) if queued_runs else None
            if worker is None:
                return
            self._of_class[job] = worker
        while queued_runs and worker.has_room:
            worker.give(queued_runs.popleft())
        is_timer_set = worker.idle_timer is not None and worker.idle_timer.is_pending
        if worker.is_free and worker.stage is WorkerStage.READY and not is_timer_set:
            retires_at = worker.idle_since + self._idle_timeout
            worker.idle_timer = self._loop.at(retires_at, partial(self._retire_if_idle, worker))

    def _retire_if_idle(self, worker: WorkerHandle) -> None:
        """Retire the worker of a class if it has had no run for the idle timeout."""
        is_idle = worker.is_free and worker.stage is WorkerStage.READY
        if is_idle and time.monotonic() >= worker.idle_since + self._idle_timeout:
            worker.replace_later(SURPLUS)

    def hand_back_blocked(self, since: float) -> None:
        """Hand back the runs that have waited since then for the worker of a class whose slots are all taken."""
        for job, queued_runs in self._queue.concurrent.items():
            worker = self._of_class.get(job)
            is_blocked = worker is not None and worker.stage is WorkerStage.READY and not worker.has_room
            if is_blocked and queued_runs and queued_runs[0].queued_at < since:
                self._queue.hand_back_concurrent(job)

    def load_new_code(self) -> None:
        """Replace the workers; new ones run the file to which the path of the bootstrap file leads now."""
        self._forker.resolve_bootstrap()
        for worker in self.workers:
            worker.mark_outdated()

    def retire_idle(self) -> None:
        """Retire idle workers that must be replaced; outdated ones one at a time."""
        for worker in self.workers:
            if worker.stage is WorkerStage.LEAVING or not worker.is_free:
                continue
            if (worker.max_runs or worker.is_forced) and (spent_reason := worker.spent_reason):
                worker.replace_later(spent_reason)
            if worker.is_outdated and self._is_complete:
                worker.replace_later(OUTDATED)
            if worker.to_be_replaced:
                self._retire(worker)

    def unlock(self, pid: int) -> None:
        """Kill the worker that is process ``pid``, or whose job started that, because it locks the store.

        A worker with a run may be about to end its transaction: the first call logs a warning, the next one kills it.
        """
        pids = (*child_process.ancestry(pid), leftovers.worker_of(pid))
        for worker in self.workers:
            if worker.pid not in pids or worker.stage is WorkerStage.LEAVING:
                continue
            current = next((slot.current for slot in worker.busy_slots if slot.current is not None), None)
            named = worker.named_suspect
            if current is not None and worker.warned_run is not current:
                worker.warned_run = current
                log.warning("a job keeps other processes from writing to the store: %s, pid %d", named, pid)
                continue
            worker.kill_reason = (
                f"it kept other processes from writing to the store, in a transaction that was left open: {named}"
            )
            log.error("killing a worker: pid %d: %s", worker.pid, worker.kill_reason)
            self._kill(worker)

    def close(self) -> None:
        """Stop starting workers, and retire each as soon as it has no run."""
        self.is_spawning = False
        for worker in self.workers:
            worker.replace_later(STOP)
        self.retire_idle()

    def _is_settled(self) -> bool:
        """Return whether scaling changes nothing: each slot has a worker, which is kept anyway or busy."""
        if len(self.workers) != self.slots or self._queue.forced:
            return False
        is_static = self._settings.pm is PoolMode.STATIC
        for worker in self.workers:
            if worker.stage is not WorkerStage.READY or worker.is_forced or (worker.is_free and not is_static):
                return False
        return True

    def _state(self) -> PoolState:
        """Return the counts on which scaling decides."""
        general = [worker for worker in self.workers if not worker.is_forced]
        forced = [worker for worker in self.workers if worker.is_forced]
        ready = [worker for worker in general if worker.stage is WorkerStage.READY]
        idle = {worker.pid: worker.idle_since for worker in ready if worker.is_idle and not worker.to_be_replaced}
        return PoolState(
            idle=idle,
            busy=len(ready) - len(idle),
            starting=sum(worker.stage is WorkerStage.STARTING for worker in general),
            leaving=sum(worker.stage is WorkerStage.LEAVING for worker in general),
            waiting=len(self._queue.general),
            forced_starting=sum(worker.stage is WorkerStage.STARTING for worker in forced),
            forced_waiting=len(self._queue.forced),
        )

    @property
    def _is_complete(self) -> bool:
        """Return whether no worker is starting or leaving."""
        return all(worker.stage is WorkerStage.READY for worker in self.workers)

    def _spawn_pooled(self) -> None:
        self._spawn(1 if self._settings.pm is PoolMode.ONDEMAND else self._settings.max_jobs_per_child, is_forced=False)

    def _spawn_forced(self) -> None:
        worker = self._spawn(1, is_forced=True)
        if worker is not None:
            worker.give(self._queue.forced.popleft())

    def _spawn_concurrent(self, job: str, concurrency: int) -> WorkerHandle | None:
        """Start a worker for the class, unless workers die early: then one at a time."""
        now = time.monotonic()
        is_one_starting = any(worker.stage is WorkerStage.STARTING for worker in self.workers)
        if not self.is_spawning or not self._backoff.allows(now) or (self._backoff.deaths and is_one_starting):
            return None
        return self._spawn(self._settings.max_jobs_per_child, is_forced=True, job=job, concurrency=concurrency)

    def _spawn(self, max_runs: int, *, is_forced: bool, job: str = "", concurrency: int = 1) -> WorkerHandle | None:
        """Fork a worker, and return it; None if that failed."""
        if self.shortage:
            return None
        self._oom_kills.reset()
        now = time.monotonic()
        try:
            worker = self._forker.spawn(
                now=now, max_runs=max_runs, is_forced=is_forced, job=job, concurrency=concurrency
            )
        except ForkUnsafe as error:
            self._give_up(StartupFailed(reason=str(error), bootstrap=True))
        except (OSError, MemoryError) as error:
            self._on_shortage(shortage(error))
        else:
            if self._shortage:
                log.info("workers can be started again")
                self._shortage, self._backoff = "", self._backoff.recovered()
            self._watch(worker)
            return worker
        return None

    def _watch(self, worker: WorkerHandle) -> None:
        """Handle the messages, the signals and the end of a new worker."""
        self.workers.append(worker)
        self._loop.watch(worker.child, partial(self._on_exit, worker))
        self._loop.watch(worker.signal_pipe, partial(self.monitor.on_signal, worker))
        on_close, on_broken = partial(self._on_close, worker), partial(self._on_broken, worker)
        self._loop.watch_channel(worker.channel, partial(self.monitor.on_message, worker), on_close, on_broken)
        self._reports.add(WorkerChanged(pid=worker.pid))

    def _retire(self, worker: WorkerHandle) -> None:
        """Tell an idle worker to exit, by closing its channel."""
        self._loop.unwatch(worker.channel)
        worker.retire(StopEscalation(self._loop, worker.child, kill_at=time.monotonic() + LEAVES_WITHIN))

    def _on_close(self, worker: WorkerHandle) -> None:
        """Kill a worker that closed its channel and does not exit: a job may have closed the worker's descriptors."""
        self._loop.at(time.monotonic() + LEAVES_WITHIN, partial(self._kill_disconnected, worker))

    def _on_broken(self, worker: WorkerHandle, broken: ChannelBroken) -> None:
        """Kill a worker whose channel is broken: a job has read or written descriptors of the worker."""
        worker.kill_reason = str(broken)
        log.error("killing a worker with a broken channel: pid %d: %s", worker.pid, broken)
        self._kill(worker)

    def _kill_disconnected(self, worker: WorkerHandle) -> None:
        if worker in self.workers and not worker.kill_reason:
            worker.kill_reason = (
                "it closed the channel to its manager: a job has closed descriptors that are not its own"
            )
        self._kill(worker)

    def _kill(self, worker: WorkerHandle) -> None:
        if worker in self.workers:
            worker.child.kill_group()

    def _on_exit(self, worker: WorkerHandle) -> None:
        """Handle a worker's death: read its remaining messages, kill its leftovers, report its run."""
        with contextlib.suppress(ChannelBroken):
            for payload in worker.channel.remaining():
                self.monitor.on_message(worker, payload)
        for source in (worker.child, worker.signal_pipe, worker.channel):
            self._loop.unwatch(source)
        exit = worker.child.reap()
        self.adopted.kill_left_by(worker.pid)
        is_unexplained = exit.signal == signal.SIGKILL and not worker.is_being_ended
        killer = self._oom_kills.explain_kill() if is_unexplained else None
        suspect = worker.suspect if worker.kill_reason or killer else None
        self.monitor.report_death(worker, exit, killer.words if killer else "")
        job = worker.replace_job if suspect is None else suspect.run.id
        reason = _end_reason(worker, killer)
        if reason.words:
            level = logging.DEBUG if reason in (ONE_JOB, SURPLUS, STOP) else logging.INFO
            words = f"{reason.words}: job {job}" if job else reason.words
            log.log(level, "a worker has exited: pid %d, %s: %s", worker.pid, exit, words)
        self._reports.add(WorkerChanged(pid=worker.pid, exit=str(exit), kind=reason.kind, reason=reason.words, job=job))
        self._note_early_death(worker, exit)
        self.workers.remove(worker)
        self._forker.close(worker)

    def _note_early_death(self, worker: WorkerHandle, exit: child_process.ChildExit) -> None:
        """Count the death of a worker that never started a run."""
        was_retiring = worker.stage is WorkerStage.LEAVING or worker.to_be_replaced
        survived = worker.stage is WorkerStage.READY and time.monotonic() - worker.forked_at > EARLY
        if worker.runs_begun or was_retiring or survived:
            return
        log.warning("a worker %s before its first job: pid %d", exit, worker.pid)
        self._on_spawn_failure(
            self.monitor.startup_failure or StartupFailed(reason=f"workers die before their first job: {exit}")
        )

    def _on_first_run(self) -> None:
        self._backoff = self._backoff.survived()
        self.monitor.startup_failure = None

    def _on_spawn_failure(self, failure: StartupFailed) -> None:
        """Note that a worker could not be started, and give up after too many in a row."""
        self._backoff = self._backoff.died_early(time.monotonic())
        if self._backoff.exhausted:
            self._give_up(failure)

    def _on_shortage(self, reason: str) -> None:
        """Keep the existing workers, and try again later."""
        if reason != self._shortage:
            log.warning("%s; running jobs continue", reason)
        self._shortage, self._backoff = reason, self._backoff.fell_short(time.monotonic())
        self._loop.at(self._backoff.resumes_at, self.fill)

    def _give_up(self, failure: StartupFailed) -> None:
        """Report to the node that workers cannot be started; the node shuts down."""
        self.is_spawning = False
        self._reports.add(failure)


def _end_reason(worker: WorkerHandle, killer: EndReason | None) -> EndReason:
    """Return why the worker has ended; the words are empty if that is unknown."""
    if worker.kill_reason:
        return EndReason(worker.kill_reason)
    return killer or worker.replace_reason or EndReason("", EndKind.DIED)
