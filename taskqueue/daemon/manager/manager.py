"""The manager process: forks workers and runs jobs in them as its node tells it; it never opens the store."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path

from taskqueue.daemon.manager.runs import QueuedRun, ReportQueue, RunQueue
from taskqueue.daemon.manager.worker_handle import EndReason, WorkerHandle, WorkerStage
from taskqueue.daemon.manager.worker_output import WorkerOutput
from taskqueue.daemon.manager.worker_pool import WorkerPool
from taskqueue.daemon.manager.workers import Workers
from taskqueue.daemon.protocol import messages
from taskqueue.daemon.protocol.channel import Channel, ChannelBroken, pair
from taskqueue.daemon.protocol.codec import decode
from taskqueue.daemon.protocol.shared_memory import StartLog
from taskqueue.daemon.runtime import child_process, child_setup, leftovers, standard_streams
from taskqueue.daemon.runtime.child_process import Child, fork
from taskqueue.daemon.runtime.loop import Loop, Timer
from taskqueue.daemon.settings import Settings
from taskqueue.execution.run import Run
from taskqueue.model.environment import METRICS_FOLDER, VOICE

log = logging.getLogger(__name__)

LONG_RUN = 0.2
"""Seconds after which a run counts as long: runs queued after it go to other workers or nodes."""

REFRESH_AFTER = 0.005
"""Seconds after giving a run until the start log is read; a short run has ended by then."""

ORPHANED_GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL when the node is dead: other nodes are about to take its jobs."""

CONTINUES_AFTER = 15.0
"""Seconds from the end of its lease, or a lease if that is longer, until a stopped node is continued: other nodes may
take its jobs over before."""

STATUS_EVERY = 1.0
"""Seconds between two updates of the pool status, in messages and in the process title."""

FLUSH_WITHIN = 2.0
"""Seconds that the last reports may take to reach the node after the end of its lease."""


def fork_manager(settings: Settings, keep: Collection[int] = ()) -> tuple[Child, Channel, StartLog]:
    """Fork a manager that waits for ``StartPool``; return it, the channel to it and the start log.

    The manager and its workers keep the descriptors in ``keep``. Call this before opening a store or starting threads.
    """
    ours, theirs = pair()
    start_log = StartLog()

    def live() -> int:
        standard_streams.forked()
        standard_streams.leave_terminal()
        try:
            return Manager(settings, theirs, keep, start_log).run()
        finally:
            standard_streams.finish()

    keep_open = (*keep, theirs.fileno(), *standard_streams.descriptors())
    try:
        child = fork(live, name="manager", keep=keep_open, death_signal=signal.SIGTERM)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return child, ours, start_log


