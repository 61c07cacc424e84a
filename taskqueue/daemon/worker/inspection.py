"""Finds changes that jobs left in their worker: resets some, and replaces the worker because of others.

Things that a library keeps for good, a pool of connections or of threads, stay as long as they are within bounds: only
those count that could harm the jobs that follow. A look costs a microsecond after each run, and 0.2 to 0.3 ms where
the worker has nothing to do.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from taskqueue.daemon.runtime import child_process, child_setup
from taskqueue.daemon.runtime.child_process import CHILDREN_FOR
from taskqueue.daemon.worker.process_attributes import (
    ArmedDump,
    CurrentLoop,
    InterpreterSettings,
    ProcessAttributes,
    StandardStreams,
    own_decimal_context,
)
from taskqueue.daemon.worker.stack_dump import OWN_THREADS
from taskqueue.store.sqlite.files import lock_holder

log = logging.getLogger(__name__)

DESCRIPTORS = 100
"""Descriptors that the jobs of one worker may leave open, or half of the system's limit."""

THREADS = 50
"""Threads that the jobs of one worker may leave running."""

NAMED = 3
"""The most threads that a reason names."""

IDLE_COUNTS_FROM = 0.5
"""The fewest seconds without a run in which the use of processors is measured."""

BUSY_SLICE = 500_000
"""Nanoseconds: a thread that runs for longer each time it gets a processor would use it all the time."""

ARMED_DUMP = "armed dump of tracebacks"

LOOKS_EVERY = 1.0
"""Seconds between two inspections of a worker that always has another run."""


class Inspection:
    """Compares the state of a worker with that before its first run."""

    def __init__(self, file: str | None, signal_pipe: int) -> None:
        """``file`` is the store's database file, if there is one; ``signal_pipe`` is the wakeup descriptor."""
        self._file = file
        self._has_file_open = False
        self._signal_pipe = signal_pipe
        self._attributes = ProcessAttributes()
        self._streams = StandardStreams()
        self._dump = ArmedDump()
        self.settings = InterpreterSettings()
        self._loops = CurrentLoop()
        self._loops.set_back()  # of the bootstrap file
        self._lowest = self._lowest_free()
        self._open_before = self._open = _count_descriptors()
        self._threads_before = frozenset(threading.enumerate())
        self._left = LeftProcesses()
        self.look_again_after: float | None = None
        """The seconds after which to inspect again without another run; None for never."""
        self._looked_at = time.monotonic()
        self.has_left_threads = False
        """Whether there are more threads than before the first run."""
        self._idle_for = self._used_idly = 0.0

    def after_run(self, job: str, *, has_failed: bool = False) -> str:
        """Return why the worker must be replaced after a run of ``job``; empty if it need not.

        A run that failed may have failed because of what another one left, which is checked at once.
        """
        lowest = self._lowest_free()
        is_due = lowest < 0 or self._dump.is_armed or time.monotonic() - self._looked_at > LOOKS_EVERY
        if is_due or has_failed or os.geteuid() != self._attributes.user:
            return self.look(job) or (self._attributes.left_namespace() if has_failed else "")
        if policy := self._loops.set_back():
            _log([policy], job)
        return self._of_descriptors() if lowest != self._lowest else ""

    def look(self, job: str) -> str:
        """Reset all that can be reset, and return why the worker must be replaced; empty if it need not."""
        self._looked_at = time.monotonic()
        child_setup.prctl(child_setup.PR_SET_PDEATHSIG, signal.SIGKILL)  # a job may have taken it back
        changed, for_good = self._attributes.set_back()
        if policy := self._loops.set_back():
            changed.append(policy)
        changed += self.settings.set_back()
        if self._dump.is_armed:
            self._dump.set_back()
            changed.append(ARMED_DUMP)
        try:
            if self._streams.set_back():
                changed.append("standard streams")
        except OSError as error:
            for_good = for_good or f"its standard streams cannot be reset: {error}"
        if signal.set_wakeup_fd(self._signal_pipe, warn_on_full_buffer=False) != self._signal_pipe:
            changed.append("wakeup descriptor")
        if changed:
            _log(changed, job)
        threads = threading.active_count() - len(self._threads_before)
        self.has_left_threads = threads > 0
        if threads > THREADS:
            return f"{threads} threads were left behind"
        return for_good or self._of_descriptors() or self._of_children()

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Keep what the block sets, context variables included, for no code of the job has run yet."""
        try:
            with self.keeping_settings():
                yield
        finally:
            self.settings.adopt_context()
            own_decimal_context()

    @contextmanager
    def keeping_settings(self) -> Iterator[None]:
        """Keep settings, streams and timers that the block sets: modules set them for good when they are imported."""
        before, were_changed = self.settings.present(), self._streams.have_changed()
        timers, was_armed = self._attributes.posix_timers(), self._dump.is_armed
        try:
            yield
        finally:
            self._dump.is_armed = was_armed
            self.settings.adopt(before)
            self._attributes.adopt_timers(timers)
            if not were_changed and self._streams.have_changed():
                with suppress(OSError):  # the module has closed a descriptor: the next look opens it again
                    self._streams.adopt()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Measure what threads that jobs have left use while the block waits for the next run."""
        begun_at, before = time.monotonic(), _uses() if self._left_threads() else None
        yield
        seconds = time.monotonic() - begun_at
        if before is None or seconds < IDLE_COUNTS_FROM:  # in less, the next run would feel the measuring
            return
        after = _uses()
        if after is not None:
            self._idle_for += seconds
            self._used_idly += _demand(before, after)

    def of_threads(self) -> str:
        """Return which threads keep a processor busy, after ``CHILDREN_FOR`` without a run; empty if there are none."""
        if self._idle_for < CHILDREN_FOR:
            return ""
        is_busy = self._used_idly > self._idle_for / 2
        self._idle_for = self._used_idly = 0.0
        names = ", ".join(self._left_threads()[:NAMED])
        return f"a thread that was left behind keeps a processor busy: {names}" if is_busy and names else ""

    def _left_threads(self) -> list[str]:
        if threading.active_count() == len(self._threads_before):
            return []
        left = [thread.name for thread in threading.enumerate() if thread not in self._threads_before]
        return [name for name in left if name not in OWN_THREADS]

    def look_at_shared(self) -> str:
        """Return why a worker in which jobs run at once must be replaced; empty if it need not. Reset nothing."""
        others = ["standard streams"] * self._streams.have_changed() + [ARMED_DUMP] * self._dump.is_armed
        changed = " and ".join((*self._attributes.changes(), *self.settings.lasting_changes(), *others))
        return f"a job changed its {changed}" if changed else self._attributes.left_namespace()

    def _of_descriptors(self) -> str:
        lowest = self._lowest_free()
        if lowest != self._lowest:
            self._lowest = lowest
            self._open = _count_descriptors()
            self._has_file_open = self._file is not None and _has_open(f"{self._file}-shm")
        if not self._flaw():
            return ""
        gc.collect()  # the error of the run may still refer to open files
        self._open = _count_descriptors()
        self._lowest = self._lowest_free()
        return self._flaw()

    def _flaw(self) -> str:
        if self._has_file_open and self._file is not None:
            holder = lock_holder(self._file)
            if holder is not None and holder.pid == os.getpid():
                return "a write transaction was left open on the file of the store"
        descriptors = self._open - self._open_before
        if descriptors > 0 and descriptors > min(DESCRIPTORS, (_most_descriptors() - self._open_before) / 2):
            return f"{descriptors} descriptors were left open"
        return ""

    def _of_children(self) -> str:
        """Return which child was seen ``CHILDREN_FOR`` ago; see to it that the worker looks again."""
        self.look_again_after = None
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._left = LeftProcesses()
            return ""
        try:
            children = dict(_left_children())
        except OSError:  # no descriptor is free on this host
            self.look_again_after = CHILDREN_FOR
            return ""
        self.look_again_after = CHILDREN_FOR if children else None
        outlived = self._left.outlived(children, time.monotonic())
        return f"a process outlived the job that had started it by {CHILDREN_FOR:g} s: {outlived}" if outlived else ""

    def _lowest_free(self) -> int:
        """Return the lowest free descriptor, which rises with each one left open; -1 for none."""
        try:
            lowest = os.dup(self._signal_pipe)
        except OSError:
            return -1
        os.close(lowest)
        return lowest


