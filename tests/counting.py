"""A plugin for coverage.py that lets it count in forked children and beside signal handlers that raise.

Coverage takes a plain lock each time it meets a file for the first time. A handler that raises in that moment (and
``Interrupted`` is raised from one) leaves the lock held for ever: the process hangs when its figures are saved, and so
does every child forked from it.

A forked child writes what it executed as plain values: coverage's own database takes longer than most children live.
``python -m tests.counting FOLDER`` makes one database of them all, for ``coverage combine``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from coverage import Coverage, CoverageData, control
from coverage.collector import Collector
from coverage.inorout import InOrOut

PATIENCE = 5.0  # seconds after which torn figures are better than a test run that hangs
STARTED_BY_ANOTHER = "COVERAGE_PROCESS_CONFIG"
"""Set in the environment of each process that a counting process starts."""

BY_FORKS = "forked-"
"""How the names of the files begin that forked children write."""


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
        forget(counting._collector)
        vars(counting)["save"] = lambda: save_as_values(counting)
    leave_unexecuted_files_to_the_first_process()


def forget(collector: Collector) -> None:
    """Empty the figures of each file, and keep the sets themselves: functions that run now add to them."""
    for executed in collector.data.copy().values():
        executed.clear()


def save_as_values(counting: Coverage) -> None:
    """Write which arcs were executed in which file."""
    collector, data = counting._collector, counting._data
    if collector is not None and data is not None:
        executed = {file: list(arcs) for file, arcs in collector.data.copy().items() if arcs}
        forget(collector)
        descriptor, _ = tempfile.mkstemp(dir=Path(data.base_filename()).parent, prefix=BY_FORKS)
        with open(descriptor, "w") as file:
            file.write(json.dumps(executed))


def uncounted() -> dict[str, str]:
    """Return an environment whose processes are not counted: to count imports modules that a test may look for."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


def gather(folder: Path) -> None:
    """Make one database of coverage of what all forked children wrote."""
    executed = defaultdict[str, set[tuple[int, int]]](set)
    for path in folder.glob(f"{BY_FORKS}*"):
        with contextlib.suppress(ValueError):  # it was killed
            for file, arcs in json.loads(path.read_text()).items():
                executed[file].update(map(unpacked, arcs))
        path.unlink()
    data = CoverageData(basename=str(folder / "coverage"), suffix="forks")
    data.add_arcs(executed)
    data.write()


def unpacked(arc: int | list[int]) -> tuple[int, int]:
    """Return the two lines of an arc, which the tracer in C keeps in one number (coverage/ctracer/tracer.c)."""
    if isinstance(arc, list):
        return arc[0], arc[1]
    first, second = arc & 0xFFFFFFF, arc >> 28 & 0xFFFFFFF
    return -first if arc & 1 << 56 else first, -second if arc & 1 << 57 else second


def leave_unexecuted_files_to_the_first_process() -> None:
    """Save only what was executed: one process is enough to name every file there is, which takes long."""
    type.__setattr__(InOrOut, "find_possibly_unexecuted_files", lambda self: ())


def coverage_init(registry: object, options: object) -> None:
    """Mend coverage.py before it starts in this process."""
    type.__setattr__(Collector, "data_lock", ForgivingLockOf())
    control._after_fork_in_child = count_anew
    if STARTED_BY_ANOTHER in os.environ:
        leave_unexecuted_files_to_the_first_process()


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