class Manager:
    """The manager of one node. All callbacks run in the turns of one loop."""

    def __init__(self, settings: Settings, node: Channel, keep: Collection[int], start_log: StartLog) -> None:
        self._settings = settings
        self._node = node
        self._node_pid = os.getppid()
        self._keep = keep
        self._start_log = start_log
        self._loop = Loop()
        self._output = WorkerOutput(self._loop)
        self._reports = ReportQueue(node)
        self._queue = RunQueue(self._reports)
        self._sequence = itertools.count()
        self._folder: Path | None = None
        """The folder of the settings, without links."""
        self._pool: WorkerPool | None = None
        self._workers: list[WorkerHandle] = []
        self._is_draining = False
        self._is_stopping = False
        self._finish_timer: Timer | None = None
        self._lease_timer: Timer | None = None
        self._lease_until = 0.0
        self._pending_timer: Timer | None = None
        self._refresh_timer: Timer | None = None
        self._status = messages.PoolStatus(idle=0, busy=0, forced=0, concurrent=0)
        self._status_timer: Timer | None = None

    def run(self) -> int:
        """Serve the node until it has shut down; return the exit status."""
        loop = self._loop
        loop.on_signal(signal.SIGTERM, self._on_sigterm)  # also sent by the kernel when the node dies
        loop.on_signal(signal.SIGINT, _nothing)
        loop.on_signal(signal.SIGHUP, _nothing)
        loop.watch_channel(self._node, self._on_node, partial(self._leave, ""), self._on_broken)
        loop.after_turn(self._after_turn)
        standard_streams.attend(loop)
        child_process.become_subreaper()
        leftovers.mark()
        child_process.allow_signals()
        loop.run()
        self._output.drain()
        # A node that waits for a slow store does not read; the outcomes of finished runs count until its lease ends.
        self._node.flush_blocking(max(0.0, self._lease_until - child_process.boottime()) + FLUSH_WITHIN)
        return 0

    # Messages from the node

    def _on_node(self, payload: bytes) -> None:
        message = decode(payload)
        match message:
            case Run() | messages.RunHook():
                self._on_run(message, payload)
            case messages.StartPool():
                self._on_start_pool(message)
            case messages.Stop():
                self._on_stop(message)
            case messages.TakeStack() if self._pool is not None:
                self._pool.take_stack(message)
            case messages.HandBack(most=most):
                self._on_hand_back(most)
            case messages.LeaseExtended(until=until):
                self._on_lease_extended(until)
            case messages.Shutdown(mode=mode):
                self._on_shutdown(mode)
            case messages.Unlock(pid=pid) if self._pool is not None:
                self._pool.unlock(pid)
            case messages.Recycle():
                self._on_recycle()
            case messages.OutcomeSettled():
                self._on_outcome_settled(message)

    def _on_start_pool(self, start_pool: messages.StartPool) -> None:
        """Import the preloaded modules, which workers share, and create the pool."""
        for name in VOICE:
            os.environ.pop(name, None)
        if start_pool.metrics:
            os.environ[METRICS_FOLDER] = start_pool.metrics
            if "prometheus_client" in sys.modules:  # --log-config may name a handler that imports it
                log.warning(
                    "prometheus_client was imported too early: this node does not serve the metrics of its jobs"
                )
        try:
            self._enter_folder()
        except OSError as error:
            self._reports.add(messages.StartupFailed(reason=f"the folder of --chdir: {error}", bootstrap=True))
            return
        before = child_setup.descriptors()
        for name in self._settings.preload:
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:
                log.exception("module %s cannot be preloaded", name)
                self._reports.add(
                    messages.StartupFailed(reason=f"module {name} cannot be preloaded: {error}", bootstrap=True)
                )
                return
        gc.freeze()  # a garbage collection here would write to the pages shared with workers, and copy them
        opened = child_setup.descriptors() - before  # a log file, say
        settings = self._settings
        keep = {*self._keep, *opened}
        workers = Workers(settings, url=start_pool.url, keep=keep, start_log=self._start_log, output=self._output)
        self._pool = WorkerPool(self._loop, settings, workers, self._reports, self._queue)
        self._workers = self._pool.workers

    def _enter_folder(self) -> None:
        """Change to the folder to which the path leads now; workers that are forked later import modules from there."""
        folder = self._settings.chdir.resolve(strict=True)
        os.chdir(folder)
        if self._folder is not None:
            sys.path.remove(str(self._folder))
        self._folder = folder
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()

    def _on_recycle(self) -> None:
        """Replace the workers, to load new code; links in the paths of the settings may lead elsewhere now."""
        try:
            self._enter_folder()
        except OSError as error:
            log.error("cannot load code from the folder of --chdir; workers continue with %s: %s", self._folder, error)
        if self._pool is not None:
            self._pool.load_new_code()

    def _on_run(self, message: Run | messages.RunHook, payload: bytes) -> None:
        is_hook = isinstance(message, messages.RunHook)
        run = messages.run_of(message) if isinstance(message, messages.RunHook) else message
        self._queue.add(QueuedRun(run, payload, time.monotonic(), next(self._sequence), is_hook))

    def _on_stop(self, stop: messages.Stop) -> None:
        """End the run wherever it is: in the queue, with a worker but not started, or running."""
        key = (stop.id, stop.claims)
        if self._queue.hand_back(key) or self._pool is None:
            return
        for slot in self._pool.run_slots():
            if any(queued.key == key for _, queued in slot.pending):
                self._pool.monitor.requeue(slot.worker)
                if self._queue.hand_back(key):
                    return
            self._pool.monitor.stop_run(slot, key, stop.reason)

    def _on_hand_back(self, count: int) -> None:
        if self._pool is not None and count > len(self._queue.general):
            for worker in self._workers:
                self._pool.monitor.requeue(worker)
        self._queue.hand_back_latest(count)
        self._queue.hand_back_beside_pool()

    def _on_lease_extended(self, until: float) -> None:
        """Schedule the end of all runs, in case the lease is not extended again."""
        self._lease_until = until
        if not self._is_draining:
            self._queue.open()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        # A grace that takes most of the lease would end runs between two renewals.
        begins_at = until - min(self._settings.grace, self._settings.lease / 3)
        self._lease_timer = self._loop.at(
            time.monotonic() + begins_at - child_process.boottime(), self._on_lease_in_doubt
        )
        self._reports.add(self._status)  # shows the node that this manager is alive

    def _on_lease_in_doubt(self) -> None:
        lease = self._settings.lease
        log.error("the lease of %g s (--lease) was not extended in time: ending all runs, replacing all workers", lease)
        self._queue.close()
        for worker in self._workers:  # a process left by a job may keep the node from renewing
            worker.replace_later(EndReason("the lease of its node was in doubt"))
        if self._pool is not None:
            self._pool.end_runs("lost", self._lease_until - child_process.boottime())
        self._continue_node_later(self._lease_until - child_process.boottime())

    def _continue_node_later(self, after: float) -> None:
        due_at = time.monotonic() + max(0.0, after) + max(CONTINUES_AFTER, self._settings.lease)
        self._lease_timer = self._loop.at(due_at, self._continue_node)

    def _continue_node(self) -> None:
        """Continue the node if it is stopped, since no other process may work here; look again later."""
        if os.getppid() == self._node_pid and child_process.is_stopped(self._node_pid):
            log.error("the node has been stopped (SIGSTOP) for longer than its lease: continuing it with SIGCONT")
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.kill(self._node_pid, signal.SIGCONT)
        self._continue_node_later(0.0)

    def _on_shutdown(self, mode: str) -> None:
        """Start no more runs, and end the running ones as ``mode`` says; a faster mode overrides an earlier one."""
        self._is_draining = True
        self._queue.close()
        if self._pool is None:
            return
        for worker in self._workers:
            self._pool.monitor.requeue(worker)
        for slot in self._pool.run_slots() if mode != "patient" else ():
            slot.page.announce_shutdown()
        self._pool.close()
        if mode == "quick":
            self._stop_all()
        elif mode == "finish" and self._finish_timer is None:
            self._finish_timer = self._loop.at(time.monotonic() + self._settings.finish, self._stop_all)

    def _stop_all(self) -> None:
        """Ask every run to stop, and kill it after the grace; when called again, kill at once."""
        if self._pool is None:
            return
        self._pool.end_runs("shutdown", 0.0 if self._is_stopping else self._pool.monitor.grace)
        self._is_stopping = True

    def _on_outcome_settled(self, settled: messages.OutcomeSettled) -> None:
        if self._pool is None:
            return
        for slot in self._pool.run_slots():
            if slot.hooks_key == (settled.id, settled.claims):
                self._pool.monitor.allow_hooks(slot, settled)

    def _on_sigterm(self) -> None:
        """Exit as if the node were dead: the kernel may have sent the signal for that, or else another process."""
        reason = f"manager {os.getpid()} was asked to exit by a SIGTERM that its node did not send"
        is_node_gone = os.getppid() != self._node_pid or not child_process.described(self._node_pid)  # or is dying
        self._leave("" if is_node_gone else reason)

    def _leave(self, reason: str) -> None:
        """End all runs with a short grace, and exit; without a ``reason`` because the node is dead."""
        was_draining, self._is_draining, self._is_stopping = self._is_draining, True, True
        self._queue.close()
        if self._pool is None:  # the node failed at its start and logs the reason
            return
        monitor = self._pool.monitor
        if not was_draining:
            log.warning("%s: the manager is ending all jobs and exiting", reason or "the node is gone")
            monitor.unrequested_stop = reason
        monitor.grace = min(monitor.grace, ORPHANED_GRACE)
        self._pool.close()
        self._pool.end_runs("shutdown", monitor.grace)

    def _on_broken(self, broken: ChannelBroken) -> None:
        log.error("the channel from the node is broken: %s", broken)
        self._leave(f"the channel from the node to manager {os.getpid()} was broken: {broken}")

    # At the end of each turn

    def _after_turn(self) -> None:
        """Act on everything received in this turn."""
        if self._pool is not None:
            self._pool.retire_idle()
            self._pool.distribute()
            self._send()  # before the rest, which is less urgent
            self._pool.fill()
            self._schedule_checks(self._pool)
            self._report_status(self._pool)
        self._send()
        if self._is_draining and not self._workers:
            self._loop.stop()

    def _send(self) -> None:
        """Send buffered messages to workers and node."""
        for worker in self._workers:
            if worker.unsent:
                worker.flush()
        self._reports.send()

    def _schedule_checks(self, pool: WorkerPool) -> None:
        """Read the start log soon if the start of a run is not known; check runs that have not started, later.

        Later, look for processes and changes that the runs have left.
        """
        if pool.monitor.changed_at > pool.adopted.looked_at:
            pool.adopted.look_later()
        given = [worker for worker in self._workers if worker.pending]
        now = time.monotonic()
        if given and any(worker.is_about_to_start and now - worker.busy_since < LONG_RUN for worker in given):
            if self._refresh_timer is None or not self._refresh_timer.is_pending:
                self._refresh_timer = self._loop.at(now + REFRESH_AFTER, pool.refresh)
        elif self._refresh_timer is not None:  # the runs have ended: nothing has to wake this process for them
            self._refresh_timer.cancel()
            self._refresh_timer = None
        waits = given or self._queue.general or any(self._queue.concurrent.values())
        if waits and (self._pending_timer is None or not self._pending_timer.is_pending):
            self._pending_timer = self._loop.at(now + LONG_RUN / 2, lambda: self._check_pending(pool))

    def _check_pending(self, pool: WorkerPool) -> None:
        """Take back runs queued after a long one, and hand back runs that the pool cannot take."""
        now = time.monotonic()
        pool.refresh()  # a worker that was stopped may have continued
        for worker in self._workers:
            if worker.pending and worker.stage is WorkerStage.READY and now - worker.busy_since > LONG_RUN:
                pool.monitor.requeue(worker)
                worker.mark_unresponsive(now)
            elif worker.is_unresponsive:
                worker.ask_for_runs(now)
        busy = sum(not worker.is_forced and not worker.is_free for worker in self._workers)
        pool.hand_back_blocked(now - LONG_RUN)
        excess = len(self._queue.general) - max(0, pool.open_slots - busy)
        if excess <= 0:
            return
        if now - max(pool.monitor.changed_at, self._queue.general[0].queued_at) > LONG_RUN:
            self._queue.hand_back_latest(excess)

    def _report_status(self, pool: WorkerPool) -> None:
        """Report a changed pool status, at most every ``STATUS_EVERY`` seconds, but a shortage at once."""
        is_early = self._status_timer is not None and self._status_timer.is_pending
        if is_early and pool.shortage == self._status.shortage:
            return
        if (status := pool.status) == self._status:
            return
        self._status = status
        child_process.title(f"manager {status.busy} busy, {status.idle} idle")
        self._reports.add(status)
        self._status_timer = self._loop.at(time.monotonic() + STATUS_EVERY, _nothing)


def _nothing() -> None:
    """Do nothing: the work is done at the end of the turn."""
