"""Handles the errors of SQLite's driver: explains each with the way out, and lets damaged text be read."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from taskqueue.errors import StoreUnavailable
from taskqueue.store.sqlite.files import Files
from taskqueue.store.sqlite.url import shares_memory

_PROBLEMS = (
    ("file is not a database", "is not a SQLite database", "name another file, or move this one away"),
    ("malformed", "is damaged", "stop what uses it and repair a copy with `sqlite3 FILE .recover`"),
    ("readonly", "cannot be written", "make the file, its -wal and -shm and its folder writable for this user"),
    ("full", "the disk is full", "free space on its filesystem; all acknowledged jobs are kept"),
    ("disk I/O", "the disk failed or refused to write more", "check space, limits and health of its filesystem"),
    ("unable to open", "cannot be opened", "check that this user may read and write file and folder"),
)

_PERMISSIONS = ("readonly", "unable to open")
_REFUSAL = "Could not decode to UTF-8"
_WRITES = ("readonly", "full", "disk I/O")
"""Problems of writes; reads may continue."""


def in_words(store: str, text: str) -> StoreUnavailable:
    """Return the error for the text of SQLite's."""
    for words, reason, way_out in _PROBLEMS:
        if words in text:
            refused = _unwritable(store) if words in _PERMISSIONS else []
            do = f"make {' and '.join(refused)} writable for this user" if refused else way_out
            return StoreUnavailable(store, f"{reason} ({text})", do, only_reads=words in _WRITES)
    return StoreUnavailable(store, text, "see the text of SQLite's error")


def unreadable_index(store: str, files: Files) -> StoreUnavailable | None:
    """Return the error for a journal whose index cannot be read, None where the reason is another, as a full disk."""
    if not shares_memory(Path(store).parent):
        way_out = "use a local disk, or a PostgreSQL or MongoDB store"
        return StoreUnavailable(store, "lies on a filesystem on which processes share no memory", way_out)
    if files.has_empty_journal and files.has_whole_index:
        reason = f"its journal {store}-wal was removed while another process uses it"
        return StoreUnavailable(store, reason, "end that process, or have it use the store: it saves what it has")
    return None


def _unwritable(path: str) -> list[str]:
    """Return which of the database, its journal, its index and its folder this user cannot write.

    SQLite gives journal and index the permissions that the database has when they are made, and leaves them so.
    """
    files = (path, f"{path}-wal", f"{path}-shm", os.path.dirname(path))
    return [file for file in files if os.path.exists(file) and not os.access(file, os.W_OK)]


def reads_leniently(raw: sqlite3.Connection | None, error: sqlite3.Error) -> bool:
    """Let the connection accept damaged text, at some cost, if the error is about that; return whether this is new."""
    if raw is None or _REFUSAL not in str(error) or raw.text_factory is _lenient:
        return False
    raw.text_factory = _lenient
    return True


def _lenient(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
