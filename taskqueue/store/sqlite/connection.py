"""Shares one connection to a database file among the threads of a process; closes it before a fork; names errors."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import quote

from taskqueue.errors import StoreReplaced, StoreUnavailable
from taskqueue.store.relational.engine import Sync
from taskqueue.store.relational.filters import data_matches
from taskqueue.store.sqlite import schema
from taskqueue.store.sqlite.database import SqliteDatabase
from taskqueue.store.sqlite.engine import SqliteEngine
from taskqueue.store.sqlite.files import STEP, Files, Journal, State, lock_holder, reuse, write_back
from taskqueue.store.sqlite.url import SqliteUrl, prepare, shares_memory

log = logging.getLogger(__name__)

Result = TypeVar("Result")

BUSY_PAUSE = 0.008
"""Seconds that SQLite itself waits for the write lock. Within one wait it pauses longer after each try, and starves
after many short writers; asking again every few milliseconds does not."""

PAGE = 2048
"""Bytes of a page of a new database. A job changes one page of each table and index it is in, whatever their size; a
row of a job fits a small one (measured at 4,096, the default: an add takes a fifth more, and the journal twice)."""

JOURNAL = 32 * 1024 * 1024
"""Bytes that the journal collects before a commit copies them into the database. That commit takes long; jobs change
the same pages again and again, so that fewer copies are also less work (measured at an eighth, the default: every
165th commit took 10 ms, more than all others together)."""

LONGEST_JOURNAL = JOURNAL + STEP
"""Bytes that the journal keeps: every page has a header there. Beside a long reader it grows beyond, and it is cut when
it starts again after that."""

_RESTART = "restart what uses it"

_LEFT_ALONE = (State.JOURNAL_REPLACED, State.INDEX_REMOVED)
"""States in which closing must not write the journal into a database that others have changed."""

_UNREADABLE = "disk I/O error"
_NO_SPACE = ("full", _UNREADABLE)


class Connection(SqliteEngine):
    """Serialises the threads of a process; every call either works or raises ``StoreUnavailable``."""

    def __init__(self, address: SqliteUrl) -> None:
        super().__init__(address)
        self._name = str(address.path)
        self._most = Sync[address.synchronous.upper()]
        self._lock = threading.RLock()
        self._level: Sync | None = None
        self._raw: SqliteDatabase | None = None
        self._journal: Journal | None = None
        prepare(address)
        self._files = Files(self._name)
        self.mode = address.path.stat().st_mode & 0o777
        _watch_forks()[self] = None
        self.read(schema.check_opened)

    def read(self, action: Callable[[SqliteDatabase], Result]) -> Result:
        """Return the result of ``action``; it is repeated if the file was locked for a moment."""
        with self._lock:
            try:
                if not self._files.are_whole:
                    self._keep_to_names()
                return self._patiently(lambda: action(self._raw or self._open()))
            except sqlite3.Error as error:
                if reads_leniently(self._raw, error):
                    return self.read(action)
                self.raise_in_words(error)

    def write(self, level: Sync, body: Callable[[SqliteDatabase], Result]) -> Result:
        """Run ``body`` as one transaction; raises ``StoreUnavailable`` if it is not certain that it is kept."""
        raw = self._begin(level)
        try:
            result = body(raw)
            raw.execute("COMMIT")
            # Checked after the commit: data in a file that no other process will read are not stored.
            if not self._files.are_still_whole:
                self._keep_to_names()
            if self._journal is not None:
                self._journal.make_room()
        except BaseException as error:
            if self._raw is raw and raw.in_transaction:
                raw.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                self.raise_in_words(error)
            raise
        finally:
            self._lock.release()
        return result

    def _begin(self, level: Sync) -> SqliteDatabase:
        """Start a transaction; other threads wait until the lock is released."""
        self._lock.acquire()
        try:
            raw = self._begun(level)
            # Checked under the write lock: from the first check that misses a file, no process writes into the old one.
            if not self._files.are_whole:
                raw.execute("ROLLBACK")
                self._keep_to_names()
                raw = self._begun(level)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, sqlite3.Error):
                self.raise_in_words(error)
            raise
        return raw

    def reach_the_disk(self) -> None:
        """Wait until all committed data would survive a power cut, if the address asks for it.

        Other processes may write at the same time. Raises ``StoreUnavailable`` if the disk refuses.
        """
        if self._most is Sync.NORMAL:
            return
        try:
            # Unlike on the database, SQLite holds no locks on the journal that opening and closing it could drop.
            journal = os.open(f"{self._name}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(journal)
            finally:
                os.close(journal)
        except FileNotFoundError:  # closed by now, which wrote everything into the database
            return
        except OSError as error:
            reason = f"the last writes may not be on the disk ({error.strerror})"
            way_out = "check space, limits and health of its filesystem"
            raise StoreUnavailable(self._name, reason, way_out, only_reads=True) from error

    def raise_in_words(self, error: sqlite3.Error) -> NoReturn:
        """Raise ``StoreUnavailable`` for the error; re-raise a programming error as it is."""
        if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)):
            raise error
        reads_leniently(self._raw, error)
        text = str(error)
        if "readonly" in text and os.access(self._name, os.W_OK):
            self.close()  # the file was opened read-only, and stays so until it is opened again
        if "locked" in text:
            raise self._locked(text) from error
        if any(words in text for words in _NO_SPACE):
            with self._lock:
                if self._raw is not None and self._files.state() is State.WHOLE:
                    reuse(self._raw)
        raise in_words(self._name, text) from error

    def _locked(self, text: str) -> StoreUnavailable:
        holder = lock_holder(self._name)
        if holder is None:
            way_out = "find the process with `fuser FILE`, or raise ?timeout="
            return StoreUnavailable(self._name, f"stayed locked by another process ({text})", way_out)
        reason = f"stayed locked by {holder} ({text})"
        way_out = "have it end its transaction, end the process, or raise ?timeout="
        return StoreUnavailable(self._name, reason, way_out, held_by=holder.pid)

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            raw, self._raw, self._level = self._raw, None, None
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            if raw is not None:
                if self._files.state() in _LEFT_ALONE:
                    self._files.keep_others_out()
                else:
                    self._files.closed()  # SQLite may remove them now: a thread that opens them must not miss them
                raw.close()
            self._files.closed()

    def before_fork(self) -> None:
        """Close the file: SQLite remembers in memory which locks its process holds, and a child would trust that."""
        self._lock.acquire()
        self.close()

    def after_fork(self) -> None:
        """Allow parent and child to open the file again when they need it."""
        self._lock.release()

    def _open(self) -> SqliteDatabase:
        if self._raw is None:
            raw = sqlite3.connect(
                f"file:{quote(self._name)}?mode=rw",
                uri=True,
                timeout=BUSY_PAUSE,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                factory=SqliteDatabase,
            )
            try:
                self._make_ready(raw)
                raw.execute("PRAGMA user_version").fetchone()  # a journal is opened by the first read
                self._look_at_new_journal(raw)
                self._files.opened()
                if self._files.share_lost_index:
                    self._refuse_lost_index()
                if self._most is Sync.FULL:
                    with contextlib.suppress(OSError):  # without the preallocated room, commits take a little longer
                        self._journal = Journal(f"{self._name}-wal", LONGEST_JOURNAL)
            except BaseException as error:
                self._files.closed()
                raw.close()
                lost_index = unreadable_index(self._name, self._files) if _UNREADABLE in str(error) else None
                if lost_index is not None:
                    raise lost_index from error
                raise
            self._raw = raw
        return self._raw

    def _make_ready(self, raw: sqlite3.Connection) -> None:
        has_tables = schema.check(raw, self._name)
        if not has_tables:
            raw.execute(f"PRAGMA page_size = {PAGE}")
        [journal] = raw.execute("PRAGMA journal_mode = WAL").fetchone()
        if journal != "wal":
            raise StoreUnavailable(
                self._name, f"has a {journal} journal and cannot be switched to a write-ahead log", "use a local disk"
            )
        raw.execute("PRAGMA temp_store = MEMORY")
        [page] = raw.execute("PRAGMA page_size").fetchone()
        raw.execute(f"PRAGMA wal_autocheckpoint = {JOURNAL // page}")
        raw.execute(f"PRAGMA journal_size_limit = {LONGEST_JOURNAL}")
        raw.create_function("data_matches", 5, data_matches, deterministic=True)
        if has_tables:
            return
        raw.execute("BEGIN IMMEDIATE")
        if not schema.check(raw, self._name):
            schema.create(raw)
        raw.execute("COMMIT")

    def _patiently(self, action: Callable[[], Result]) -> Result:
        """Return the result of ``action``, repeated while the database is locked and time allows."""
        deadline = time.monotonic() + self.address.timeout
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() >= deadline:
                    raise

    def _begun(self, level: Sync) -> SqliteDatabase:
        raw = self._raw or self._patiently(self._open)
        if raw.in_transaction:  # an exception from a signal handler came first
            raw.execute("ROLLBACK")
        level = level if self._most is Sync.FULL else Sync.NORMAL
        if level is not self._level:
            raw.execute(f"PRAGMA synchronous = {level.value}")
            self._level = level
        try:
            raw.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._patiently(lambda: raw.execute("BEGIN IMMEDIATE"))
        return raw

    def _look_at_new_journal(self, raw: sqlite3.Connection) -> None:
        """Refuse an empty journal that the index calls full: the right one was removed, and its holder will save it."""
        if self._files.has_empty_journal:
            [_, frames, _] = raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if frames > 0 and self._files.has_empty_journal:  # else another process has just started it
                raise sqlite3.OperationalError(_UNREADABLE)

    def _keep_to_names(self) -> None:
        """Ensure that other processes open the same files; raise if that is impossible."""
        name = self._name
        match self._files.state():
            case State.WHOLE:
                return
            case State.REMOVED:
                raise StoreUnavailable(name, "was removed while it was open", "put it back")
            case State.REPLACED:
                aside = self._files.set_journal_aside()
                note = f"; the journal of the old file is kept as {aside}" if aside else ""
                raise StoreReplaced(name, f"was replaced while it was open{note}", _RESTART)
            case State.JOURNAL_REMOVED:
                self._save()
            case State.JOURNAL_SAVED:
                self.close()
            case State.JOURNAL_REPLACED:
                reason = f"its journal {name}-wal was replaced while it was open, and the last changes may be lost"
                raise StoreReplaced(name, reason, _RESTART)
            case State.INDEX_REMOVED:
                self._refuse_lost_index()

    def _refuse_lost_index(self) -> NoReturn:
        raise StoreReplaced(
            self._name, f"its index {self._name}-shm was removed or replaced while it was open", _RESTART
        )

    def _save(self) -> None:
        """Write a removed journal into the database; raise unless a new one can start in this process."""
        raw = self._raw
        assert raw is not None
        self._patiently(lambda: write_back(raw))
        log.error(
            "the journal %s-wal was removed while it was open: its whole content is in the database now", self._name
        )
        if not self._files.has_index:  # another connection of this process would pass on the lost index
            raise StoreReplaced(
                self._name, f"its journal {self._name}-wal was removed while it was open (nothing is lost)", _RESTART
            )
        self.close()


@functools.cache
def _watch_forks() -> weakref.WeakKeyDictionary[Connection, None]:
    """Return the connections of this process, which are notified of every fork from the first call on."""
    connections: weakref.WeakKeyDictionary[Connection, None] = weakref.WeakKeyDictionary()
    held: list[Connection] = []
    forking = threading.Lock()

    def before() -> None:
        forking.acquire()
        # Other threads add connections at the same time, so iterating over the dictionary itself would fail.
        held.extend(opened for reference in connections.keyrefs() if (opened := reference()) is not None)
        for connection in held:
            connection.before_fork()

    def after() -> None:
        while held:
            held.pop().after_fork()
        forking.release()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
    return connections


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
"""Problems that only concern writes; reads may continue."""


def in_words(store: str, text: str) -> StoreUnavailable:
    """Return the error for the text of SQLite's error."""
    for words, reason, way_out in _PROBLEMS:
        if words in text:
            refused = _unwritable(store) if words in _PERMISSIONS else []
            do = f"make {' and '.join(refused)} writable for this user" if refused else way_out
            return StoreUnavailable(store, f"{reason} ({text})", do, only_reads=words in _WRITES)
    return StoreUnavailable(store, text, "see the text of SQLite's error")


