"""The workers of classes with ``concurrency``: starts one for a class when it has a run, and retires idle ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from taskqueue.daemon.manager.concurrent_worker_handle import ConcurrentWorkerHandle
from taskqueue.daemon.manager.queues import RunQueue
from taskqueue.daemon.manager.worker_handle import SURPLUS, WorkerStage
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import PoolMode, Settings


class ConcurrentWorkers:
    """Gives the runs of each class with ``concurrency`` to the run slots of its worker, in addition to the pool.

    A class has one worker that takes runs. A worker that must be replaced finishes its runs while another takes over.
    """

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        queue: RunQueue,
        spawn: Callable[[str, int], ConcurrentWorkerHandle | None],
    ) -> None:
        """``spawn`` starts a worker for a class with the given number of run slots, unless none may start now."""
        self._loop = loop
        self._idle_timeout = 0.0 if settings.pm is PoolMode.ONDEMAND else settings.idle_timeout
        self._queue = queue
        self._spawn = spawn
        self._workers: dict[str, ConcurrentWorkerHandle] = {}
        """The worker of each class that takes its runs."""

    def distribute(self) -> None:
        """Give queued runs to free slots, and start the workers that are missing."""
        for job, queued_runs in self._queue.concurrent.items():
            worker = self._workers.get(job)
            if worker is None or not worker.accepts:
                worker = self._spawn(job, queued_runs[0].run.concurrency) if queued_runs else None
                if worker is None:
                    continue
                self._workers[job] = worker
            while queued_runs and worker.has_room:
                worker.give(queued_runs.popleft())
            is_watched = worker.idle_timer is not None and worker.idle_timer.is_pending
            if worker.is_free and worker.stage is WorkerStage.READY and not is_watched:
                self._look_later(worker)

    def hand_back_blocked(self, since: float) -> None:
        """Hand back the runs that have waited since then for a worker whose slots are all taken."""
        for job, queued_runs in self._queue.concurrent.items():
            worker = self._workers.get(job)
            is_blocked = worker is not None and worker.stage is WorkerStage.READY and not worker.has_room
            if is_blocked and queued_runs and queued_runs[0].queued_at < since:
                self._queue.hand_back_concurrent(job)

    def _look_later(self, worker: ConcurrentWorkerHandle) -> None:
        at = max(time.monotonic(), worker.idle_since + self._idle_timeout)
        worker.idle_timer = self._loop.at(at, partial(self._retire_if_idle, worker))

    def _retire_if_idle(self, worker: ConcurrentWorkerHandle) -> None:
        if worker.is_free and worker.stage is WorkerStage.READY:
            if time.monotonic() - worker.idle_since >= self._idle_timeout:
                worker.replace_later(SURPLUS)
            else:
                self._look_later(worker)
