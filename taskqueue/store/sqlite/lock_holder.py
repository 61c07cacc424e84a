"""Finds the process that holds the write lock of a database, in the kernel's list; opens no file of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.shown_text import logged

_PENDING = 0x40000000  # PENDING_BYTE of SQLite's os.h
_IN_DATABASE = (_PENDING, _PENDING + 511)  # what a connection locks that wants the file for itself
_IN_INDEX = (120, 120)  # WAL_WRITE_LOCK of the file -shm
_WORDS_SHOWN = 3  # of a command line; a password stands further behind, as a rule
_MOST_SHOWN = 80  # characters


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The process that holds the write lock; 0 for one outside of this container."""

    pid: int

    def __str__(self) -> str:
        if not self.pid:
            return "a process outside of this container"
        if self.pid == os.getpid():
            return f"this very process, pid {self.pid}, in another connection"
        return f"pid {self.pid} ({_command(self.pid)}){', which is stopped' if _is_stopped(self.pid) else ''}"


def lock_holder(path: str) -> LockHolder | None:
    """Return the holder of the write lock; None if there is none, or the kernel does not say."""
    try:
        listed = Path("/proc/locks").read_text()
    except OSError:
        return None
    for file, (first, last) in ((f"{path}-shm", _IN_INDEX), (path, _IN_DATABASE)):
        # By device and inode, or by inode alone: some filesystems tell programs another device than the kernel uses.
        for identity in _identities(file):
            for pid, place, begin, end in _write_locks(listed):
                if place.endswith(identity) and begin <= last and end >= first:
                    return LockHolder(pid=max(pid, 0))
    return None


def _identities(file: str) -> Iterator[str]:
    try:
        status = os.stat(file)
    except OSError:
        return
    yield f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    yield f":{status.st_ino}"


def _write_locks(listed: str) -> Iterator[tuple[int, str, float, float]]:
    """Yield process, file and range of each lock that excludes others; those who wait for one are marked by ``->``."""
    for line in listed.splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[1] != "->" and fields[3] == "WRITE":
            pid, place, begin, end = fields[4:]
            yield int(pid), place, float(begin), float("inf") if end == "EOF" else float(end)


def _command(pid: int) -> str:
    """Return the beginning of the command line, or what else is known of the process."""
    for name in ("cmdline", "comm"):
        try:
            words = Path(f"/proc/{pid}/{name}").read_text(errors="replace").replace("\0", " ").split()
        except OSError:
            return "gone by now"
        if words:
            is_ours = words[0] == "taskqueue:"  # a title that we have set
            return logged(" ".join(words if is_ours else words[:_WORDS_SHOWN]))[:_MOST_SHOWN]
    return "a program without a name"


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False
