"""taskqueue with its embedded store, or on PostgreSQL, as one node or as a node of one worker each."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone

from benchmarks.peers.client import Client
from benchmarks.peers.record import work
from taskqueue import Job, Process, Scheduler

PEER = os.environ["PEER"]
LEVEL = "normal" if PEER.endswith("-normal") else "full"
URL = os.environ["PEERS_SERVER"] or f"sqlite://{os.environ['PEERS_FOLDER']}/jobs.db?synchronous={LEVEL}"


class Work(Job):
    """The job."""

    def start(self) -> float:
        key, seconds = self.data
        return work(key, seconds)


class System(Client):
    """One scheduler, and a node with a static pool."""

    def __init__(self) -> None:
        self._scheduler = Scheduler(URL)

    def commands(self, workers: int) -> list[list[str]]:
        nodes = workers if PEER.endswith("-nodes") else 1
        pool = ["--pm", "static", "--min-children", str(workers // nodes)]
        node = [sys.executable, "-m", "taskqueue.cli.node", "--url", URL, *pool, "--log-level", "warning"]
        return [[*node, "--name", f"peer-{number}"] for number in range(nodes)]

    def add(self, key: int, seconds: float = 0.0) -> Process:
        return self._scheduler.add_job(Work, [key, seconds])

    def add_many(self, keys: range) -> None:
        for first in range(keys.start, keys.stop, 1000):
            self._scheduler.add_jobs([(Work, [key, 0.0]) for key in range(first, min(first + 1000, keys.stop))])

    def add_at(self, key: int, at: float) -> None:
        self._scheduler.add_job(Work, [key, 0.0], at=datetime.fromtimestamp(at, timezone.utc))

    def result(self, handle: object) -> object:
        assert isinstance(handle, Process)
        return handle.wait(timeout=60).result

    def close(self) -> None:
        self._scheduler.close()
