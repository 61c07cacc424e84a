"""Finds and kills processes that jobs left behind when node and manager were killed together, by a mark.

The mark is a limit of the kernel that bounds nothing since Linux 2.4.25, the number of file locks. The
processes that a process starts inherit it, across exec, in another session and with another environment. It names the
manager or the worker that has marked itself, so that a node that finds the mark knows whether that one is alive.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from taskqueue.daemon.runtime import child_process
from taskqueue.insight import host

log = logging.getLogger(__name__)

KILL_TAKES_AT_MOST = 5.0
"""Seconds to wait for killed processes: one that is stuck in the kernel runs no code of a job any more."""

LOCKS = 10
"""RLIMIT_LOCKS of asm-generic/resource.h, which the module ``resource`` does not name; workers are marked by it."""

_PID = 22  # bits: the most that Linux knows
_BORN = 24  # bits: the lowest of the start time of the manager or worker
_SPACE = 12  # bits for the namespace of pids: in another one the same pid is another process
_MANAGER, _WORKER = 0b10110, 0b10111  # highest bits: no limit set for another purpose looks like this


def mark() -> None:
    """Mark this process, which is a manager, and all processes that it will start."""
    try:
        _mark_this(_MANAGER)
    except (OSError, ValueError) as error:
        log.warning(
            "cannot mark processes that jobs start, so that they are found if node and manager are killed: the limit "
            "of file locks (ulimit -x) cannot be set (%s): leave it unlimited",
            error,
        )


def mark_worker() -> bool:
    """Mark this process, which is a worker, and all that its jobs will start; return False if that is impossible."""
    try:
        _mark_this(_WORKER)
    except (OSError, ValueError):  # its manager has said so
        return False
    return True


def worker_of(pid: int) -> int:
    """Return the pid of the living worker whose jobs have started the process; 0 if there is none."""
    mark = _limit_of(pid) or _limit_shown(pid)
    worker = mark % (1 << _PID)
    return worker if mark == _mark(_WORKER, worker, host.born_at(worker) or 0) else 0


def kill(within: float = KILL_TAKES_AT_MOST) -> int | None:
    """Kill all marked processes of this host whose manager is dead, and return their number.

    Each is killed at least once; all are waited for up to ``within`` seconds. If this process has a mark itself, leave
    processes with the same mark alone. Without a free descriptor log that, and return None: nobody can look for them.
    """
    try:
        return _kill(time.monotonic() + within)
    except OSError as error:
        if error.errno not in child_process.SHORTAGES:
            raise
        log.warning("cannot look for processes left behind by jobs of a dead manager: %s", error)
        return None


def _kill(ends_at: float) -> int:
    ended: set[int] = set()
    stuck: set[int] = set()
    while orphans := _orphans():
        for pidfd in orphans.values():
            with contextlib.suppress(PermissionError, ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        stuck = {pid for pid, pidfd in orphans.items() if not host.is_dead(pidfd, ends_at - time.monotonic())}
        ended |= orphans.keys() - stuck
        for pidfd in orphans.values():
            os.close(pidfd)
        if time.monotonic() >= ends_at:
            break
    if stuck:
        log.warning("could not kill leftover processes of a dead manager's jobs: %s", sorted(stuck))
    if ended:
        log.warning("killed %d processes left behind by jobs of a dead manager: %s", len(ended), sorted(ended))
    return len(ended)


def _orphans() -> dict[int, int]:
    """Return pid and pidfd of each marked orphan; of some, if there are more than free descriptors.

    Raises ``OSError`` if no descriptor is free.
    """
    orphans: dict[int, int] = {}
    try:
        orphans.update(_marked_orphans())
    except OSError as error:
        if not orphans or error.errno not in child_process.SHORTAGES:
            raise
    return orphans


def _marked_orphans() -> Iterator[tuple[int, int]]:
    """Yield pid and pidfd of each living marked process whose manager is dead."""
    ours = resource.getrlimit(LOCKS)[0]
    lives: dict[int, bool] = {ours: True}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        mark = _limit_of(pid)
        if not _is_mark(mark, _MANAGER, _WORKER):
            continue
        if mark not in lives:
            lives[mark] = _has_manager(mark)
        if lives[mark]:
            continue
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            if _limit_of(pid) == mark and not host.is_dead(pidfd):  # it is open: the pid cannot be reused any more
                yield pid, pidfd
            else:
                os.close(pidfd)


def _mark_this(sign: int) -> None:
    mark = _mark(sign, os.getpid(), host.born_at(os.getpid()) or 0)
    resource.setrlimit(LOCKS, (mark, resource.getrlimit(LOCKS)[1]))


def _mark(sign: int, pid: int, born: int) -> int:
    space = os.stat("/proc/self/ns/pid").st_ino % (1 << _SPACE)
    return ((sign << _SPACE | space) << _BORN | born % (1 << _BORN)) << _PID | pid


def _is_mark(mark: int, *signs: int) -> bool:
    """Return whether this is a mark made in the pid namespace of this process."""
    return mark >> (_PID + _BORN) in [_mark(sign, 0, 0) >> (_PID + _BORN) for sign in signs]


def _has_manager(mark: int) -> bool:
    """Return whether the manager lives that has made this mark, or that has the living worker that did."""
    is_worker = _is_mark(mark, _WORKER)
    pid = mark % (1 << _PID)
    born = host.born_at(pid)
    if born is not None and _mark(_WORKER if is_worker else _MANAGER, pid, born) != mark:
        return False
    if is_worker and not _is_below_its_manager(pid):
        return False
    pidfd = host.opened(pid, born or 0)
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def _is_below_its_manager(worker: int) -> bool:
    """Return whether the parent of a worker is a manager: a worker whose job became another user may outlive it."""
    return any(
        _limit_of(parent) == _mark(_MANAGER, parent, host.born_at(parent) or 0)
        for parent in child_process.ancestry(worker)[1:2]
    )


def _limit_of(pid: int) -> int:
    """Return the limit of the process; 0 if it is dead, or belongs to another user."""
    try:
        return resource.prlimit(pid, LOCKS)[0]
    except (ProcessLookupError, PermissionError):
        return 0


def _limit_shown(pid: int) -> int:
    """Return the limit of a process that may belong to another user; 0 if it is dead or has none."""
    try:
        shown = Path(f"/proc/{pid}/limits").read_text()
    except OSError:
        return 0
    match = re.search(r"^Max file locks +([0-9]+)", shown, re.MULTILINE)
    return 0 if match is None else int(match[1])
