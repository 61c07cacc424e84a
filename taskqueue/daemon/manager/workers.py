"""All workers of one manager: forks them, keeps their handles, and counts them."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from taskqueue.daemon.manager.scaling import PoolState
from taskqueue.daemon.manager.worker_handle import WorkerHandle, WorkerStage
from taskqueue.daemon.protocol.channel import pair
from taskqueue.daemon.protocol.shared_memory import StartLog, WorkerPage
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime.child_process import fork
from taskqueue.daemon.worker.worker import Worker


class Workers:
    """The workers of one manager, with the settings that all of them get."""

    def __init__(
        self, *, url: str, bootstrap: Path | None, allow: Collection[str], keep: Collection[int], start_log: StartLog
    ) -> None:
        self._start_log = start_log
        self._url = url
        self._bootstrap = bootstrap
        self._allow = allow
        self._keep = keep
        self.handles: list[WorkerHandle] = []

    def spawn(self, *, now: float, max_runs: int, is_forced: bool) -> WorkerHandle:
        """Fork a worker. Raises ``ForkUnsafe`` and ``OSError``."""
        ours, theirs = pair()
        page, start_entry, permits = WorkerPage(), self._start_log.acquire(), StartPermits()
        signal_pipe, signals = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def live() -> int:
            return Worker(
                channel=theirs,
                page=page,
                start_entry=start_entry,
                permits=permits,
                signal_pipe=signals,
                url=self._url,
                bootstrap=self._bootstrap,
                allow=self._allow,
            ).run()

        keep = (*self._keep, theirs.fileno(), permits.fileno(), signals)
        try:
            child = fork(live, name="worker", keep=keep)
        except BaseException:
            ours.close()
            permits.close()
            page.close()
            self._start_log.release(start_entry)
            os.close(signal_pipe)
            raise
        finally:
            theirs.close()
            os.close(signals)
        worker = WorkerHandle(
            child=child,
            channel=ours,
            page=page,
            start_entry=start_entry,
            permits=permits,
            signal_pipe=signal_pipe,
            forked_at=now,
            max_runs=max_runs,
            is_forced=is_forced,
        )
        self.handles.append(worker)
        return worker

    def remove(self, worker: WorkerHandle) -> None:
        """Remove a dead worker and close its descriptors."""
        self.handles.remove(worker)
        worker.close()
        self._start_log.release(worker.start_entry)

    @property
    def pids(self) -> list[int]:
        """Return the pids of all workers."""
        return [worker.pid for worker in self.handles]

    def pool_state(self, waiting: int, forced_waiting: int) -> PoolState:
        """Return the counts on which scaling decides."""
        general = [worker for worker in self.handles if not worker.is_forced]
        forced = [worker for worker in self.handles if worker.is_forced]
        ready = [worker for worker in general if worker.stage is WorkerStage.READY]
        idle = {worker.pid: worker.idle_since for worker in ready if worker.is_idle and not worker.to_be_replaced}
        return PoolState(
            idle=idle,
            busy=len(ready) - len(idle),
            starting=sum(worker.stage is WorkerStage.STARTING for worker in general),
            leaving=sum(worker.stage is WorkerStage.LEAVING for worker in general),
            waiting=waiting,
            forced_starting=sum(worker.stage is WorkerStage.STARTING for worker in forced),
            forced_waiting=forced_waiting,
        )
