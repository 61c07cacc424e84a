"""Tasks that ask for their job in a worker: beside others, in threads, and again after their worker was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from taskqueue import RunningJob, current_job, task

AT_ONCE = 5
begun: list[Any] = []
together: list[asyncio.Event] = []


@task(concurrency=AT_ONCE)
async def beside() -> list[str]:
    """Return whose job tasks and threads of this one have, while others of its kind run in the same loop."""
    begun.append(current_job().id)
    if not together:
        together.append(asyncio.Event())
    if len(begun) == AT_ONCE:
        together[0].set()
    await together[0].wait()
    in_task = await asyncio.create_task(in_a_task())
    return [*map(str, [current_job().id, in_task, await asyncio.to_thread(lambda: current_job().id)])]


async def in_a_task() -> Any:
    """Return the job that has started this task."""
    await asyncio.sleep(0)
    return current_job().id


@task
def in_threads() -> list[str]:
    """Return whose job a thread has, and a pool of threads."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(current_job().id))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        found.append(pool.submit(lambda: current_job().id).result())
    return [*map(str, found)]


@task(context=True)
def killed_once(job: RunningJob, items: int) -> list[Any]:
    """Kill the worker at the third item, once; return the checkpoint and the items of the last attempt."""
    seen: list[int] = []
    for item in job.each(range(items)):
        if item == 2 and job.attempt == 1:
            job.checkpoint({"seen": seen})
            job.progress(40, "is about to die")
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(item)
    return [job.state, seen, job.key]
