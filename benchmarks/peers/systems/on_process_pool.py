"""The process pool of the standard library: what a job takes in Python when nothing keeps it."""

from __future__ import annotations

from concurrent.futures import Future, ProcessPoolExecutor

from benchmarks.peers.client import Client
from benchmarks.peers.record import work


class System(Client):
    """A pool in the client's process, with Python's own way of starting processes.

    Submitting is what starts it, so no task waits for workers: what is added in bulk is submitted when the others start
    their workers, one task after another, while the pool runs the first. Its time goes into messages,
    two for each task.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._waiting = range(0)

    def commands(self, workers: int) -> list[list[str]]:
        self._pool = ProcessPoolExecutor(workers)
        for key in self._waiting:
            self._pool.submit(work, key)
        return []

    def add(self, key: int, seconds: float = 0.0) -> Future[float]:
        assert self._pool is not None, "tasks are added to a pool that runs"
        return self._pool.submit(work, key, seconds)

    def add_many(self, keys: range) -> None:
        self._waiting = keys

    def result(self, handle: object) -> object:
        assert isinstance(handle, Future)
        return handle.result(timeout=60)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
