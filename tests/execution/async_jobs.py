"""Async jobs for the tests of the event loop; their data name the FIFOs and files that they write to."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

from taskqueue import Interrupted, Job, StepwiseJob, task
from taskqueue.model.run_context import Loop

customer: contextvars.ContextVar[str] = contextvars.ContextVar("customer", default="nobody")


def tell(fifo: str, text: str = "so it is") -> None:
    with Path(fifo).open("a") as stream:
        stream.write(f"{text}\n")


def block() -> None:
    time.sleep(3600)


def note(file: str, text: str) -> None:
    with Path(file).open("a") as stream:
        stream.write(f"{text}\n")


class Adding(Job):
    """Returns what it found around it, and leaves a context variable behind."""

    async def start(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.progress(50, "halfway")
        self.checkpoint({"kept": True})
        found = customer.get()
        customer.set("ann")
        return {"sum": self.data["a"] + self.data["b"], "found": found, "loop": id(asyncio.get_running_loop())}


@task
async def multiply(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a * b


@task
async def handle_sigterm() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)


class Canceled(Job):
    """Says that it runs, and waits to be canceled."""

    async def start(self) -> None:
        self.progress(1, "waits")
        await asyncio.Event().wait()


class Raising(Job):
    async def start(self) -> None:
        match self.data:
            case "exit":
                sys.exit(3)
            case "canceled":
                raise asyncio.CancelledError
            case "keyboard":
                raise KeyboardInterrupt
        raise ValueError("no such value")


class Waiting(Job):
    """Says that it waits, and then how it was asked to end."""

    async def start(self) -> str:
        try:
            tell(self.data["runs"])
            await asyncio.Event().wait()
        except asyncio.CancelledError as canceled:
            self.checkpoint({"reason": str(canceled), "stopping": self.stopping})
            if self.data.get("then") == "return":
                return "done all the same"
            if self.data.get("then") == "fail":
                raise OSError("the connection is closed already") from None
            raise
        return "never"


class Stubborn(Job):
    """Goes on, whatever it is asked."""

    async def start(self) -> None:
        tell(self.data["runs"])
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)


class BlockingLoop(Job):
    """Blocks the event loop, so that no task can be canceled."""

    async def start(self) -> None:
        try:
            tell(self.data["runs"])
            block()
        except Interrupted as interrupted:
            self.checkpoint({"reason": interrupted.reason})
            raise


class Leaving(Job):
    """Leaves a task running, and says how that ended."""

    tasks: ClassVar[set[asyncio.Task[None]]] = set()

    async def start(self) -> str:
        self.tasks.add(asyncio.create_task(self._go_on()))
        await asyncio.sleep(0)
        return "left"

    async def _go_on(self) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            if self.data.get("stubborn"):
                tell(self.data["runs"])
                await asyncio.Event().wait()
            note(self.data["file"], "the task was ended")


class Hooked(Job):
    """Has async hooks and an async condition."""

    async def is_ready(self) -> bool:
        await asyncio.sleep(0)
        return os.path.exists(self.data["file"])  # noqa: ASYNC240 - a moment

    async def start(self) -> None:
        if self.data.get("fail"):
            raise ValueError("as asked")

    async def on_success(self) -> None:
        await asyncio.sleep(0)
        note(self.data["file"], "success")

    async def on_last_failure(self, error: Exception) -> None:
        note(self.data["file"], f"last failure {error}")

    async def finalize(self) -> None:
        note(self.data["file"], "finalize")
        raise RuntimeError("a hook fails")


class Importing(Job):
    """Imports items in a loop that goes on behind the last finished one."""

    async def start(self) -> list[int]:
        seen = []
        async for item in self.each(range(5)):
            if item == 3 and self.attempt == 1:
                raise OSError("the connection is lost")
            seen.append(item)
        return seen


async def numbers(after: int | None) -> AsyncIterator[tuple[int, str]]:
    for number in range(0 if after is None else after + 1, 5):
        await asyncio.sleep(0)
        yield number, f"row {number}"


class Paging(Job):
    """Goes over an asynchronous source, which its data name, and fails once in the middle."""

    async def start(self) -> list[Any]:
        seen: list[Any] = []
        async for item in self._loop():
            if len(seen) == 2 and self.attempt == 1:
                raise OSError("the connection is lost")
            seen.append(item)
        return [self.state, seen]

    def _loop(self) -> Loop[Any]:
        match self.data:
            case "cursors":
                return self.each(numbers)
            case "batches":
                return self.each(numbers, batch=2)
            case "manual":
                return self.each(numbers, manual=True)
        return self.each(numbers(None))


class Misusing(Job):
    """Loops over an asynchronous source with a plain for."""

    async def start(self) -> None:
        for _ in self.each(numbers):
            self.progress(50)


class Stepping(StepwiseJob):
    async def initialize(self) -> None:
        self.state["steps"] = ["initialize"]

    async def iterate(self) -> bool:
        await asyncio.sleep(0)
        self.state["steps"].append("iterate")
        return self.steps < 1

    async def complete(self) -> list[str]:
        return [*self.state["steps"], "complete"]
