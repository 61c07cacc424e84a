"""What a process and all below it use, as the kernel counts it (proc(5))."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def memory(pid: int) -> int:
    """Return the proportional set size in bytes: what is shared counts for each process by its part."""
    total = 0
    for member in family(pid):
        for line in (_PROC / str(member) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def processor_time(pid: int) -> float:
    """Return the seconds for which the threads of all these processes have run."""
    total = 0
    for member in family(pid):
        for thread in (_PROC / str(member) / "task").iterdir():
            with suppress(OSError):  # it has just ended
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def family(pid: int) -> list[int]:
    """Return the process and all below it."""
    children = []
    for thread in (_PROC / str(pid) / "task").iterdir():
        children += [int(child) for child in (thread / "children").read_text().split()]
    return [pid, *(member for child in children for member in family(child))]
