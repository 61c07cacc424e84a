"""Tells signals of the node's own jobs from those of operators: a job must not stop the node that runs it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from pathlib import Path

from taskqueue.daemon.runtime import child_process, leftovers

log = logging.getLogger(__name__)

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""The signals that stop a node."""


def hold() -> None:
    """Block the signals that stop a node, so that it can read who has sent them; before any thread is started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


def release() -> None:
    """Unblock them, for a program that takes the place of this one."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def return_to_job(signum: signal.Signals, sender: int) -> bool:
    """Interrupt the job that has sent the signal to this node; return False if no living job of this node has.

    The worker gets a SIGTERM that neither node nor manager sent, and so the second such run in a row is a crash.
    """
    worker = _worker_of(sender)
    if not worker:
        return False
    log.error(
        "process %d of %r sent %s to its node, which goes on: the job is interrupted instead, and counts as crashed "
        "from the second time on",
        sender,
        _title(worker),
        signum.name,
    )
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(worker, signal.SIGTERM)
    return True


def _worker_of(sender: int) -> int:
    """Return the pid of the worker of this node to which the process belongs; 0 if there is none."""
    if sender <= 0 or sender == os.getpid():
        return 0
    line = child_process.ancestry(leftovers.worker_of(sender) or sender)
    if os.getpid() not in line:
        return 0
    return line[max(0, line.index(os.getpid()) - 2)]


def _title(pid: int) -> str:
    """Return the title of a worker, which names its job."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"worker {pid}"