def unreadable_index(store: str, files: Files) -> StoreUnavailable | None:
    """Return the error for a journal whose index cannot be read; None for another reason, such as a full disk."""
    if not shares_memory(Path(store).parent):
        way_out = "use a local disk, or a PostgreSQL or MongoDB store"
        return StoreUnavailable(store, "is on a filesystem where processes cannot share memory", way_out)
    if files.has_empty_journal and files.has_whole_index:
        reason = f"its journal {store}-wal was removed while another process uses it"
        return StoreUnavailable(store, reason, "end that process, or have it use the store to save what it has")
    return None


def _unwritable(path: str) -> list[str]:
    """Return which of the database, its journal, its index and its folder this user cannot write.

    SQLite gives journal and index the permissions that the database has when they are made, and leaves them so.
    """
    files = (path, f"{path}-wal", f"{path}-shm", os.path.dirname(path))
    return [file for file in files if os.path.exists(file) and not os.access(file, os.W_OK)]


def reads_leniently(raw: sqlite3.Connection | None, error: sqlite3.Error) -> bool:
    """Make the connection accept damaged text, at some cost, if the error is about that; return whether this is new."""
    if raw is None or _REFUSAL not in str(error) or raw.text_factory is _lenient:
        return False
    raw.text_factory = _lenient
    return True


def _lenient(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
