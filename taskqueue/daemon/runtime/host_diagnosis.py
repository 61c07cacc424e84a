"""Examines the host of nodes: descriptors and memory, limits of its cgroup, and systemd units."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from taskqueue.daemon.runtime import cgroup
from taskqueue.model.finding import Finding, Level, below
from taskqueue.model.wording import size

UNITS = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/usr/lib/systemd/system"))

FEW_DESCRIPTORS = 1024
"""A limit of open files that is too low for many workers: the usual default of a shell."""

_WANTED = (
    ("Type", ("notify", "notify-reload"), "systemd does not know when it is ready"),
    ("KillMode", ("mixed", "process"), "a stop sends SIGTERM to running jobs at once"),
    ("WatchdogSec", (), "a node that hangs is not restarted"),
    ("Restart", ("always", "on-failure"), "a node that dies is not started again"),
)
"""The settings of a unit, the values that will do (none: any), and the consequence of others."""


def diagnose(pids: Sequence[tuple[str, int]]) -> list[Finding]:
    """Return the findings about this host and its running nodes, each with name and pid; reads only."""
    findings = [*_memory(), *_cgroup(), *_units(UNITS)]
    for name, pid in pids:
        findings += _descriptors(name, pid)
    return findings


def _descriptors(name: str, pid: int) -> Iterator[Finding]:
    with suppress(OSError, ValueError, IndexError):
        limits = Path(f"/proc/{pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        most, used = int(line.split()[3]), len(os.listdir(f"/proc/{pid}/fd"))
        do = "raise the limit: LimitNOFILE=16384 in the unit, or ulimit -n"
        words = f"node {name}: {used} of {most} are in use"
        level = Level.ERROR if used > 0.9 * most else Level.WARNING if most < FEW_DESCRIPTORS else Level.OK
        yield Finding("descriptors", words, level, do if level is not Level.OK else "")


def _memory() -> Iterator[Finding]:
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    total, free = (int(sizes.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable"))
    if total:
        words = f"{size(free)} of {size(total)} are available"
        do = "lower --max-children, set --max-memory, or add memory: the kernel kills workers without any"
        yield below("memory", words, free / total, warning=0.1, error=0.03, do=do)


def _cgroup() -> Iterator[Finding]:
    """Yield how much of the memory of this cgroup is used, if it has a limit."""
    use = cgroup.memory_use()
    if use is not None:
        used, most = use
        words = f"{size(used)} of {size(most)} are used"
        do = "raise the limit (MemoryMax), or lower --max-children"
        yield below("memory of the cgroup", words, 1 - used / max(most, 1), warning=0.1, error=0.02, do=do)


def _units(folders: Sequence[Path]) -> Iterator[Finding]:
    units = [unit for folder in folders if folder.is_dir() for unit in sorted(folder.glob("taskqueue-node*.service"))]
    for unit in units:
        set_to = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(errors="replace"), re.MULTILINE))
        missing = [
            f"without {name}={'…' if not values else values[0]} {harm}"
            for name, values, harm in _WANTED
            if name not in set_to or (values and set_to[name] not in values)
        ]
        program = _program(set_to.get("ExecStart", ""))
        if not os.access(program, os.X_OK):
            missing.append(f"its ExecStart {program!r} is not a program")
        level = Level.WARNING if missing else Level.OK
        do = "compare it with `taskqueue systemd`, then `systemctl daemon-reload`" if missing else ""
        yield Finding("unit file", f"{unit}: {'; '.join(missing) or 'as it should be'}", level, do)
    if not units:
        yield Finding("unit file", "none is installed on this host")


def _program(command: str) -> str:
    """Return the path of the program in a command line of systemd; it stands in quotes if it has spaces."""
    with suppress(ValueError, IndexError):
        return shlex.split(command.lstrip("@-:+!"))[0].replace("%%", "%").replace("$$", "$")
    return command
