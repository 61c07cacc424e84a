"""Forks the workers of one manager, and closes the descriptors of dead ones."""

from __future__ import annotations

import os
from collections.abc import Collection

from taskqueue.daemon.manager.worker_handle import WorkerHandle
from taskqueue.daemon.protocol.channel import pair
from taskqueue.daemon.protocol.shared_memory import StartLog, WorkerPage
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime.child_process import fork
from taskqueue.daemon.settings import Settings
from taskqueue.daemon.worker.worker import Worker


class Workers:
    """The workers of one manager, with the settings that all of them get."""

    def __init__(self, settings: Settings, *, url: str, keep: Collection[int], start_log: StartLog) -> None:
        self._settings = settings
        self._start_log = start_log
        self._url = url
        self._keep = keep

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
                bootstrap=self._settings.bootstrap,
                allow=self._settings.allow,
                capture_output=self._settings.capture_output,
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
        return WorkerHandle(
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

    def close(self, worker: WorkerHandle) -> None:
        """Close the descriptors of a dead worker."""
        worker.close()
        self._start_log.release(worker.start_entry)
