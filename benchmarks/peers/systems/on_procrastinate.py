"""Procrastinate on PostgreSQL: one process for each worker, which does one job at a time and keeps no results."""

from __future__ import annotations

import os
from datetime import datetime, timezone

import procrastinate

from benchmarks.peers.client import Client
from benchmarks.peers.record import work

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["PEERS_SERVER"]))


@app.task(name="run")
def run(key: int, seconds: float = 0.0) -> None:
    """Be the job."""
    work(key, seconds)


class System(Client):
    """One application and a command for each worker."""

    def __init__(self) -> None:
        app.open()
        app.schema_manager.apply_schema()

    def commands(self, workers: int) -> list[list[str]]:
        command = ["procrastinate", "--log-level=warning", "-a", f"{__name__}.app", "worker"]
        return [[*command, "-n", f"worker-{number}"] for number in range(workers)]

    def add(self, key: int, seconds: float = 0.0) -> object:
        return run.defer(key=key, seconds=seconds)

    def add_many(self, keys: range) -> None:
        for first in range(keys.start, keys.stop, 1000):
            run.batch_defer(*({"key": key} for key in range(first, min(first + 1000, keys.stop))))

    def add_at(self, key: int, at: float) -> None:
        run.configure(schedule_at=datetime.fromtimestamp(at, timezone.utc)).defer(key=key)

    def close(self) -> None:
        app.close()
