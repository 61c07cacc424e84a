"""The event loop of a worker with many runs: knows the run of each task, and sends without blocking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, cast

from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.messages import Key
from taskqueue.daemon.worker.concurrent_run import CURRENT, ConcurrentRun
from taskqueue.daemon.worker.watched_loop import WatchedLoop
from taskqueue.execution.loop_settings import LoopSettings


class ConcurrentLoop(WatchedLoop):
    """An event loop in which each task belongs to the run that has started it."""

    def __init__(self, runs: Mapping[Key, ConcurrentRun]) -> None:
        """Pass the mapping in which the owner keeps the runs in progress."""
        super().__init__()
        self._runs = runs
        self._loop.set_task_factory(cast("Any", self._create_task))
        self._settings = LoopSettings(self._loop)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop itself."""
        return self._loop

    def serve(self, over: asyncio.Future[None]) -> None:
        """Run the loop until the future is done, and raise its error; a task's ``SystemExit`` is for its run alone."""
        while not over.done():
            with suppress(SystemExit, KeyboardInterrupt, RuntimeError):  # or a job has stopped the loop
                self._loop.run_until_complete(over)
        over.result()

    def set_busy(self) -> None:
        """Note that there are runs: the loop is watched."""
        self._job = "runs"
        if not self._is_busy.is_set():
            self._asked_at = 0.0
            self._is_busy.set()

    def set_idle(self) -> None:
        """Note that there are no runs."""
        self._job = ""

    def current(self) -> ConcurrentRun | None:
        """Return the run whose task runs just now; None between tasks."""
        task = None
        with suppress(RuntimeError):
            task = asyncio.current_task(self._loop)
        return next((run for run in tuple(self._runs.values()) if task is run.task or task in run.tasks), None)

    def restore(self, job: str) -> None:
        """Set back the settings of the loop that a job has changed."""
        self._settings.restore(job)

    def _blocking(self) -> str:
        run = self.current()
        self._fields = None if run is None else run.fields
        return f"{run.run.job} {run.run.id}" if run is not None else "one of its callbacks"

    def _create_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **arguments: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **arguments)
        run = CURRENT.get(None)
        if run is not None:
            run.add_task(task)
        return task


class Outgoing:
    """Sends over the channel from any thread of the process; the rest of a message follows when there is room."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._lock = threading.Lock()

    def send(self, *payloads: bytes) -> None:
        """Send the messages together."""
        with self._lock:
            self._channel.send(*payloads)
            is_full = bool(self._channel.unsent)
        if is_full:
            self._loop.call_soon_threadsafe(self._send_later)

    def flush_blocking(self) -> None:
        """Wait until all messages have left this process."""
        with self._lock:
            self._channel.flush_blocking()

    def _send_later(self) -> None:
        self._loop.add_writer(self._channel.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        with self._lock:
            self._channel.flush()
            is_full = bool(self._channel.unsent)
        if not is_full:
            self._loop.remove_writer(self._channel.fileno())
