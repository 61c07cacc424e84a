"""Reads memory limit, used memory and OOM kills of the cgroup, which a container or a systemd unit may limit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_OOM_KILLS = ("memory.events", "memory.oom_control")
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_USED = ("memory.current", "memory.usage_in_bytes")
"""The names of a file in version 2 and in version 1."""

_HOST = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
"""The bytes of memory of the host."""


def oom_kills_file(proc: Path = PROC, cgroups: Path = CGROUPS) -> Path | None:
    """Return the file with the counter of OOM kills of this process's cgroup; None if none can be read."""
    for folder, version in _folders(proc, cgroups):
        file = folder / _OOM_KILLS[version]
        if oom_kills(file) is not None:
            return file
    return None


def oom_kills(file: Path) -> int | None:
    """Return the kernel's counter of OOM kills in ``file``; None if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None


def memory_limit(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that this process may use: the least of its cgroup, of those above it, and of the host."""
    return min((limit for _, _, limit in _limited(proc, cgroups)), default=_HOST)


def memory_use(proc: Path = PROC, cgroups: Path = CGROUPS) -> tuple[int, int] | None:
    """Return used bytes and limit of the fullest level of the cgroup and those above it; None without a limit."""
    uses = []
    for level, version, limit in _limited(proc, cgroups):
        with contextlib.suppress(OSError, ValueError):
            uses.append((int((level / _USED[version]).read_text()), limit))
    return max(uses, key=lambda use: use[0] / max(use[1], 1), default=None)


def _limited(proc: Path, cgroups: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield each level with a limit below the host's: folder, 0 for version 2 or 1 for version 1, and bytes."""
    for folder, version in _folders(proc, cgroups):
        for level in (folder, *folder.parents):
            if not level.is_relative_to(cgroups):
                break
            with contextlib.suppress(OSError, ValueError):  # "max" is not a number: this level has no limit
                limit = int((level / _LIMITS[version]).read_text())
                if limit < _HOST:  # version 1 writes a huge one for none
                    yield level, version, limit


def _folders(proc: Path, cgroups: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folders that may belong to this process's cgroup, and 0 for version 2, 1 for version 1."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (proc / "self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = path.strip("/")
        if "memory" in controllers.split(","):  # in a container its own cgroup may be mounted as the root
            yield cgroups / "memory" / inner, 1
            yield cgroups / "memory", 1
        elif not controllers:
            yield cgroups / inner, 0
            yield cgroups / "unified" / inner, 0
            if inner:
                yield cgroups, 0
