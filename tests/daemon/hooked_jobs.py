"""Jobs for the tests of hooks; they return the context variable that a hook has set."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

from taskqueue import ClassOptions, Job, RunningJob

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def note(job: RunningJob, text: str) -> None:
    """Note what a hook sees."""
    with Path(job.meta["notes"]).open("a") as notes:
        notes.write(f"{job.meta['tenant']} {text}\n")


class Threads(Job):
    """Returns the tenant of the job, of a thread, of a pool, and of a task."""

    def start(self) -> str:
        found = [TENANT.get()]
        thread = threading.Thread(target=lambda: found.append(TENANT.get()))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(TENANT.get).result())
        found.append(asyncio.run(asyncio.to_thread(TENANT.get)))
        return json.dumps(found)


class Awaited(Job):
    """Returns the tenant, or fails."""

    options: ClassVar[ClassOptions] = {"concurrency": 3}

    async def start(self) -> str:
        await asyncio.sleep(0)
        if self.data:
            raise ValueError("as told")
        return TENANT.get()


class Waits(Job):
    """Says that it runs, and waits for its end."""

    def start(self) -> None:
        self.progress(1)
        threading.Event().wait()


class WaitsAwaited(Job):
    """Does so in an event loop."""

    options: ClassVar[ClassOptions] = {"concurrency": 3}

    async def start(self) -> None:
        self.progress(1)
        await asyncio.Event().wait()


class Adds(Job):
    """Adds a job and returns its meta."""

    def start(self) -> Any:
        added = self.scheduler.add_job("elsewhere:Job")
        return {key: value for key, value in added.meta.items() if key != "notes"}
