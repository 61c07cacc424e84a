"""Runs the calls of a store on one connection of this process to the server, opened when it is first needed."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import psycopg

from taskqueue.model.record import Record
from taskqueue.store.bell import Bell
from taskqueue.store.postgresql import alike, schema
from taskqueue.store.postgresql.bells import Bells, notification
from taskqueue.store.postgresql.database import PostgreSQLDatabase
from taskqueue.store.postgresql.driver_errors import LOCKED, REPEATED, in_words, reason_of
from taskqueue.store.postgresql.url import PostgreSQLUrl
from taskqueue.store.relational.engine import AnyWork, Sync, Work

if TYPE_CHECKING:
    from taskqueue.model.finding import Finding
    from taskqueue.store import Disagreement, Disagreements

Result = TypeVar("Result")

TRIES = 5
"""How often a transaction is run at most if others stand in its way."""

# The lock is taken before the snapshot, which the first query takes: so the transaction sees all that earlier holders
# of the lock have committed, and then one state to its end.
_BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "SET LOCAL synchronous_commit = {sync}",
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL lock_timeout = '2s'",  # of each of the tries; a holder that does nothing is ended after 5 s
    "SET LOCAL idle_in_transaction_session_timeout = '5s'",
    "LOCK TABLE {schema}.store IN EXCLUSIVE MODE",
    "SET LOCAL statement_timeout = '50s'",
    "SELECT pg_current_xact_id()::text",
)
# A transaction of its own, after the lock was released: the sessions that wait for the disk share one flush.
_REACH_THE_DISK = """
BEGIN;
SET LOCAL synchronous_commit = on;
SELECT pg_logical_emit_message(true, 'taskqueue', '');
COMMIT
"""
_SYNC = {Sync.NORMAL: "off", Sync.FULL: "on"}


class Undone(psycopg.OperationalError):
    """The connection was lost, and what the transaction had done with it: it may be run again."""


class Connection:
    """Serialises the threads of a process; every call either works or raises ``StoreUnavailable``."""

    takes_calls_at_once = False

    def __init__(self, address: PostgreSQLUrl) -> None:
        self.address = address
        self.url = address.shown
        self._database: PostgreSQLDatabase | None = None
        self._lock = threading.RLock()
        self._bells = Bells(address)
        self._inherited: list[object] = []
        _INHERITED.add(self)
        with self._in_words():
            self.guarantee = _guarantee(self._opened())

    def read(self, action: Callable[[PostgreSQLDatabase], Result]) -> Result:
        """Return the result of ``action``; it is repeated if the connection was lost."""
        with self._in_words():
            try:
                return self._read(action)
            except psycopg.Error:
                if self._database is None or not self._database.raw.closed:
                    raise
                return self._read(action)

    def write(
        self, level: Sync, body: Callable[[PostgreSQLDatabase], tuple[AnyWork, Result]]
    ) -> tuple[AnyWork, Result]:
        """Run ``body`` as one transaction, again if another one stood in its way, and ring with the commit."""
        with self._in_words():
            for _ in range(1, TRIES):
                with contextlib.suppress(*REPEATED, Undone):
                    return self._write(level, body)
            return self._write(level, body)

    def time(self) -> datetime:
        """Ask the server for its time."""
        return self.read(_time)

    def reach_the_disk(self) -> None:
        """Wait until all committed data would survive a power cut of the server.

        Not tried again on a new connection: a server that has crashed since may have lost the data.
        """
        with self._in_words():
            database = self._opened()
            try:
                database.raw.execute(_REACH_THE_DISK)
            finally:
                database.undo()

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        return self.read(lambda database: alike.find(database, new, ignore_data))

    def bell(self, topic: str) -> Bell:
        with self._in_words():
            return self._bells.bell(topic)

    def diagnose(self) -> list[Finding]:
        from taskqueue.store.postgresql import diagnosis

        return self.read(diagnosis.diagnose)

    def disagreeing(self, limit: int) -> Disagreements:
        from taskqueue.store.postgresql import derived_fields

        return self.read(lambda database: derived_fields.disagreeing(database, limit))

    def write_again(self, work: Work, found: Sequence[Disagreement]) -> int:
        from taskqueue.store.postgresql import derived_fields

        return derived_fields.write_again(work, found)

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        self._bells.close()
        with self._lock:
            database, self._database = self._database, None
            if database is not None:
                database.raw.close()

    def reset_after_fork(self) -> None:
        """Keep the parent's connection from being collected: its socket is the parent's."""
        self._inherited += [self._database, self._lock]
        self._database, self._lock = None, threading.RLock()
        self._bells.reset_after_fork()

    def _read(self, action: Callable[[PostgreSQLDatabase], Result]) -> Result:
        database = self._opened()
        try:
            result = action(database)
            database.send()
            return result
        finally:
            database.undo()  # if the action was interrupted

    def _write(
        self, level: Sync, body: Callable[[PostgreSQLDatabase], tuple[AnyWork, Result]]
    ) -> tuple[AnyWork, Result]:
        database = self._opened()
        try:
            database.begin(self._begin(_SYNC[level]))
            work, result = body(database)
            database.read_number()
            rings = [notification(self.address.schema, work.topics)] if work.topics else []
        except BaseException as error:
            database.undo()
            if isinstance(error, psycopg.Error) and database.raw.closed:
                raise Undone(reason_of(error)) from error
            raise
        try:
            database.commit(rings)
        except BaseException as error:
            database.undo()
            if not (isinstance(error, psycopg.Error) and database.raw.closed):
                raise
            if not self._was_committed(database):
                raise Undone(reason_of(error)) from error
        return work, result

    def _was_committed(self, lost: PostgreSQLDatabase) -> bool:
        """Return whether the last transaction of a lost connection was committed, as far as this can be known.

        A server that has crashed may give the number of a lost transaction again: then a commit is not certain.
        """
        database = self._opened()
        try:
            database.begin(self._begin("off"))  # waits for the lost one, if it has not ended
            fate = database.fate(lost.transaction)
        finally:
            database.undo()
        if fate not in ("committed", "aborted") or (fate == "committed" and database.run != lost.run):
            raise psycopg.OperationalError("the connection was lost during the commit, which may have succeeded")
        return fate == "committed"

    def _begin(self, sync: str) -> list[str]:
        return [statement.format(sync=sync, schema=self.address.schema) for statement in _BEGIN]

    def _opened(self) -> PostgreSQLDatabase:
        if self._database is not None and not self._database.raw.closed:
            return self._database
        database = PostgreSQLDatabase(self.address)
        try:
            schema.prepare(database.raw, self.address.schema, self.address.shown)
            database.note_server()
        except BaseException:
            database.raw.close()
            raise
        self._database = database
        return database

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except psycopg.Error as error:
                raise in_words(self.address.shown, error, self._holder(error)) from error

    def _holder(self, error: psycopg.Error) -> str:
        """Return in words who holds the store's lock, if it was waited for in vain."""
        database = self._database
        if not isinstance(error, LOCKED) or database is None or database.raw.closed:
            return ""
        with contextlib.suppress(psycopg.Error):
            return database.holder()
        return ""


def _time(database: PostgreSQLDatabase) -> datetime:
    [time] = database.raw.execute("SELECT clock_timestamp()").fetchone() or [None]
    assert isinstance(time, datetime)
    return time


def _guarantee(database: PostgreSQLDatabase) -> str:
    """Return in words which faults an acknowledged job survives."""
    row = database.raw.execute(
        "SELECT current_setting('fsync'), current_setting('synchronous_standby_names')"
    ).fetchone()
    fsync, standbys = row or ("on", "")
    if fsync != "on":
        return "an acknowledged job survives the crash of any process, a power cut may lose it (PostgreSQL, fsync=off)"
    if standbys:
        return f"an acknowledged job survives the loss of a server (PostgreSQL, synchronous standbys {standbys})"
    return "an acknowledged job survives a power cut of the server (PostgreSQL)"


_INHERITED: weakref.WeakSet[Connection] = weakref.WeakSet()


def _reset_all() -> None:
    for connection in list(_INHERITED):
        connection.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all)
