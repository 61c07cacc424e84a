"""Celery with a Redis broker and the prefork pool; "late" acknowledges after the job and takes one at a time."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from celery import Celery

from benchmarks.peers.client import Client
from benchmarks.peers.record import work

URL = os.environ["PEERS_SERVER"]
app = Celery("peers", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True
if os.environ["PEER"] == "celery-late":
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True
    app.conf.worker_prefetch_multiplier = 1

run = app.task(name="run")(work)


class System(Client):
    """One application and one worker command with so many processes."""

    def commands(self, workers: int) -> list[list[str]]:
        return [["celery", "-A", f"{__name__}:app", "worker", "-c", str(workers), "-l", "WARNING"]]

    def add(self, key: int, seconds: float = 0.0) -> object:
        return run.delay(key, seconds)

    def add_at(self, key: int, at: float) -> None:
        run.apply_async((key,), eta=datetime.fromtimestamp(at, timezone.utc))

    def result(self, handle: object) -> object:
        return handle.get(timeout=60)  # type: ignore[attr-defined]
