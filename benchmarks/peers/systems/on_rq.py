"""RQ: by default a process forked for each job, or SimpleWorker, which runs jobs itself."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from redis import Redis
from rq import Queue

from benchmarks.peers.client import Client
from benchmarks.peers.record import work

URL = os.environ["PEERS_SERVER"]


class System(Client):
    """One queue and a pool of workers."""

    def __init__(self) -> None:
        self._queue = Queue(connection=Redis.from_url(URL))

    def commands(self, workers: int) -> list[list[str]]:
        simple = ["-w", "rq.SimpleWorker"] if os.environ["PEER"] == "rq-simple" else []
        return [["rq", "worker-pool", "-u", URL, "-n", str(workers), "-l", "WARNING", "-q", *simple]]

    def add(self, key: int, seconds: float = 0.0) -> object:
        return self._queue.enqueue(work, key, seconds)

    def add_many(self, keys: range) -> None:
        for first in range(keys.start, keys.stop, 1000):
            batch = range(first, min(first + 1000, keys.stop))
            self._queue.enqueue_many([Queue.prepare_data(work, (key,)) for key in batch])

    def add_at(self, key: int, at: float) -> None:
        self._queue.enqueue_at(datetime.fromtimestamp(at, timezone.utc), work, key)

    def result(self, handle: object) -> object:
        latest = handle.latest_result(timeout=60)  # type: ignore[attr-defined]
        return latest and latest.return_value
