"""The settings of an event loop that a job can change; they are reset for the jobs that follow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

log = logging.getLogger(__name__)

NAMED = 3
"""The most tasks left running by a job that the log names."""


LEFT_FOR = 10.0
"""The most seconds to wait, at the end of a job, for tasks that it left running and that do not end."""


class LoopSettings:
    """The settings of an event loop before the first job. Its timers are left alone: connection pools have some."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self._factory = loop.get_task_factory()
        self._is_debug = loop.get_debug()

    def restore(self, job: str = "") -> None:
        """Reset the settings that jobs can change; log which of them ``job`` had changed."""
        loop, changed = self._loop, []
        if not loop.is_closed():
            loop.set_default_executor(self._executor)  # there is no way to read which one it has
        if loop.get_task_factory() != self._factory:
            loop.set_task_factory(self._factory)
            changed.append("task factory")
        if loop.get_exception_handler() is not None:
            loop.set_exception_handler(None)
            changed.append("exception handler")
        if loop.get_debug() != self._is_debug:
            loop.set_debug(self._is_debug)
            changed.append("debug mode")
        if changed:
            log.info("restored what a job had changed in its event loop: %s%s", " and ".join(changed), _of(job))


def log_left(tasks: Collection[asyncio.Task[Any]], job: str = "") -> None:
    """Log that these tasks, left running by ``job``, are canceled."""
    log.warning("canceling the tasks that a job left running: %s%s", names_of(tasks), _of(job))


def log_kept(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Log that these tasks ignored their cancellation, and that their loop is therefore closed."""
    log.warning("closing an event loop: tasks left running by a job ignored cancellation: %s", names_of(tasks))


def names_of(tasks: Collection[asyncio.Task[Any]]) -> str:
    """Return the names of the functions that run in the first few tasks."""
    names = [str(getattr(task.get_coro(), "__qualname__", task.get_name())) for task in list(tasks)[:NAMED]]
    return ", ".join(names) + ("" if len(tasks) <= NAMED else f" and {len(tasks) - NAMED} more")


def _of(job: str) -> str:
    return f": job {job}" if job else ""
