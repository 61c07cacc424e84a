"""Forks the workers of one manager, and closes the descriptors of dead ones."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from taskqueue.daemon.manager.worker_handle import WorkerHandle
from taskqueue.daemon.manager.worker_output import WorkerOutput
from taskqueue.daemon.protocol.channel import pair
from taskqueue.daemon.protocol.shared_memory import StartLog, WorkerPage
from taskqueue.daemon.protocol.stack_file import StackFile
from taskqueue.daemon.protocol.start_permits import StartPermits
from taskqueue.daemon.runtime.child_process import fork, require_free_descriptors
from taskqueue.daemon.settings import Settings
from taskqueue.daemon.worker.worker import Worker

_WAYS_OUT: Mapping[int, str] = {
    errno.EAGAIN: "raise the limit of processes: TasksMax= and LimitNPROC= in the unit, or ulimit -u",
    errno.ENOMEM: "lower --max-children, or give the host or the cgroup more memory",
    errno.EMFILE: "raise the limit of open files: LimitNOFILE=16384 in the unit, or ulimit -n",
    errno.ENFILE: "raise the limit of open files of the host: sysctl fs.file-max",
}
"""What to do if no worker can be forked, by the system's error."""


class Workers:
    """The workers of one manager, with the settings that all of them get."""

    def __init__(
        self, settings: Settings, *, url: str, keep: Collection[int], start_log: StartLog, output: WorkerOutput
    ) -> None:
        self._settings = settings
        self._output = output
        self._start_log = start_log
        self._url = url
        self._keep = keep
        self._bootstrap = settings.bootstrap
        self.resolve_bootstrap()

    def resolve_bootstrap(self) -> None:
        """Make new workers run the file to which the path of the bootstrap file leads now."""
        path = self._settings.bootstrap
        self._bootstrap = None if path is None else path.resolve()

    def spawn(self, *, now: float, max_runs: int, is_forced: bool, job: str = "", concurrency: int = 1) -> WorkerHandle:
        """Fork a worker, one with ``concurrency`` run slots for a class. Raises ``ForkUnsafe`` and ``OSError``."""
        require_free_descriptors()
        pages = WorkerPage.many(concurrency)
        with ExitStack() as undone, ExitStack() as of_child:
            slots = list(zip(pages, self._start_log.acquire(concurrency), strict=True))
            for _, entry in slots:
                undone.callback(self._start_log.release, entry)
            ours, theirs = pair()
            undone.callback(ours.close)
            of_child.callback(theirs.close)
            permits = StartPermits()
            undone.callback(permits.close)
            signal_pipe, signals = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            undone.callback(os.close, signal_pipe)
            of_child.callback(os.close, signals)
            stack_file = StackFile()
            undone.callback(stack_file.close)
            ends = {"channel": theirs, "permits": permits, "signal_pipe": signals, "stack_file": stack_file}
            keep = (theirs.fileno(), permits.fileno(), signals, stack_file.fileno())
            main = partial(self._live, job, slots=slots, **ends)
            child = fork(main, name="worker", keep=(*self._keep, *self._output.writers, *keep))
            undone.pop_all()
        return WorkerHandle(
            child=child,
            pid=child.pid,
            channel=ours,
            permits=permits,
            signal_pipe=signal_pipe,
            stack_file=stack_file,
            memory=slots,
            forked_at=now,
            max_runs=max_runs,
            is_forced=is_forced,
            job=job,
        )

    def _live(self, job: str, **own: Any) -> int:
        """Live as a worker of the pool or of a class, and return the exit status."""
        self._output.redirect()
        own.update(url=self._url, bootstrap=self._bootstrap, settings=self._settings)
        if not job:
            return Worker(**own).run()
        from taskqueue.daemon.worker.concurrent_worker import ConcurrentWorker  # imported here: it imports asyncio

        return ConcurrentWorker(**own).run()

    def close(self, worker: WorkerHandle) -> None:
        """Close the descriptors of a dead worker."""
        worker.close()
        for slot in worker.slots:
            self._start_log.release(slot.start_entry)


def shortage(error: OSError | MemoryError) -> str:
    """Return what the system lacks for a worker, and the way out."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno or 0
    way_out = _WAYS_OUT.get(number, "see the log of the kernel")
    return f"no worker can be started ({os.strerror(number)}): {way_out}"
