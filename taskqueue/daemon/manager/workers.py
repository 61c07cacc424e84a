"""Forks the workers of one manager, and closes the descriptors of dead ones."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any

from taskqueue.daemon.manager.concurrent_worker_handle import ConcurrentWorkerHandle, SharedSlot
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
        """Have new workers run the file to which the path of the bootstrap file leads now."""
        path = self._settings.bootstrap
        self._bootstrap = None if path is None else path.resolve()

    def spawn(self, *, now: float, max_runs: int, is_forced: bool) -> WorkerHandle:
        """Fork a worker. Raises ``ForkUnsafe`` and ``OSError``."""
        page, start_entry = WorkerPage(), self._start_log.acquire()

        def live(own: dict[str, Any]) -> int:
            return Worker(page=page, start_entry=start_entry, **own).run()

        try:
            ends = self._fork(live)
        except BaseException:
            page.close()
            self._start_log.release(start_entry)
            raise
        return WorkerHandle(
            page=page, start_entry=start_entry, forked_at=now, max_runs=max_runs, is_forced=is_forced, **ends
        )

    def spawn_concurrent(self, *, now: float, max_runs: int, job: str, concurrency: int) -> ConcurrentWorkerHandle:
        """Fork a worker with run slots for this many jobs of a class. Raises ``ForkUnsafe`` and ``OSError``."""
        page, *pages = WorkerPage.many(1 + concurrency)
        start_entry, *start_entries = self._start_log.acquire_many(1 + concurrency)

        def live(own: dict[str, Any]) -> int:
            from taskqueue.daemon.worker.concurrent_worker import ConcurrentWorker  # it imports asyncio

            slots = list(zip(pages, start_entries, strict=True))
            return ConcurrentWorker(page=page, start_entry=start_entry, slots=slots, **own).run()

        try:
            ends = self._fork(live)
        except BaseException:
            for entry in (start_entry, *start_entries):
                self._start_log.release(entry)
            raise
        worker = ConcurrentWorkerHandle(
            page=page,
            start_entry=start_entry,
            forked_at=now,
            max_runs=max_runs,
            is_forced=True,
            job=job,
            concurrency=concurrency,
            **ends,
        )
        for number, (own_page, entry) in enumerate(zip(pages, start_entries, strict=True), start=1):
            worker.add_slot(SharedSlot(number=number, owner=worker, pid=worker.pid, page=own_page, start_entry=entry))
        return worker

    def _fork(self, live: Callable[[dict[str, Any]], int]) -> dict[str, Any]:
        """Fork a child that calls ``live`` with its ends of the pipes and its settings; return the handle's ends."""
        require_free_descriptors()
        with ExitStack() as undone, ExitStack() as of_child:
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
            own = {
                "channel": theirs,
                "permits": permits,
                "signal_pipe": signals,
                "stack_file": stack_file,
                "url": self._url,
                "bootstrap": self._bootstrap,
                "allow": self._settings.allow,
                "capture_output": self._settings.capture_output,
            }

            def main() -> int:
                self._output.redirect()
                return live(own)

            keep = (theirs.fileno(), permits.fileno(), signals, stack_file.fileno())
            child = fork(main, name="worker", keep=(*self._keep, *self._output.writers, *keep))
            undone.pop_all()
        return {
            "child": child,
            "pid": child.pid,
            "channel": ours,
            "permits": permits,
            "signal_pipe": signal_pipe,
            "stack_file": stack_file,
        }

    def close(self, worker: WorkerHandle) -> None:
        """Close the descriptors of a dead worker."""
        worker.close()
        for entry in worker.start_entries:
            self._start_log.release(entry)


def shortage(error: OSError | MemoryError) -> str:
    """Return what the system lacks for a worker, and the way out."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno or 0
    way_out = _WAYS_OUT.get(number, "see the log of the kernel")
    return f"no worker can be started ({os.strerror(number)}): {way_out}"
