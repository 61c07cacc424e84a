"""The jobs of ``benchmarks.capacity``, in a file that imports no more than jobs need: each worker loads it."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

from taskqueue import ClassOptions, Job

NAP, SPIN = 0.05, 0.01
"""Seconds that a job waits, or computes."""

LINES = 10
"""Log lines of a job that logs."""


class Nap(Job):
    """Waits, as for a server, and uses no processor."""

    def start(self) -> None:
        time.sleep(NAP)


class NapTogether(Job):
    """The same, a hundred at once in one worker."""

    options: ClassVar[ClassOptions] = {"concurrency": 100}

    async def start(self) -> None:
        await asyncio.sleep(NAP)


class Spin(Job):
    """Computes."""

    def start(self) -> None:
        ends_at = time.thread_time() + SPIN
        while time.thread_time() < ends_at:
            pass


class Telling(Job):
    """Logs lines as long as those of this sentence usually are, of some seventy letters."""

    def start(self) -> None:
        for number in range(LINES):
            self.log.warning("step %d of the order is done, and the next one comes soon enough", number)


class ShortSpin(Job):
    """Computes a tenth as long as ``Spin``."""

    def start(self) -> None:
        ends_at = time.thread_time() + SPIN / 10
        while time.thread_time() < ends_at:
            pass


class ShortNap(Job):
    """Waits as long as ``Spin`` computes."""

    def start(self) -> None:
        time.sleep(SPIN)
