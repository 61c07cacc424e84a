"""Processes that jobs left running and the manager adopted: reaps the dead, and kills those of a dead worker.

A manager knows all children that it forked itself, so it reaps only processes for which nobody else waits. A worker
adopts nothing: it could not tell an orphan from a child for which code of its job still waits.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from taskqueue.daemon.manager.worker_handle import WorkerHandle
from taskqueue.daemon.runtime import child_process, leftovers
from taskqueue.daemon.runtime.child_process import CHILDREN_FOR
from taskqueue.daemon.runtime.loop import Loop


@dataclass
class _Stray:
    """A living process that was adopted: how many runs its worker had started when it was first seen."""

    worker: WorkerHandle
    runs_begun: int
    left_at: float | None = None
    """When it was first seen after the end of its run."""

    def has_outlived_its_run(self, now: float) -> bool:
        """Return whether it has outlived its run for longer than allowed."""
        worker = self.worker
        if self.left_at is None and (worker.is_free or (not worker.is_shared and worker.runs_begun > self.runs_begun)):
            self.left_at = now
        return self.left_at is not None and now - self.left_at >= CHILDREN_FOR


class AdoptedProcesses:
    """The children of a manager that the manager did not fork."""

    def __init__(
        self, loop: Loop, workers: Sequence[WorkerHandle], replace: Callable[[WorkerHandle, str], None]
    ) -> None:
        """``workers`` are the current ones; ``replace`` is called for one whose job left a process for too long."""
        self._loop = loop
        self._workers = workers
        self._replace = replace
        self._known = child_process.children()  # e.g. processes that preloaded modules have started
        self._strays: dict[int, _Stray] = {}
        self.looked_at = 0.0
        """When it last looked for living ones; infinity while the next look is due."""
        loop.on_signal(signal.SIGCHLD, self.reap)

    def reap(self) -> None:
        """Reap dead processes."""
        child_process.reap_orphans(self._others())

    def kill_left_by(self, worker: int) -> None:
        """Kill and reap the processes that a dead, already reaped worker has left."""
        child_process.sweep(worker)
        others = self._others() - {worker}
        child_process.reap_strangers(others, spares=lambda pid: leftovers.worker_of(pid) in others)

    def look_later(self) -> None:
        """Look for living ones when a process may have outlived its job for too long."""
        self.looked_at = float("inf")
        self._loop.at(time.monotonic() + CHILDREN_FOR, self._look)

    def _look(self) -> None:
        """Replace a worker that left a process running for too long; check again while there are others."""
        self.looked_at = now = time.monotonic()
        try:
            self._strays = dict(self._living())
        except OSError:  # no descriptor is free
            self.look_later()
            return
        for pid, stray in self._strays.items():
            described = child_process.described(pid)
            if described and stray.has_outlived_its_run(now) and not stray.worker.to_be_replaced:
                reason = f"a process outlived the job that had started it by {CHILDREN_FOR:g} s: {described}"
                self._replace(stray.worker, reason)
        if self._strays:
            self.look_later()

    def _living(self) -> Iterator[tuple[int, _Stray]]:
        """Yield each child of a living worker's jobs, with its known facts."""
        workers = {worker.pid: worker for worker in self._workers}
        others = self._others()
        for pid in child_process.children():
            worker = None if pid in others else workers.get(leftovers.worker_of(pid))
            if worker is not None:
                yield pid, self._strays.get(pid) or _Stray(worker, worker.runs_begun)

    def _others(self) -> set[int]:
        """Return the children that are not orphans."""
        return {*self._known, *(worker.pid for worker in self._workers)}
