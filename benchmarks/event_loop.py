"""How long the calls of an ``AsyncScheduler`` keep its event loop: adds, and waits for the end of the jobs.

``python -m benchmarks.event_loop [--url URL] [--jobs 1000] [--json FILE]`` prints a table in Markdown; without a
URL in SQLite files in the current folder. Each step of each task is timed, by the clock and by the processor time of
the thread: the first also counts what other threads and programs take meanwhile. Python's collection of garbage, which
may fall into any step of any program, is off.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.jobs import Empty
from benchmarks.node import node
from benchmarks.page import table
from taskqueue import AsyncScheduler
from taskqueue.cli.bench import ScratchStores, scratch_stores

WORKERS = 2
Steps = list[tuple[float, float]]
"""The milliseconds of each step, by the clock and of the processor."""


class Timed(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._coroutine = coroutine
        self._steps = steps

    def send(self, value: Any) -> Any:
        """Take the next step."""
        began, busy = time.perf_counter(), time.thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            self._steps.append(((time.perf_counter() - began) * 1e3, (time.thread_time() - busy) * 1e3))

    def throw(self, *error: Any) -> Any:
        """Take the next step with an error."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()


def measure(stores: ScratchStores, jobs: int) -> Mapping[str, Any]:
    """Return the steps of adding jobs one after another, all at once, and of waiting for all of them."""
    with stores.fresh() as url:
        found = asyncio.run(_measured(url, stores.folder, jobs))
    return {"hardware": environment.hardware(), "jobs": jobs, "steps": found}


async def _measured(url: str, folder: Path, jobs: int) -> dict[str, Steps]:
    found: dict[str, Steps] = {}
    loop = asyncio.get_running_loop()

    def begin(name: str) -> None:
        gc.disable()
        steps = found[name] = []
        loop.set_task_factory(lambda loop, coroutine, **more: asyncio.Task(Timed(coroutine, steps), loop=loop, **more))

    async def add_each() -> None:
        for number in range(jobs):
            await scheduler.add_job(Empty, {"number": number})

    async with AsyncScheduler(url) as scheduler:
        await scheduler.add_job(Empty)  # opens the store
        begin("adds, one after another")
        await asyncio.create_task(add_each())
        begin("adds, all at once")
        added = [asyncio.create_task(scheduler.add_job(Empty, {"number": number})) for number in range(jobs)]
        processes = [await task for task in added]
        begin("waits, until a node has run all")
        waits = [asyncio.create_task(process.wait()) for process in processes]
        with node(url, folder, WORKERS):
            await asyncio.gather(*waits)
    return found


def summary(found: Mapping[str, Any]) -> list[str]:
    """Return a table in Markdown: of each part the number of steps, and the longest by clock and by processor."""
    rows = []
    for name, steps in found["steps"].items():
        clock, busy = (sorted(column) for column in zip(*steps, strict=True))
        late = [f"{sum(1 for one in column if one > 1)}" for column in (clock, busy)]
        at = int(len(steps) * 0.99)
        rows.append(
            (name, f"{len(steps):,}", f"{busy[at]:.2f}", f"{busy[-1]:.2f}", late[1], f"{clock[-1]:.2f}", late[0])
        )
    titles = (
        "steps of the loop",
        "number",
        "99 % within, ms of processor",
        "longest",
        "over 1 ms",
        "by the clock",
        "over 1 ms",
    )
    return table(titles, rows)


def main() -> None:
    """Measure, print, and write the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with scratch_stores(given.url or "loop.db") as stores:
        found = measure(stores, given.jobs)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    sys.stdout.write("\n".join([*summary(found), ""]))


if __name__ == "__main__":
    main()
