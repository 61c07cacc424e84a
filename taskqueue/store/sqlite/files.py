"""The files of an open database: whether their names lead to them, who holds the write lock, the journal's size.

None of them is opened here but the journal: closing a descriptor of the database or of the index beside it would drop
the locks of this process. The journal is preallocated: a commit that makes it longer also waits for the filesystem to
write down its new length (measured on ext4: 0.35 ms instead of 0.2 ms). SQLite takes zeros after the last commit for
the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import struct
import time
import weakref
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.shown_text import logged

FRESH = 50_000_000
"""Nanoseconds for which a change of a folder may hide another one: the clock of files ticks every few milliseconds."""

_SHARED_RANGE = (0x4000_0002, 510)
"""First byte and length of the range of the database that connections in WAL mode lock (SQLite's ``os.h``)."""

_SHORTEST_INDEX = 32 * 1024
"""Bytes by which SQLite extends the index; on a full disk it writes only a few of the first."""

Identity: TypeAlias = "tuple[int, int] | None"

_FILES: weakref.WeakKeyDictionary[Files, None] = weakref.WeakKeyDictionary()
"""Open files of this process. Other threads open and close theirs: only ``keyrefs`` can be iterated safely."""


class State(Enum):
    """The state of the files of an open database."""

    WHOLE = "all names lead to them"
    REMOVED = "the database was removed"
    REPLACED = "another file has the name of the database"
    JOURNAL_REMOVED = "the journal has no name any more, and no other one has begun"
    JOURNAL_SAVED = "another process has saved what the removed journal held"
    JOURNAL_REPLACED = "another journal has begun, and what the removed one held may be lost"
    INDEX_REMOVED = "the index of the journal was removed or replaced, and with it the locks"


class Files:
    """Database, journal and index of one connection."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._journal = f"{database}-wal"
        self._index = f"{database}-shm"
        self._folder = os.path.dirname(database)
        self._identity = _identity(database)
        self._companions: tuple[Identity, Identity] | None = None
        self._descriptor: int | None = None
        self._open_folder: int | None = None
        self._seen: tuple[int, int, int] | None = None
        _FILES[self] = None

    def opened(self) -> None:
        """Remember the journal and the index that SQLite has just opened."""
        self.closed()
        self._companions = (_identity(self._journal), _identity(self._index))
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self._journal, os.O_RDONLY | os.O_CLOEXEC)
            self._open_folder = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)

    def closed(self) -> None:
        """Forget journal and index; the database stays the same."""
        self._companions = self._seen = None
        for descriptor in (self._descriptor, self._open_folder):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._open_folder = None

    @property
    def are_whole(self) -> bool:
        """Return whether all names lead to the open files.

        As long as the folder has not changed since the last look at each of them, one look at the folder is enough.
        """
        try:
            status = os.stat(self._folder)
        except OSError:
            return False
        seen = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return True
        if self.state() is not State.WHOLE:
            return False
        if abs(time.time_ns() - status.st_mtime_ns) > FRESH:
            self._seen = seen
        return True

    @property
    def are_still_whole(self) -> bool:
        """Return whether all names lead to the open files, as they did a moment ago.

        Looks at the open folder, which takes half the time of a look by name (0.8 us, not 1.7).
        """
        if self._open_folder is not None and self._seen is not None:
            status = os.fstat(self._open_folder)
            if (status.st_dev, status.st_ino, status.st_mtime_ns) == self._seen:
                return True
        return self.are_whole

    def state(self) -> State:
        """Return the state of the files now."""
        database, journal, index = _identities(self._database, self._journal, self._index)
        if database is None:
            return State.REMOVED
        if database != self._identity:
            return State.REPLACED
        if self._companions is None:
            return State.WHOLE
        has_index = index == self._companions[1]
        if journal is not None and journal == self._companions[0]:
            return State.WHOLE if has_index else State.INDEX_REMOVED
        if (journal is None and index is None) or (has_index and (journal is None or self.has_empty_journal)):
            return State.JOURNAL_REMOVED  # a process that was refused with the same index leaves an empty one
        if has_index and self._descriptor is not None and os.fstat(self._descriptor).st_size == 0:
            return State.JOURNAL_SAVED
        return State.JOURNAL_REPLACED

    @property
    def has_empty_journal(self) -> bool:
        """Return whether the file with the name of the journal is empty."""
        try:
            return os.stat(self._journal).st_size == 0
        except OSError:
            return False

    @property
    def has_whole_index(self) -> bool:
        """Return whether the file with the name of the index is as long as an index in use."""
        try:
            return os.stat(self._index).st_size >= _SHORTEST_INDEX
        except OSError:
            return False

    @property
    def has_index(self) -> bool:
        """Return whether the open index still has its name: then all openers of the database share it."""
        companions = self._companions
        return companions is not None and _identity(self._index) == companions[1]

    @property
    def has_lost_index(self) -> bool:
        """Return whether journal and index are open, and the index has lost its name; any thread may call this."""
        companions = self._companions
        return companions is not None and (companions[1] is None or _identity(self._index) != companions[1])

    @property
    def share_lost_index(self) -> bool:
        """Return whether the index, or another connection's index, has lost its name: SQLite has one for a process."""
        every = [files for reference in _FILES.keyrefs() if (files := reference()) is not None]
        return any(files.has_lost_index for files in every if files.are_of(self._identity))

    def are_of(self, database: Identity) -> bool:
        """Return whether these are the files of this database."""
        return self._identity == database

    def set_journal_aside(self) -> str:
        """Rename the journal of a replaced database, so that no process takes it for the journal of the new one.

        Return the new name, or "" if the journal was another one.
        """
        if self._companions is None or _identity(self._journal) != self._companions[0]:
            return ""
        aside = f"{self._journal}.{time.time_ns()}"
        with contextlib.suppress(OSError):
            os.rename(self._journal, aside)
            if self.has_index:
                Path(self._index).unlink()
            return aside
        return ""

    def keep_others_out(self) -> None:
        """Make SQLite believe that others use the database, so that closing it neither saves nor removes a journal.

        The descriptor is never closed, as that would drop the locks of other connections of this process.
        """
        with contextlib.suppress(OSError):
            descriptor = os.open(self._database, os.O_RDONLY | os.O_CLOEXEC)
            lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, *_SHARED_RANGE, 0)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)


