"""A job with ``concurrency`` for acceptance tests: it writes that it begins, and does what its data say."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, ClassVar

from taskqueue import ClassOptions, Job, Limit


class Shared(Job):
    """Begins, keeps a checkpoint, and then ends as its data say: at once, at a gate, by a crash, or never."""

    options: ClassVar[ClassOptions] = {"concurrency": 20, "retry_interval": 0}

    async def start(self) -> Any:
        begun = self.state
        self.checkpoint(self.attempt)
        write(self.data["file"], f"{self.id} {self.data['do']} {self.attempt} {os.getpid()}")
        if self.data["do"] == "fail once" and self.attempt == 1:
            raise ValueError("once")
        if self.data["do"] == "never":
            await asyncio.Event().wait()
        if self.data["do"] in ("hold", "crash"):
            while not os.path.exists(self.data["gate"]):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.01)
        if self.data["do"] == "crash" and self.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return begun


class Limited(Job):
    """Returns how many of its kind ran at once when it began."""

    options: ClassVar[ClassOptions] = {"concurrency": 20, "limits": Limit(2)}
    running: ClassVar[int] = 0

    async def start(self) -> int:
        Limited.running += 1
        here = Limited.running
        await asyncio.sleep(0.01)
        Limited.running -= 1
        return here


def write(file: str, line: str) -> None:
    """Append a line in one write."""
    with open(file, "a") as facts:
        facts.write(f"{line}\n")
