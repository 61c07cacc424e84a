"""How long a plain endpoint of a FastAPI application takes while other endpoints wait for jobs.

``pip install uvicorn``, then ``python -m benchmarks.web [--url URL] [--waits 1000]`` prints a table in Markdown;
without a URL with SQLite files in the current folder. The application runs under uvicorn in a process of its own; one
connection asks the plain endpoint again and again, and others wait beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from benchmarks.jobs import Empty
from benchmarks.node import node
from benchmarks.page import table
from taskqueue import AsyncScheduler
from taskqueue.cli.bench import scratch_stores

SOCKET = "web.sock"
REQUESTS = 2000
CLIENTS = 20


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have a scheduler as long as the application runs."""
    async with AsyncScheduler() as app.state.scheduler:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/plain")
async def plain() -> str:
    """Answer at once."""
    return "ok"


@app.get("/later")
async def later() -> str:
    """Wait for a job that does not end."""
    process = await app.state.scheduler.add_job(Empty, at="+1 hour")
    return str((await process.wait()).status.name)


@app.get("/now")
async def now() -> str:
    """Wait for a job that a node runs."""
    process = await app.state.scheduler.add_job(Empty)
    return str((await process.wait()).status.name)


class Connection:
    """One connection to the application, kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def get(self, path: str) -> float:
        """Ask, and return the milliseconds until the answer."""
        began = time.perf_counter()
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.splitlines()[0]
        length = next(
            int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")
        )
        await self._reader.readexactly(length)
        return (time.perf_counter() - began) * 1e3

    def close(self) -> None:
        """Close it."""
        self._writer.close()


async def connected(path: Path) -> Connection:
    """Return a connection, once the application listens."""
    while True:
        try:
            return Connection(*await asyncio.open_unix_connection(path))
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.sleep(0.05)


async def _asked(connection: Connection) -> list[float]:
    return sorted([await connection.get("/plain") for _ in range(REQUESTS)])


async def measure(url: str, folder: Path, waits: int) -> dict[str, tuple[list[float], int]]:
    """Return the sorted milliseconds of the plain endpoint, and the waits that ended meanwhile, for each burden."""
    at, found, ended = folder / SOCKET, {}, 0
    connection = await connected(at)
    await _asked(connection)
    found["nothing"] = await _asked(connection), 0
    waiting = [await connected(at) for _ in range(waits)]
    tasks = [asyncio.create_task(one.get("/later")) for one in waiting]
    await asyncio.sleep(10)  # until all have added their jobs
    found[f"{waits:,} requests wait for jobs that do not end"] = await _asked(connection), 0
    with node(url, folder, 2):

        async def go_on(client: Connection) -> None:
            nonlocal ended
            while True:
                await client.get("/now")
                ended += 1

        busy = [asyncio.create_task(go_on(await connected(at))) for _ in range(CLIENTS)]
        await asyncio.sleep(2)
        before = ended
        found[f"the same, and {CLIENTS} clients that add a job and wait for it in turn"] = (
            await _asked(connection),
            ended - before,
        )
        for task in (*busy, *tasks):
            task.cancel()
        await asyncio.wait([*busy, *tasks])
    return found


def summary(found: dict[str, tuple[list[float], int]]) -> Sequence[str]:
    """Return a table in Markdown."""
    rows = []
    for name, (all_ms, ended) in found.items():
        shares = [all_ms[int(len(all_ms) * share)] for share in (0.5, 0.99)]
        rows.append((name, *(f"{one:.2f}" for one in (*shares, all_ms[-1])), f"{ended:,}"))
    return table(("beside the plain endpoint", "p50, ms", "p99", "longest", "waits ended meanwhile"), rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--waits", type=int, default=1000)
    given = parser.parse_args()
    with scratch_stores(given.url or "web.db") as stores, stores.fresh() as url:
        command = [sys.executable, "-m", "uvicorn", "benchmarks.web:app", "--uds", str(stores.folder / SOCKET)]
        served = subprocess.Popen(
            [*command, "--log-level", "warning", "--timeout-keep-alive", "600"],
            env={**os.environ, "TASKQUEUE_URL": url},
        )
        try:
            found = asyncio.run(measure(url, stores.folder, given.waits))
        finally:
            served.kill()
            served.wait()
    sys.stdout.write("\n".join([*summary(found), ""]))


if __name__ == "__main__":
    main()
