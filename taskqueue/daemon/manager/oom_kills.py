"""Detects OOM kills by the kernel's counters: of this cgroup or, if there is none, of the host."""

from __future__ import annotations

from pathlib import Path

from taskqueue.daemon.manager.worker_handle import EndReason
from taskqueue.daemon.protocol.messages import EndKind
from taskqueue.daemon.runtime import cgroup


class OomKills:
    """Compares the kernel's counter of OOM kills with its value at the last call."""

    def __init__(self, proc: Path = cgroup.PROC, cgroups: Path = cgroup.CGROUPS) -> None:
        self._of_host = proc / "vmstat"
        self._of_cgroup = cgroup.oom_kills_file(proc, cgroups)
        self._known = self._counts()

    def explain_kill(self) -> EndReason:
        """Return the sender of a SIGKILL that did not come from the manager; call this soon after it."""
        (own_before, host_before), self._known = self._known, self._counts()
        own, host = self._known
        if own is not None and own_before is not None:
            if own > own_before:
                words = "the kernel killed it for lack of memory (an OOM kill in its cgroup)"
                return EndReason(words, EndKind.OUT_OF_MEMORY)
            return EndReason("a process killed it, perhaps itself: the kernel made no OOM kill in its cgroup")
        if host is None or host_before is None:
            return EndReason("a process killed it, perhaps itself, or the kernel did for lack of memory")
        if host > host_before:
            words = "the kernel killed a process of this host for lack of memory at that time, probably this one"
            return EndReason(words, EndKind.OUT_OF_MEMORY)
        return EndReason("a process killed it, perhaps itself: the kernel made no OOM kill on this host")

    def reset(self) -> None:
        """Start from the present value of the counter."""
        self._known = self._counts()

    def _counts(self) -> tuple[int | None, int | None]:
        if self._of_cgroup is not None:
            return cgroup.oom_kills(self._of_cgroup), None
        return None, cgroup.oom_kills(self._of_host)
