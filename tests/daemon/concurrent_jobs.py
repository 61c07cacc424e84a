"""Jobs with ``concurrency`` for the tests of workers and managers; they say by progress that they run."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import multiprocessing
import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any, ClassVar

from taskqueue import ClassOptions
from taskqueue.model.job import Fail, Job, Snooze
from tests.daemon.jobs import await_line, orphan, rob, tell

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name")


class Act(Job):
    """Does as one of the classes below, which its data name: a worker runs jobs of one class."""

    options: ClassVar[ClassOptions] = {"concurrency": 4}

    async def start(self) -> Any:
        do, self.data = self.data
        return await globals()[do].start(self)


class Meet(Job):
    """Returns once as many of its kind run as its data say."""

    here: ClassVar[list[Meet]] = []
    together: ClassVar[asyncio.Event | None] = None

    async def start(self) -> int:
        Meet.together = Meet.together or asyncio.Event()
        Meet.here.append(self)
        if len(Meet.here) == self.data:
            Meet.together.set()
        await Meet.together.wait()
        return os.getpid()


class Group(Job):
    """Raises the error that its data name in a task group; blocks the loop in one if they name none."""

    async def start(self) -> None:
        async with vars(asyncio)["TaskGroup"]() as group:  # of Python 3.11
            group.create_task(Group.end(self))

    async def end(self: Job) -> None:
        if self.data:
            raise {"fail": Fail("gone"), "snooze": Snooze(60), "refused": ConnectionRefusedError("no")}[self.data]
        self.progress(1, "blocks")
        threading.Event().wait()


class Wait(Job):
    """Says that it runs, and waits until it is canceled; then it keeps the reason as its state."""

    async def start(self) -> None:
        self.progress(1, "waits")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as canceled:
            self.checkpoint(str(canceled))
            raise


class TellEnd(Job):
    """Says that it runs, and tells through the FIFO that its data name when it is canceled."""

    async def start(self) -> None:
        self.progress(1, "waits")
        try:
            await asyncio.Event().wait()
        finally:
            tell(self.data)


class Rob(Job):
    """Leaves a process behind that reads the next run in place of the worker, and says so."""

    async def start(self) -> int:
        multiprocessing.get_context("fork").Process(target=rob, args=(self.data,), daemon=True).start()
        return os.getpid()


class WaitFor(Job):
    """Says that it runs, and waits for a line of the FIFO that its data name."""

    async def start(self) -> int:
        loop, said = asyncio.get_running_loop(), asyncio.Event()
        descriptor = os.open(self.data, os.O_RDWR | os.O_NONBLOCK)
        loop.add_reader(descriptor, said.set)
        self.progress(1, "waits")
        try:
            await said.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return os.getpid()


class Hold(Job):
    """Says that it runs, and goes on whatever happens."""

    async def start(self) -> None:
        self.progress(1, "holds")
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


class Block(Job):
    """Says that it runs, and blocks the loop."""

    async def start(self) -> None:
        self.progress(1, "blocks")
        threading.Event().wait()


class Die(Job):
    """Kills its worker."""

    async def start(self) -> None:
        self.progress(42, "dies")
        os.kill(os.getpid(), signal.SIGKILL)


class Return(Job):
    """Returns the process it runs in."""

    async def start(self) -> int:
        return os.getpid()


class Exit(Job):
    """Has a task that exits."""

    async def start(self) -> None:
        async def leave() -> None:
            raise SystemExit(3)

        await asyncio.create_task(leave())


class Count(Job):
    """Goes through items in a loop up to the one that its data name, and waits there."""

    async def start(self) -> None:
        for item in self.each(range(100)):
            if item == self.data:
                self.progress(item, f"at {item}")
                await asyncio.Event().wait()


class InContext(Job):
    """Returns what its context has after others have run: a variable, and what a thread of its own has."""

    here: ClassVar[list[InContext]] = []
    together: ClassVar[asyncio.Event | None] = None

    async def start(self) -> list[Any]:
        InContext.together = InContext.together or asyncio.Event()
        NAME.set(self.data)
        InContext.here.append(self)
        if len(InContext.here) == 2:
            InContext.together.set()
        await InContext.together.wait()
        await asyncio.to_thread(self.progress, 50, f"of {self.data}")
        self.log.warning("%s says so", self.data)
        return [NAME.get(), await asyncio.to_thread(NAME.get)]


class Leave(Job):
    """Leaves a task and a changed loop behind, and returns without."""

    left: ClassVar[list[str]] = []

    async def start(self) -> None:
        async def stay() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                Leave.left.append("canceled")
                raise

        asyncio.create_task(stay())  # noqa: RUF006 - it is to be left
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coroutine, **rest: asyncio.Task(coroutine, loop=loop, **rest))
        loop.set_exception_handler(lambda _loop, _context: None)
        loop.set_debug(True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Change(Job):
    """Changes what all jobs of its process share, as its data name it."""

    async def start(self) -> None:
        for what in self.data:
            match what:
                case "umask":
                    os.umask(0o123)
                case "working directory":
                    os.chdir("/")
                case "blocked signals":
                    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
                case "handler of SIGUSR1":
                    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                case "RLIMIT_CORE":
                    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Look(Job):
    """Returns what others have left behind."""

    async def start(self) -> list[Any]:
        loop = asyncio.get_running_loop()
        ours = "taskqueue" in getattr(loop.get_task_factory(), "__module__", "")
        handled = signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
        return [Leave.left, ours, loop.get_exception_handler() is None, loop.get_debug(), handled]


class Hooked(Act):
    """Has hooks, of which one awaits."""

    async def on_success(self) -> None:
        async with _within(5):
            await asyncio.sleep(0)
        await asyncio.to_thread(Path(self.data).write_text, f"{self.id}\n")


def _within(seconds: float) -> Any:
    """Return a limit of time where Python has one, else nothing."""
    limit = getattr(asyncio, "timeout", None)
    return contextlib.AsyncExitStack() if limit is None else limit(seconds)


class CancelAll(Job):
    """Cancels all tasks of the loop at each turn, until the file that its data name is there; then it returns."""

    async def start(self) -> None:
        while not os.path.exists(self.data):  # noqa: ASYNC240
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)


class CancelItself(Job):
    """Asks for a cancel of its own task, and returns before it comes."""

    async def start(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return str(self.data)


class Unspeakable(Job):
    """Fails with an exception whose text exits."""

    async def start(self) -> None:
        class Exits(Exception):
            def __str__(self) -> str:
                raise SystemExit(3)

        raise Exits


class Orphaning(Job):
    """Leaves an orphan behind, and waits for its ``go``."""

    options: ClassVar[ClassOptions] = {"concurrency": 2}

    async def start(self) -> None:
        tell(self.data["runs"], str(orphan()))
        await asyncio.to_thread(await_line, self.data["go"])
