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
from coverage.inorout import InOrOut

PATIENCE = 5.0  # seconds after which torn figures are better than a test run that hangs
STARTED_BY_ANOTHER = "COVERAGE_PROCESS_CONFIG"
"""Set in the environment of each process that a counting process starts."""


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


def count_anew() -> None:
    """Forget in a forked child what its parent counted; the figures of the child go to a file of their own."""
    counting = Coverage.current()
    if counting is not None and counting._collector is not None:
        counting._collector._clear_data()
    leave_unexecuted_files_to_the_first_process()


def leave_unexecuted_files_to_the_first_process() -> None:
    """Save only what was executed: one process is enough to name every file there is, which takes long."""
    type.__setattr__(InOrOut, "find_possibly_unexecuted_files", lambda self: ())


def coverage_init(registry: object, options: object) -> None:
    """Mend coverage.py before it starts in this process."""
    type.__setattr__(Collector, "data_lock", ForgivingLockOf())
    control._after_fork_in_child = count_anew
    if STARTED_BY_ANOTHER in os.environ:
        leave_unexecuted_files_to_the_first_process()
