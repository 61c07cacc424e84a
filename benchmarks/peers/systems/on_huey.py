"""Huey with worker processes: on Redis, where it tells of results, or on SQLite with and without syncing."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from huey import RedisHuey, SqliteHuey

from benchmarks.peers.client import Client
from benchmarks.peers.record import work

PEER = os.environ["PEER"]
if PEER == "huey-redis":
    app = RedisHuey("peers", url=os.environ["PEERS_SERVER"], notify_result=True)
else:
    path = f"{os.environ['PEERS_FOLDER']}/huey.db"
    app = SqliteHuey("peers", filename=path, fsync=PEER != "huey-sqlite-no-sync")

run = app.task(name="run")(work)


class System(Client):
    """One application and one consumer with so many processes; on SQLite it looks for jobs every 10 ms."""

    def commands(self, workers: int) -> list[list[str]]:
        looks = [] if PEER == "huey-redis" else ["-d", "0.01", "-m", "0.01"]
        return [["huey_consumer", f"{__name__}.app", "-w", str(workers), "-k", "process", "-q", *looks]]

    def add(self, key: int, seconds: float = 0.0) -> object:
        return run(key, seconds)

    def add_at(self, key: int, at: float) -> None:
        run.schedule((key,), eta=datetime.fromtimestamp(at, timezone.utc))

    def result(self, handle: object) -> object:
        return handle.get(blocking=True, timeout=60)  # type: ignore[attr-defined]
