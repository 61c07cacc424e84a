"""A plugin for coverage.py that lets it count in forked children and beside signal handlers that raise.

Coverage takes a plain lock each time it meets a file for the first time. A handler that raises in that moment (and
``Interrupted`` is raised from one) leaves the lock held for ever: the process hangs when its figures are saved, and so
does every child forked from it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from coverage import Coverage, control
from coverage.collector import Collector

PATIENCE = 5.0  # seconds after which torn figures are better than a test run that hangs

restart_in_child = control._after_fork_in_child
counting_in = os.getpid()


class ForgivingLock:
    """Lock between threads that forgives a thread or a parent process which could not give it back."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()

    def acquire(self) -> None:
        """Take the lock, at once when this thread already has it."""
        if self._process != os.getpid():
            self._renew()
        self._lock.acquire(timeout=PATIENCE)

    def release(self) -> None:
        """Give the lock back, together with what this thread failed to give back before."""
        with contextlib.suppress(RuntimeError):  # says that it is no longer ours
            while True:
                self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class ForgivingLockOf:
    """Attribute that answers with the collector's own forgiving lock, whatever is assigned to it."""

    def __get__(self, collector: Collector, owner: type[Collector]) -> Any:
        return vars(collector).setdefault("_forgiving_lock", ForgivingLock())

    def __set__(self, collector: Collector, value: object) -> None:
        pass


def restart_in_child_once() -> None:
    """Start counting anew in a forked child: once, though every ancestor asked for it, without the parent's figures."""
    global counting_in
    if counting_in == os.getpid():
        return
    counting_in = os.getpid()
    parent = Coverage.current()
    if parent is not None:
        vars(parent)["save"] = lambda: None  # its patch of os._exit would save them here, too
    restart_in_child()


def coverage_init(registry: object, options: object) -> None:
    """Mend coverage.py before it starts in this process."""
    type.__setattr__(Collector, "data_lock", ForgivingLockOf())
    control._after_fork_in_child = restart_in_child_once
