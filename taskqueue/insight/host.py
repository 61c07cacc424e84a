"""Identifies this host, and checks whether the processes named by a lease or a claim still live on it."""

from __future__ import annotations

import errno
import functools
import os
import re
import secrets
import select
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from taskqueue.model.record import Holder
from taskqueue.store import Lease

_NO_PROCESS = (errno.ESRCH, errno.EINVAL, errno.ENOENT)
"""The errors of pidfd_open(2) for a pid without a process, or one that is a thread by now."""

CALLS = ("run_job", "run_pending")
"""The calls that run jobs in the process of their caller."""

_CALLER = r"[0-9a-f]{16}:(?P<pid>\d+):(?P<born>\d+):(?P<machine>.+)"


def machine() -> str:
    """Return an identifier of this host in its current boot; empty if there is none.

    Two containers on one file system are two hosts; two machines from one image differ only in their boot.
    """
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux, or no /proc
        return ""
    return "/".join((socket.gethostname(), *_ids(), str(space)))


def named(pids: Mapping[str, int]) -> dict[str, list[int]]:
    """Return these processes as a lease names them: each with its pid and start time."""
    return {role: [pid, born_at(pid) or 0] for role, pid in pids.items()}


def born_at(pid: int) -> int | None:
    """Return when the process was started, in clock ticks since the boot; None if that cannot be read."""
    try:
        return int(_stat(pid).split()[19])
    except (OSError, IndexError, ValueError):
        return None


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped the process; False if it is dead or unknown here."""
    try:
        state = _stat(pid)[:1]
    except OSError:
        return False
    return state in ("T", "t")


def _stat(pid: int) -> str:
    """Return the fields of proc_pid_stat(5) after the name of the process, which may be no text."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2]


def opened(pid: int, born: int) -> int | None:
    """Return a pidfd of exactly this process; None if it is dead, since its pid may belong to another by now.

    A process that cannot be told apart from it counts as it.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NO_PROCESS:
            return None
        raise
    if born_at(pid) in (born, None) and not is_dead(pidfd):
        return pidfd
    os.close(pidfd)
    return None


def is_dead(pidfd: int, within: float | None = 0.0) -> bool:
    """Return whether the process has ended, reaped or not; wait for its end up to ``within`` seconds, None for ever."""
    poll = select.poll()  # not select(), which ends at descriptor 1023
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if within is None else max(0.0, within) * 1000))


def caller(call: str) -> Holder:
    """Return a new holder of claims for jobs that run in this process, by ``run_job`` or ``run_pending``.

    Its incarnation names the process, so that the nodes of this host see its death.
    """
    process = f"{os.getpid()}:{born_at(os.getpid()) or 0}:{machine()}"
    return Holder(seat=_caller_seat(call), incarnation=f"{secrets.token_hex(8)}:{process}")


def caller_seats() -> list[str]:
    """Return the seats of callers on this host."""
    return [_caller_seat(call) for call in CALLS]


def living_caller(holder: Holder) -> dict[str, int] | None:
    """Return a pidfd for the process of a caller, no pidfd if it is dead; None if it is on another host."""
    caller = re.fullmatch(_CALLER, holder.incarnation)
    if caller is None or caller["machine"] != machine():
        return None
    return _pidfds({"caller": (int(caller["pid"]), int(caller["born"]))})


def is_gone_caller(holder: Holder) -> bool:
    """Return whether the holder is a caller of this host whose process has ended."""
    pidfds = living_caller(holder)
    for pidfd in (pidfds or {}).values():
        os.close(pidfd)
    return pidfds == {}


def _caller_seat(call: str) -> str:
    return f"{call} on {socket.gethostname()}"


def living(lease: Lease) -> dict[str, int] | None:
    """Return a pidfd for each process of the lease that lives here; None if that is unknown, as on another host."""
    processes = lease.about.get("processes")
    if not isinstance(processes, Mapping) or not processes or lease.about.get("machine") != machine():
        return None
    other_processes = {role: (pid, born) for role, (pid, born) in processes.items() if pid != os.getpid()}
    return _pidfds(other_processes)  # this pid was another node's, or this process has called exec


def _pidfds(processes: Mapping[str, tuple[int, int]]) -> dict[str, int] | None:
    """Return a pidfd for each of these processes that lives; None if there are no descriptors left for finding out."""
    pidfds: dict[str, int] = {}
    for role, (pid, born) in processes.items():
        try:
            pidfd = opened(pid, born)
        except OSError:
            for earlier in pidfds.values():
                os.close(earlier)
            return None
        if pidfd is not None:
            pidfds[role] = pidfd
    return pidfds


def is_gone(lease: Lease) -> bool:
    """Return whether the holder ran on this host and none of the processes it named still lives."""
    pidfds = living(lease)
    for pidfd in (pidfds or {}).values():
        os.close(pidfd)
    return pidfds == {}


def stopped(lease: Lease) -> dict[str, int]:
    """Return the processes of the lease, each with its pid, that live on this host and are stopped by a signal."""
    pidfds = living(lease) or {}
    for pidfd in pidfds.values():
        os.close(pidfd)
    processes = lease.about.get("processes")
    pids = {role: pid for role, (pid, _) in processes.items()} if isinstance(processes, Mapping) else {}
    return {role: pids[role] for role in pidfds if is_stopped(pids[role])}


def is_live(lease: Lease, now: datetime) -> bool:
    """Return whether the holder lives, as far as its lease and this host can tell."""
    return lease.until > now and not is_gone(lease)


@functools.cache
def _ids() -> tuple[str, str]:
    return _first_line("/etc/machine-id"), _first_line("/proc/sys/kernel/random/boot_id")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().partition("\n")[0]
    except OSError:
        return ""
