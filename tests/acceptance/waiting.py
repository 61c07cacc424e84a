"""Jobs that wait for other jobs in their worker, each by another call, for acceptance tests."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from taskqueue import AsyncScheduler, ClassOptions, Job, Scheduler
from taskqueue.errors import WaitTimeout


class Child(Job):
    """Is waited for; stops at a gate if its data name one."""

    def start(self) -> str:
        if "gate" in self.data:
            Path(self.data["gate"]).read_text()
        return "done"


def _have_met(job: Job) -> bool:
    """Return whether as many jobs run as ``together`` of the data says, which meet in a folder."""
    if "together" not in job.data:
        return True
    folder = Path(job.data["folder"])
    (folder / f"met-{job.id}").touch()
    return len([*folder.glob("met-*")]) >= int(job.data["together"])


class Parent(Job):
    """Adds a child and waits for it, or for what its data name; returns the result of the child."""

    def start(self) -> Any:
        how, scheduler = self.data["how"], self.scheduler
        while not _have_met(self):
            time.sleep(0.01)
        queue = self.data.get("queue", "default")
        if how in ("itself", "given"):
            return scheduler.wait_for(self.id if how == "itself" else self.data["id"])[0].result
        if how == "pause":
            scheduler.pause(queue, wait=60)
        if how == "dependent":
            scheduler.add_job(Child, {}, depends_on=[self.id]).wait()
        if how == "run_job":
            return scheduler.run_job(Parent, {"how": "wait"}, reraise=True).result
        if how == "again and again":
            child = scheduler.add_job(Child, {}, queue=queue)
            while not child.is_final:
                with suppress(WaitTimeout):
                    child.wait(timeout=60)
        child = scheduler.add_job(Child, {}, queue=queue)
        if how == "second scheduler":
            with Scheduler(self.data["url"]) as second:
                return second.get_job(child.id).wait().result
        if how == "callbacks":
            scheduler.on("done", str)
        return child.wait().result


class AsyncParent(Job):
    """Does so with ``AsyncScheduler`` in a worker of the pool."""

    async def start(self) -> Any:
        async with AsyncScheduler(self.data["url"]) as scheduler:
            if self.data["how"] == "itself":
                await scheduler.wait_for([self.id])
            if self.data["how"] == "callbacks":
                scheduler.on("done", str)
            return await (await scheduler.add_job(Child, {}))


class ConcurrentParent(Job):
    """Waits beside another of its class in one worker, for a third one that ends at once, or for a child."""

    options: ClassVar[ClassOptions] = {"concurrency": 2}

    async def start(self) -> Any:
        if self.data["how"] == "end":
            return "done"
        async with AsyncScheduler(self.data["url"]) as scheduler:
            if self.data["how"] == "child":
                return await (await scheduler.add_job(Child, {}))
            return await (await scheduler.add_job(ConcurrentParent, {"how": "end"}))
