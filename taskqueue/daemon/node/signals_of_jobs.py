"""Reads the signals that stop a node, and returns signals that its own jobs sent: a job must not stop its node."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from taskqueue.daemon.runtime import child_process, leftovers
from taskqueue.model.record import Failure

log = logging.getLogger(__name__)

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""The signals that stop a node."""

RELOAD = signal.SIGHUP
"""The signal that makes a node load new code."""

_libc = ctypes.CDLL(None, use_errno=True)
_SET = 128  # bytes of sigset_t, of glibc and of musl
_SIGINFO = 128  # bytes of struct signalfd_siginfo
_HEAD = struct.Struct("=IiiII")  # its first fields: number, errno, code, pid, uid
_MOST = 16  # signals of one read


class Received(NamedTuple):
    """A signal and the process that sent it."""

    signum: signal.Signals
    sender: int
    """Its pid; 0 for the kernel or a process in another pid namespace."""
    user: int
    """Its real user id."""


def hold() -> None:
    """Block the signals that stop or reload a node in all later threads: it reads them from a ``SignalFile``.

    So a reload that comes while the program is executed again waits for the new one.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, RELOAD))


def release(signums: Collection[signal.Signals] = (*STOPS, RELOAD)) -> None:
    """Unblock these signals."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signums)


def return_to_job(received: Received) -> bool:
    """Interrupt the job that sent the signal to this node; return False if no living job of this node did.

    The worker gets a SIGTERM that neither node nor manager sent, and so the second such run in a row is a crash.
    """
    worker = _worker_of(received.sender)
    if not worker:
        return False
    log.error(
        "process %d of %r sent %s to its node, which keeps running: the job is interrupted instead, and counts as "
        "crashed from the second time on",
        received.sender,
        _title(worker),
        received.signum.name,
    )
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(worker, signal.SIGTERM)
    return True


def suspects(received: Received, manager: int) -> dict[int, Failure]:
    """Return the workers whose jobs may have sent the signal, if its sender has ended, with the failure of such a run.

    These have started processes. There are none if the sender was another user, as an operator may be.
    """
    if received.sender <= 0 or received.user != os.getuid() or child_process.ancestry(received.sender):
        return {}
    try:
        workers = [pid for pid in child_process.children(manager) if child_process.has_started_processes(pid)]
    except OSError:  # no descriptor is free
        return {}
    if not workers:
        return {}
    name = received.signum.name
    log.warning(
        "process %d, which has ended, sent %s to this node: if a job had started it, that job runs in a worker that "
        "has started processes (%s), and counts as crashed if this happens twice in a row",
        received.sender,
        name,
        ", ".join(map(str, workers)),
    )
    message = (
        f"process {received.sender}, which had ended when the node looked for it, sent {name} to the node, and the "
        "worker of this job had started processes"
    )
    return dict.fromkeys(workers, Failure(type="taskqueue.Interrupted", message=message))


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


class SignalFile:
    """A descriptor that is readable while one of these signals waits for this process; see signalfd(2).

    They must be blocked in every thread.
    """

    def __init__(self, signums: Iterable[signal.Signals]) -> None:
        chosen = ctypes.create_string_buffer(_SET)
        _libc.sigemptyset(chosen)
        for signum in signums:
            _libc.sigaddset(chosen, int(signum))
        self._descriptor: int = _libc.signalfd(-1, chosen, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"signalfd: {os.strerror(error)}")

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> Iterator[Received]:
        """Yield the signals that wait."""
        try:
            received = os.read(self._descriptor, _SIGINFO * _MOST)
        except BlockingIOError:
            return
        for first in range(0, len(received), _SIGINFO):
            signum, _, _, pid, user = _HEAD.unpack_from(received, first)
            yield Received(signal.Signals(signum), pid, user)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
