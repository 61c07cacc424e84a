"""Faults of a process: it is killed, asked to end, or stopped for longer than any lease."""

from __future__ import annotations

import signal
from enum import Enum
from pathlib import Path

import psutil

from tests.nodes import eventually


class ProcessFault(Enum):
    """A signal that ends or stops a process."""

    SIGKILL = signal.SIGKILL
    SIGTERM = signal.SIGTERM
    SIGSTOP = signal.SIGSTOP

    def send(self, process: psutil.Process) -> None:
        """Send it, and wait until it has worked if nothing but the kernel has a say in that."""
        if self is ProcessFault.SIGSTOP:
            stop_between_writes(process)
            return
        process.send_signal(self.value)
        if self is ProcessFault.SIGKILL:
            eventually(lambda: is_gone(process))


def stop_between_writes(process: psutil.Process) -> None:
    """Stop the process, but not while it holds a lock on a file: a store in one file would stop with it."""
    while True:
        process.suspend()
        eventually(lambda: process.status() == psutil.STATUS_STOPPED)
        if not _holds_a_lock(process.pid):
            return
        process.resume()


def is_gone(process: psutil.Process) -> bool:
    """Return whether the process has ended, reaped or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _holds_a_lock(pid: int) -> bool:
    """Return whether the process has an exclusive record lock (proc(5), ``/proc/locks``)."""
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(["POSIX", "WRITE", str(pid)] == [kind, mode, holder] for _, kind, _, mode, holder, *_ in locks)
