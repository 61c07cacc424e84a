"""PgQueuer on PostgreSQL: one process for each worker, in which an event loop does ten jobs at a time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import SyncPsycopgDriver
from pgqueuer.queries import SyncQueries

from benchmarks.peers.client import Client
from benchmarks.peers.record import work

ADDRESS = os.environ["PEERS_SERVER"]


@asynccontextmanager
async def main() -> AsyncIterator[PgQueuer]:
    """Yield what a worker process runs."""
    connection = await asyncpg.connect(ADDRESS)
    queue = PgQueuer.from_asyncpg_connection(connection)

    @queue.entrypoint("run")
    async def run(job: object) -> None:
        key, seconds = job.payload.split()  # type: ignore[attr-defined]
        if float(seconds):
            await asyncio.to_thread(work, int(key), float(seconds))
        else:
            work(int(key))

    try:
        yield queue
    finally:
        await connection.close()


class System(Client):
    """One connection that adds, and a command for each worker."""

    def __init__(self) -> None:
        quiet = subprocess.DEVNULL
        subprocess.run(["pgq", "--pg-dsn", ADDRESS, "install"], check=True, stdout=quiet, stderr=quiet)
        self._connection = psycopg.connect(ADDRESS, autocommit=True)
        self._queries = SyncQueries(SyncPsycopgDriver(self._connection))

    def commands(self, workers: int) -> list[list[str]]:
        # The command line does the same, but its option for the log level fails with the pinned typer.
        return [[sys.executable, "-m", __name__]] * workers

    def add(self, key: int, seconds: float = 0.0) -> object:
        return self._queries.enqueue("run", _payload(key, seconds))

    def add_many(self, keys: range) -> None:
        for first in range(keys.start, keys.stop, 1000):
            batch = range(first, min(first + 1000, keys.stop))
            self._queries.enqueue(["run"] * len(batch), [_payload(key) for key in batch], [0] * len(batch))

    def add_at(self, key: int, at: float) -> None:
        self._queries.enqueue("run", _payload(key), 0, timedelta(seconds=at - time.time()))

    def close(self) -> None:
        self._connection.close()


def _payload(key: int, seconds: float = 0.0) -> bytes:
    return b"%d %g" % (key, seconds)


if __name__ == "__main__":
    from pgqueuer.adapters.cli import supervisor

    asyncio.run(supervisor.run(f"{__spec__.name}:main"))
