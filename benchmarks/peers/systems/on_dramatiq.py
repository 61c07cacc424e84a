"""Dramatiq with a Redis broker and results: eight threads in each process as by default, or one."""

from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.client import Client
from benchmarks.peers.record import work

URL = os.environ["PEERS_SERVER"]
THREADS = 1 if os.environ["PEER"] == "dramatiq-one-thread" else 8
backend = RedisBackend(url=URL)
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=backend))
dramatiq.set_broker(broker)

run = dramatiq.actor(work, actor_name="run", store_results=True)


class System(Client):
    """One actor and one worker command with so many processes."""

    def commands(self, workers: int) -> list[list[str]]:
        return [["dramatiq", __name__, "-p", str(workers), "-t", str(THREADS)]]

    def add(self, key: int, seconds: float = 0.0) -> object:
        return run.send(key, seconds)

    def add_at(self, key: int, at: float) -> None:
        run.send_with_options(args=(key,), delay=max(0, int((at - time.time()) * 1000)))

    def result(self, handle: object) -> object:
        return handle.get_result(backend=backend, block=True, timeout=60_000)  # type: ignore[attr-defined]
