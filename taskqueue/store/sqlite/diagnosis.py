"""Examines an embedded store: its file, the free space around it, and how SQLite stores it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from taskqueue.model.finding import Finding, Level, below
from taskqueue.model.wording import size
from taskqueue.store.sqlite.url import NETWORK_FILESYSTEMS, SqliteUrl, filesystem

MIB = 2**20
CHECK_FOR = 20.0
"""Seconds for the check of the file, which reads all of it; other processes continue."""

_STEPS = 100_000
"""How many instructions SQLite runs between two looks at the clock."""

LONG_JOURNAL = 256 * MIB


def diagnose(raw: sqlite3.Connection, address: SqliteUrl) -> list[Finding]:
    """Return the findings; reads only."""
    return [
        _file_system(address.path),
        _permissions(address),
        *strains(raw, address),
        *_settings(raw, address),
        _integrity(raw),
    ]


def strains(raw: sqlite3.Connection, address: SqliteUrl) -> list[Finding]:
    """Return those findings that change by themselves."""
    return [_room(address.path, _size(raw)), _journal(address.path)]


def _size(raw: sqlite3.Connection) -> int:
    """Return the size of the database in bytes, including what is only in the write-ahead log."""
    [(pages,)], [(each,)] = raw.execute("PRAGMA page_count"), raw.execute("PRAGMA page_size")
    return int(pages) * int(each)


def _file_system(path: Path) -> Finding:
    kind = filesystem(path, Path("/proc/self/mountinfo").read_text())
    is_network = kind in NETWORK_FILESYSTEMS
    return Finding(
        "file system",
        f"{kind or 'unknown'}{', which is a network file system' if is_network else ''}",
        Level.ERROR if is_network else Level.OK,
        "move the file to a local disk: locks of network file systems lose jobs" if is_network else "",
    )


def _room(path: Path, kept: int) -> Finding:
    room = os.statvfs(path.parent)
    free = room.f_bavail * room.f_frsize
    do = "make room, shorten the retention (--keep-done, --keep-failed), or move the store"
    words = f"{size(free)} are free, the store has {size(kept)}"
    return below("free space", words, free, warning=max(1024 * MIB, kept / 4), error=128 * MIB, do=do)


def _journal(path: Path) -> Finding:
    journal = path.with_name(f"{path.name}-wal")
    length = journal.stat().st_size if journal.exists() else 0
    is_long = length > LONG_JOURNAL
    return Finding(
        "journal",
        f"{size(length)} are in the write-ahead log",
        Level.WARNING if is_long else Level.OK,
        f"end the long read: `fuser {path}` names the processes that have the file open" if is_long else "",
    )


def _permissions(address: SqliteUrl) -> Finding:
    status = address.path.stat()
    mode = status.st_mode & 0o777
    words = f"mode {mode:04o}, owner {status.st_uid}"
    if mode & 0o006:
        said = f"{words}, so that any user of the host may read it"
        return Finding("permissions", said, Level.WARNING, f"chmod o-rwx {address.path}")
    if address.mode & ~mode:
        said = f"{words}, and the address has mode={address.mode:04o}, which copying the file takes away"
        do = f"stop its users, chmod {address.mode:04o} {address.path}, and start them: the files beside it follow"
        return Finding("permissions", said, Level.WARNING, do)
    return Finding("permissions", words)


def _settings(raw: sqlite3.Connection, address: SqliteUrl) -> Iterator[Finding]:
    [mode] = raw.execute("PRAGMA journal_mode").fetchone()
    yield Finding(
        "journal mode",
        f"{mode}, synchronous={address.synchronous}",
        Level.OK if mode == "wal" else Level.ERROR,
        "" if mode == "wal" else "stop what has changed it; the next node sets it to wal",
    )
    yield Finding("SQLite", sqlite3.sqlite_version)


def _integrity(raw: sqlite3.Connection) -> Finding:
    ends_at = time.monotonic() + CHECK_FOR
    raw.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS)
    try:
        flaws = [text for (text,) in raw.execute("PRAGMA quick_check(5)") if text != "ok"]
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        words = f"no flaw was found within {CHECK_FOR:.0f} s, and not all of the file was read"
        return Finding("integrity", f"{words} (PRAGMA quick_check reads all of it)")
    except sqlite3.DatabaseError as error:
        flaws = [str(error)]
    finally:
        raw.set_progress_handler(None, 0)
    if not flaws:
        return Finding("integrity", "the file is whole (quick_check)")
    do = "stop all nodes, keep a copy of the file, and restore a backup, or `sqlite3 FILE .recover`"
    return Finding("integrity", f"the file is damaged: {'; '.join(flaws)}", Level.ERROR, do)
