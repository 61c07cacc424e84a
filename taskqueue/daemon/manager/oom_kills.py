"""Detects OOM kills by the kernel's counters: those of this cgroup or, without one, of the host."""

from __future__ import annotations

import contextlib
from pathlib import Path

_V2 = "memory.events"
_V1 = "memory.oom_control"


class OomKills:
    """Compares the kernel's counter of OOM kills with its value at the last call."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._of_host = proc / "vmstat"
        self._of_cgroup = _counter(proc, cgroups)
        self._known = self._counts()

    def explain_kill(self) -> str:
        """Return in words the sender of a SIGKILL that did not come from the manager; call this soon after it."""
        (cgroup_before, host_before), self._known = self._known, self._counts()
        cgroup, host = self._known
        if cgroup is not None and cgroup_before is not None:
            if cgroup > cgroup_before:
                return "the kernel killed it for want of memory (an OOM kill in its cgroup)"
            return "another process killed it: the kernel made no OOM kill in its cgroup"
        if host is None or host_before is None:
            return "another process killed it, or the kernel did for want of memory"
        if host > host_before:
            return "the kernel killed a process of this host for want of memory at that time, probably this one"
        return "another process killed it: the kernel made no OOM kill on this host"

    def reset(self) -> None:
        """Start from the present value of the counter."""
        self._known = self._counts()

    def _counts(self) -> tuple[int | None, int | None]:
        if self._of_cgroup is not None:
            return _oom_kills(self._of_cgroup), None
        return None, _oom_kills(self._of_host)


def _counter(proc: Path, cgroups: Path) -> Path | None:
    """Return the file with the counter of this process's cgroup; None if none can be read."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = path.strip("/")
        if "memory" in controllers.split(","):  # in a container its own cgroup may be mounted as the root
            found = (cgroups / "memory" / inner / _V1, cgroups / "memory" / _V1)
        elif not controllers:
            found = (cgroups / inner / _V2, cgroups / "unified" / inner / _V2)
        else:
            continue
        for file in found:
            if _oom_kills(file) is not None:
                return file
    return None


def _oom_kills(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