@dataclass
class LeftProcesses:
    """The processes that jobs left running, each with the time when it was first seen."""

    _since: dict[int, float] = field(default_factory=dict)

    def outlived(self, left: Mapping[int, str], now: float) -> str:
        """Name the remaining process, by its pid, that was seen ``CHILDREN_FOR`` ago; empty if there is none."""
        self._since = {pid: self._since.get(pid, now) for pid in left}
        return next((left[pid] for pid, since in self._since.items() if now - since >= CHILDREN_FOR), "")


def _log(changed: Sequence[str], job: str) -> None:
    log.info("restored what a job had changed for the jobs after it: %s: %s", " and ".join(changed), job)


class _Use(NamedTuple):
    """How long a thread has run and has waited for a processor, in nanoseconds, and how many times it got one."""

    running: int
    waiting: int
    slices: int


def _uses() -> dict[str, _Use] | None:
    """Return how much each thread of this process has used processors so far.

    Return None if no descriptor is free: what the threads have opened may be the reason.
    """
    uses = {}
    try:
        for thread in os.listdir("/proc/self/task"):
            with (  # it may have ended, and few kernels do not show this
                suppress(FileNotFoundError, ProcessLookupError, ValueError, TypeError),
                open(f"/proc/self/task/{thread}/schedstat", "rb") as file,
            ):
                uses[thread] = _Use(*map(int, file.read().split()))
    except OSError:
        return None
    return uses


def _demand(before: Mapping[str, _Use], after: Mapping[str, _Use]) -> float:
    """Return the seconds for which threads have used a processor, or would have used one if they had not waited for it.

    On a busy host, a thread that only polls also waits most of the time, but it needs the processor for a moment.
    """
    demand = 0
    for thread, use in after.items():
        first = before.get(thread, _Use(0, 0, 0))
        running, waiting, slices = (now - earlier for now, earlier in zip(use, first, strict=True))
        demand += running + (waiting if running > BUSY_SLICE * slices else 0)
    return demand / 1e9


def _count_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # there is none left for the folder
        return _most_descriptors()


def _most_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def _has_open(file: str) -> bool:
    with contextlib.suppress(OSError):  # there is none left for the folder
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}") == file:
                    return True
    return False


def _left_children() -> Iterator[tuple[int, str]]:
    """Yield each living child that is not a permanent one of ``multiprocessing``: its pid and description."""
    exempt = set(_kept_by_multiprocessing())
    for pid in child_process.children():
        if pid not in exempt and (described := child_process.described(pid)):
            yield pid, described


def _kept_by_multiprocessing() -> Iterator[int]:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    yield getattr(tracker, "_pid", None) or 0
    yield getattr(server, "_forkserver_pid", None) or 0
    for child in getattr(sys.modules.get("multiprocessing.process"), "_children", ()):
        yield child.pid or 0
