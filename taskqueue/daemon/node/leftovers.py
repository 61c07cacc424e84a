"""What jobs leave behind when manager and node are killed together: its mark, and how the next node ends it.

The mark is a limit of the kernel that bounds nothing since Linux 2.4.25, the number of file locks. What a process
starts inherits it, with exec and without, in a session of its own and with an environment of its own. It names the
manager, so that whoever meets it knows whether that lives.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import signal
import time
from collections.abc import Iterable, Iterator

from taskqueue.scheduler import host

log = logging.getLogger(__name__)

KILL_TAKES_AT_MOST = 5.0
"""Seconds for which deaths are waited for: whoever is stuck in the kernel runs no code of a job any more."""

_LOCKS = 10
"""RLIMIT_LOCKS of asm-generic/resource.h, which the module ``resource`` does not name."""

_PID = 22  # bits: the most that Linux knows
_BORN = 24
_SPACE = 12  # of the namespace of pids: elsewhere the same number is another process
_SIGN = 0b10110  # above them: no limit that somebody set looks so


def mark() -> None:
    """Mark this process, which is a manager, and all that it will start."""
    try:
        resource.setrlimit(_LOCKS, (_mark(os.getpid(), host.born_at(os.getpid()) or 0), resource.getrlimit(_LOCKS)[1]))
    except (OSError, ValueError) as error:
        log.warning(
            "what jobs start cannot be marked, so that it is not found if node and manager are killed: the limit of "
            "file locks (ulimit -x) cannot be set (%s): leave it unlimited",
            error,
        )


def kill(within: float = KILL_TAKES_AT_MOST) -> int:
    """Kill all marked processes of this host whose manager is dead, wait for their ends, and return how many it were.

    Each is killed once at least, and waited for ``within`` seconds together. What this process is a leftover of itself,
    if it is one, is left to others.
    """
    ends_at = time.monotonic() + within
    ended: set[int] = set()
    stuck: set[int] = set()
    while found := dict(_marked_orphans()):
        for pidfd in found.values():
            with contextlib.suppress(PermissionError, ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _await_deaths(found.values(), ends_at)
        stuck = {pid for pid, pidfd in found.items() if not host.is_dead(pidfd)}
        ended |= found.keys() - stuck
        _close(found.values())
        if time.monotonic() >= ends_at:
            break
    if stuck:
        log.warning("processes that a dead manager has left behind do not die: %s", sorted(stuck))
    if ended:
        log.warning("ended %d processes that jobs of a dead manager had left behind: %s", len(ended), sorted(ended))
    return len(ended)


def _marked_orphans() -> Iterator[tuple[int, int]]:
    """Yield pid and pidfd of each marked process that lives and whose manager does not."""
    ours = resource.getrlimit(_LOCKS)[0]
    lives: dict[int, bool] = {ours: True}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        kept = _limit_of(pid)
        if not _is_mark(kept):
            continue
        if kept not in lives:
            lives[kept] = _has_manager(kept)
        if lives[kept]:
            continue
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            if _limit_of(pid) == kept and not host.is_dead(pidfd):  # only now the number is surely its own
                yield pid, pidfd
            else:
                os.close(pidfd)


def _mark(pid: int, born: int) -> int:
    space = os.stat("/proc/self/ns/pid").st_ino % (1 << _SPACE)
    return ((_SIGN << _SPACE | space) << _BORN | born % (1 << _BORN)) << _PID | pid


def _is_mark(kept: int) -> bool:
    """Return whether this is a mark that was made in our own namespace of pids."""
    return kept >> (_PID + _BORN) == _mark(0, 0) >> (_PID + _BORN)


def _has_manager(kept: int) -> bool:
    pid = kept % (1 << _PID)
    born = host.born_at(pid)
    if born is not None and _mark(pid, born) != kept:
        return False
    pidfd = host.opened(pid, born or 0)
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def _limit_of(pid: int) -> int:
    """Return the limit of the process; 0 if it is gone, or belongs to another user."""
    try:
        return resource.prlimit(pid, _LOCKS)[0]
    except (ProcessLookupError, PermissionError):
        return 0


def _await_deaths(pidfds: Iterable[int], ends_at: float) -> None:
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(max(0.0, ends_at - time.monotonic()) * 1000)


def _close(pidfds: Iterable[int]) -> None:
    for pidfd in pidfds:
        os.close(pidfd)
