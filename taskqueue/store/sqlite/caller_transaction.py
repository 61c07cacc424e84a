"""Adds jobs through the application's own connection, within its transaction."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.store.bell import PLAIN_RING, Ringer
from taskqueue.store.relational.engine import Sync
from taskqueue.store.relational.filters import data_matches
from taskqueue.store.sqlite import schema
from taskqueue.store.sqlite.database import SqliteDatabase
from taskqueue.store.sqlite.engine import SqliteEngine
from taskqueue.store.sqlite.url import SqliteUrl

Result = TypeVar("Result")

_WRONG = "pass an open sqlite3.Connection to the file of the store"


class CallerConnection(SqliteEngine):
    """Works on the caller's connection as ``Connection`` does on its own, with savepoints for transactions.

    The caller's transaction is never ended here.
    """

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self._pid = os.getpid()
        self._lock = threading.RLock()
        super().__init__(SqliteUrl(path=_file_of(raw)))
        self.mode = self.address.path.stat().st_mode & 0o777
        if not schema.check(self._plain(), str(self.address.path)):
            raise ConfigError(
                f"{self.address.path} is not a store yet: open it once with Scheduler({str(self.address.path)!r})"
            )
        raw.create_function("data_matches", 5, data_matches, deterministic=True)

    @property
    def is_open(self) -> bool:
        """Return whether a transaction of the caller is open."""
        return self._raw.in_transaction

    def read(self, action: Callable[[SqliteDatabase], Result]) -> Result:
        """Return the result of ``action``, as the caller's transaction sees it."""
        with self._lock:
            try:
                return action(self._plain())
            except sqlite3.Error as error:
                self.raise_in_words(error)

    def write(self, level: Sync, body: Callable[[SqliteDatabase], Result]) -> Result:  # noqa: ARG002
        """Run ``body`` within the caller's transaction: it is stored when, and as durably as, the caller commits."""
        with self._lock:
            try:
                plain = self._plain()
                if not self._raw.in_transaction:
                    self._begin_for_caller(plain)
                plain.execute("SAVEPOINT taskqueue")
                try:
                    result = body(plain)
                except BaseException:  # the caller's earlier changes stay
                    if self._raw.in_transaction:
                        plain.execute("ROLLBACK TO taskqueue")
                        plain.execute("RELEASE taskqueue")
                    raise
                plain.execute("RELEASE taskqueue")
            except sqlite3.Error as error:
                self.raise_in_words(error)
            return result

    def reach_the_disk(self) -> None:
        """Do nothing: the caller decides when and how durably it commits."""

    def raise_in_words(self, error: sqlite3.Error) -> NoReturn:
        """Raise ``StoreUnavailable`` if the lock could not be obtained; any other error belongs to the caller."""
        if "locked" in str(error) or "busy" in str(error):
            reason = f"another connection writes, or has written since this transaction began ({error})"
            raise StoreUnavailable(
                str(self.address.path), reason, "roll back and begin with BEGIN IMMEDIATE"
            ) from error
        raise error

    def close(self) -> None:
        """Leave the connection to its owner."""

    def _begin_for_caller(self, plain: sqlite3.Connection) -> None:
        """Open a transaction if Python would do so before an INSERT; refuse autocommit, which ends each statement."""
        if self._raw.isolation_level is None or getattr(self._raw, "autocommit", -1) is True:
            raise ConfigError(
                "no transaction is open on the connection, and it commits each statement: "
                "execute BEGIN IMMEDIATE first, or add the job through Scheduler(path)"
            )
        plain.execute(f"BEGIN {self._raw.isolation_level}")

    def _plain(self) -> SqliteDatabase:
        if os.getpid() != self._pid:
            raise ConfigError(
                f"the connection belongs to process {self._pid}: "
                "SQLite connections must not be used after a fork, open one here"
            )
        return cast(SqliteDatabase, _Plain(self._raw))


class LateRinger:
    """Rings when it is closed after the caller's commit, since SQLite does not report that commit.

    If it is not closed then, listeners look by themselves after ``Doorbell.pause``.
    """

    reaches_ends = False
    """What a ring would report may still be rolled back."""

    def __init__(self, folder: Path, connection: CallerConnection) -> None:
        self._folder = folder
        self._connection = connection
        self._due: set[str] = set()

    def ring(self, topics: Collection[str], end: bytes = PLAIN_RING) -> None:  # noqa: ARG002
        """Ring these topics when the caller has committed or rolled back: a ring is only a hint."""
        self._due.update(topics)

    def close(self) -> None:
        """Ring the collected topics if the transaction has ended."""
        if not self._due or self._connection.is_open:
            return
        with contextlib.closing(Ringer(self._folder)) as ringer:  # leaves nothing open if the caller never closes
            ringer.ring(self._due)
        self._due.clear()


class _Plain:
    """The connection without the row factory of its owner."""

    adds = SqliteDatabase.adds
    evaluates_data = SqliteDatabase.evaluates_data
    sends_together = False

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    @property
    def in_transaction(self) -> bool:
        return self._raw.in_transaction

    def execute(self, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        return self._cursor().execute(statement, parameters)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._raw.cursor()
        cursor.row_factory = None
        return cursor


def _file_of(raw: object) -> Path:
    if not isinstance(raw, sqlite3.Connection):
        raise ConfigError(f"connection={raw!r} is not a SQLite connection: {_WRONG}")
    if raw.text_factory is not str:
        raise ConfigError(f"the connection has the text_factory {raw.text_factory!r} instead of str: {_WRONG}")
    try:
        files = {row[1]: row[2] for row in _Plain(raw).execute("PRAGMA database_list")}
    except sqlite3.ProgrammingError as error:
        raise ConfigError(f"the connection cannot be used ({error}): {_WRONG}") from None
    if not files.get("main"):
        raise ConfigError(f"the connection is to a database in memory, which no node can read: {_WRONG}")
    return Path(os.path.realpath(files["main"]))