def _identities(*paths: str) -> list[Identity]:
    """Return the identity of each path; each look at the files of a store takes three."""
    found: list[Identity] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return found


def _identity(name: str) -> Identity:
    return _identities(name)[0]


_PENDING = 0x40000000  # PENDING_BYTE of SQLite's os.h
_IN_DATABASE = (_PENDING, _PENDING + 511)  # locked by a connection that wants the file for itself
_IN_INDEX = (120, 120)  # WAL_WRITE_LOCK of the file -shm
_WORDS_SHOWN = 3  # characters of a command line; a password usually comes later
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
    """Return the holder of the write lock; None if there is none, or the kernel does not name it."""
    try:
        listed = Path("/proc/locks").read_text()
    except OSError:
        return None
    for file, (first, last) in ((f"{path}-shm", _IN_INDEX), (path, _IN_DATABASE)):
        # By device and inode, or by inode alone: some filesystems report a device that the kernel does not use.
        for identity in _lock_identities(file):
            for pid, place, begin, end in _write_locks(listed):
                if place.endswith(identity) and begin <= last and end >= first:
                    return LockHolder(pid=max(pid, 0))
    return None


def _lock_identities(file: str) -> Iterator[str]:
    try:
        status = os.stat(file)
    except OSError:
        return
    yield f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    yield f":{status.st_ino}"


def _write_locks(listed: str) -> Iterator[tuple[int, str, float, float]]:
    """Yield process, file and range of each exclusive lock; lines of waiting processes are marked by ``->``."""
    for line in listed.splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[1] != "->" and fields[3] == "WRITE":
            pid, place, begin, end = fields[4:]
            yield int(pid), place, float(begin), float("inf") if end == "EOF" else float(end)


def _command(pid: int) -> str:
    """Return the beginning of the command line, or whatever else is known about the process."""
    for name in ("cmdline", "comm"):
        try:
            words = Path(f"/proc/{pid}/{name}").read_text(errors="replace").replace("\0", " ").split()
        except OSError:
            return "gone by now"
        if words:
            is_ours = words[0] == "taskqueue:"  # a title set by this project
            return logged(" ".join(words if is_ours else words[:_WORDS_SHOWN]))[:_MOST_SHOWN]
    return "a program without a name"


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


PIECE = 256 * 1024
"""While the length is a multiple of these bytes, there is room: any other length comes from a commit.

So many are written at once: the kernel caches what one call writes in as large parts as it can, and each small write
into a part of a megabyte looks through all of it (measured for the ten writes of an add: 28 us, not 14).
"""

STEP = 4 * PIECE
"""Bytes that are preallocated together; the next commit writes them to the disk along with its own."""

_ZEROS = bytes(PIECE)


class Journal:
    """The write-ahead log of an open database; SQLite holds no locks on it, so closing it drops none."""

    def __init__(self, path: str, enough: int) -> None:
        """Keep the file open; up to ``enough`` bytes are preallocated."""
        self._enough = enough
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def make_room(self) -> None:
        """Write zeros after the end if SQLite has reached it; a short journal stays short.

        They are appended, at the end as it is at that moment: writes of another process there are not touched.
        The length is sought: ``fstat`` would also ask for the time of the last change, so that the next write notes a
        new one, and the next sync takes longer (measured on ext4, Linux 6.18: 135 us, not 85).
        """
        if self._file is None:
            return
        size = os.lseek(self._file, 0, os.SEEK_END)
        if size >= self._enough:
            self.close()
        elif size > PIECE and size % PIECE:
            with contextlib.suppress(OSError):  # without space, commits extend it as far as they can
                os.write(self._file, bytes(PIECE - size % PIECE))
                for _ in range(STEP // PIECE - 1):
                    os.write(self._file, _ZEROS)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def write_back(raw: sqlite3.Connection) -> None:
    """Copy all of the journal into the database, and empty it."""
    [is_busy, _, _] = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if is_busy:
        raise sqlite3.OperationalError("database is locked")


def reuse(raw: sqlite3.Connection) -> None:
    """Copy the journal into the database as far as there is space, so that the next commits start at its front.

    Jobs change the same pages again and again. On a full disk that continues in the space of both files.
    """
    with contextlib.suppress(sqlite3.Error):
        raw.execute("PRAGMA wal_checkpoint(PASSIVE)")
