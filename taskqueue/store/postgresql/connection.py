"""Runs the calls of a store on one connection of this process to the server, opened when it is first needed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import errors

from taskqueue.errors import StoreUnavailable
from taskqueue.model.record import Record, replace
from taskqueue.store.arguments import same_jobs
from taskqueue.store.bell import ENDS, NEWS, Bell
from taskqueue.store.postgresql import arrivals, schema
from taskqueue.store.postgresql.bells import Bells, notification
from taskqueue.store.postgresql.database import PostgreSQLDatabase
from taskqueue.store.postgresql.driver_errors import CROSSED, LOCKED, REPEATED, in_words, reason_of
from taskqueue.store.postgresql.roles import Role, missing
from taskqueue.store.postgresql.url import LockUse, PostgreSQLUrl
from taskqueue.store.relational.columns import COLUMNS
from taskqueue.store.relational.engine import Adder, Sync
from taskqueue.store.relational.rows import record
from taskqueue.store.relational.transaction import Transaction

if TYPE_CHECKING:
    from taskqueue.model.finding import Finding
    from taskqueue.store import Disagreement, Disagreements

Result = TypeVar("Result")

TRIES = 5
"""Maximum number of times a transaction is run if others stand in its way."""

LOCK_WAIT = 10.0
"""Seconds for which a call waits for the store's lock, in one go: a second try would be behind all others that wait."""

KEY_PAUSE = 0.4
"""Seconds for which others have the lock before a transaction is run again that waited for a unique key: an application
is adding it in a transaction that is still open."""

COMPETES = 0.002
"""Whoever has waited this long, in seconds, for the store's lock shares it for ``SHARES_FOR`` seconds where it can."""

SHARES_FOR = 30.0

NUMBERED_AFTER = 0.25
"""After how many seconds, about, a session numbers the events of plain claims and outcomes while it shares the lock."""

READ_AFTER = 0.02
"""How old such events become at least, in seconds, before a reader numbers them that has just done so."""

READ_WAIT = 0.1
"""After how many seconds at most a reader waits for the store's lock to number them; until then it only tries."""

# The lock is taken before the first query takes the snapshot: so the transaction sees everything that earlier holders
# of the lock have committed, and this one state to its end.
_BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "SET LOCAL synchronous_commit = {sync}",
    "SET LOCAL statement_timeout = 0",
    f"SET LOCAL lock_timeout = '{LOCK_WAIT:g}s'",  # the server ends a holder that is idle for 5 s
    "SET LOCAL idle_in_transaction_session_timeout = '5s'",
    "SET LOCAL tcp_user_timeout = '5s'",  # ends a holder that reads no answers, which the other limits do not
    "LOCK TABLE {schema}.store IN EXCLUSIVE MODE{nowait}",
    "SET LOCAL statement_timeout = '50s'",
    (
        "SELECT pg_current_xact_id()::text, EXISTS (SELECT 1 FROM {schema}.jobs WHERE rowid IS NULL), "
        "set_config('lock_timeout', '100ms', true)"
    ),
)
_BEGIN_WITHOUT_LOCK = (
    "BEGIN ISOLATION LEVEL READ COMMITTED",
    "SET LOCAL synchronous_commit = on",
    "SET LOCAL statement_timeout = '50s'",
    "SET LOCAL idle_in_transaction_session_timeout = '5s'",
)
# One message: nobody can leave the transaction open.
_BEGIN_PLAIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED",
    "SET LOCAL synchronous_commit = {sync}",
    "SET LOCAL statement_timeout = '50s'",
    f"SET LOCAL lock_timeout = '{LOCK_WAIT:g}s'",
    "SET LOCAL tcp_user_timeout = '5s'",
    "SET LOCAL plan_cache_mode = force_generic_plan",  # to plan such a statement takes longer than to run it
    "LOCK TABLE {schema}.store IN {mode} MODE",
)
# Sessions that notify commit one after the other, so they must not wait for the disk then.
_RING = "SET LOCAL synchronous_commit = off"
# In its own transaction, after the lock was released: sessions that wait for the disk share one flush.
_REACH_THE_DISK = """
BEGIN;
SET LOCAL synchronous_commit = on;
SELECT pg_logical_emit_message(true, 'taskqueue', '');
COMMIT
"""
_SYNC = {Sync.NORMAL: "off", Sync.FULL: "on"}

_HOLDER = f"SELECT {COLUMNS} FROM jobs WHERE unique_key = ? AND status <= 2"
_PENDING = f"SELECT {COLUMNS} FROM jobs WHERE status IN (0, 1, 2) AND job = ?"
# Texts of equal data have equal lengths, whatever the order of keys.
_AS_LONG = f"{_PENDING} AND length(data) = ?"


class Undone(psycopg.OperationalError):
    """The connection was lost, and with it what the transaction had done: it may be run again."""


class Arrived(Exception):
    """Jobs were added without the lock: the body runs again after they have been taken in."""


class Connection:
    """Serialises the threads of a process; every call either works or raises ``StoreUnavailable``."""

    takes_calls_at_once = False
    read_wait = READ_WAIT

    def __init__(self, address: PostgreSQLUrl) -> None:
        self.address = address
        self.url = address.shown
        self._database: PostgreSQLDatabase | None = None
        self._lock = threading.RLock()
        self._bells = Bells(address, self.identity)
        self._inherited: list[object] = []
        self._identity: str | None = None
        self._committed = threading.local()
        """The run of the server that committed the last transaction of each thread."""
        self._shares_until = math.inf if address.lock is LockUse.SHARED else 0.0
        self._numbers_at = self._numbered_at = 0.0
        self.may_lock = True
        """Whether the user may take the store's lock, which everything except adding and reading needs."""
        _INHERITED.add(self)
        with self._in_words(None):
            self.guarantee = _guarantee(self._opened())

    def read(self, action: Callable[[PostgreSQLDatabase], Result]) -> Result:
        """Return the result of ``action`` after taking in all jobs; it is repeated if the connection was lost.

        A user who may not take the store's lock reads the jobs that others have taken in.
        """
        if not self.may_lock:
            return self.look(action)
        result, has_arrivals = self.look(lambda database: (action(database), database.has_arrivals()))
        if has_arrivals:
            self.write(Sync.NORMAL, _nothing)
            result = self.look(action)
        return result

    def look(self, action: Callable[[PostgreSQLDatabase], Result]) -> Result:
        """Return the result of ``action`` as ``read`` does, but do not look for jobs to take in."""
        with self._in_words(Role.READ):
            try:
                return self._read_once(action)
            except psycopg.Error:
                if self._database is None or not self._database.raw.closed:
                    raise
                return self._read_once(action)

    def write(
        self, level: Sync, body: Callable[[PostgreSQLDatabase], tuple[Transaction, Result]]
    ) -> tuple[Transaction, Result]:
        """Run ``body`` as one transaction, again if another one was in its way, and ring with the commit."""
        with self._in_words(Role.NODE):
            give_up_at = time.monotonic() + LOCK_WAIT
            for _ in range(1, TRIES):
                try:
                    return self._write(level, body)
                except errors.LockNotAvailable:
                    if time.monotonic() >= give_up_at:
                        raise
                    time.sleep(KEY_PAUSE)
                except (*REPEATED, Undone):
                    pass
            return self._write(level, body)

    def plainly(
        self, level: Sync, statement: str, values: Mapping[str, Any], topics: Collection[str] = ()
    ) -> list[Any] | None:
        """Run a statement that changes only rows of its claims as a transaction, and ring after it; return its rows.

        None if it is not known whether it was committed, or another session has changed these rows.
        """
        with self._in_words(Role.NODE):
            database = self._opened()
            is_alone = time.monotonic() >= self._shares_until
            mode = "EXCLUSIVE" if is_alone else "ROW SHARE"
            settings = [each.format(sync=_SYNC[level], schema=self.address.schema, mode=mode) for each in _BEGIN_PLAIN]
            rings = [_RING, notification(self.address.schema, topics)] if topics else []
            try:
                rows = database.plainly(settings, statement, values, rings, is_alone=is_alone)
            except psycopg.Error as error:
                if not (database.raw.closed or isinstance(error, CROSSED)):
                    raise
                return None
            finally:
                database.undo()
            if not is_alone:
                self._number_old()
            elif database.waited >= COMPETES:
                self._shares_until = time.monotonic() + SHARES_FOR
            if is_alone and database.numbers_ends and not topics:
                with contextlib.suppress(psycopg.Error):  # the caller needs to know what was committed
                    database.raw.execute(f"{_RING};{notification(self.address.schema, (NEWS, ENDS))}")
            return rows

    def number_events(self) -> None:
        """Give all present events numbers, or find that another one of a crowd of readers has done so."""
        began = time.monotonic()
        waits_at = began + self.read_wait * random.uniform(0.5, 1)
        while self.may_lock and (age := self.look(PostgreSQLDatabase.age_of_events)) is not None:
            now = time.monotonic()
            if age < now - began - READ_AFTER:
                return  # the event came after the call
            if age >= READ_AFTER or now - self._numbered_at >= READ_AFTER:
                self._numbered_at = now
                try:
                    if self._number(waits=now >= waits_at):
                        return
                except StoreUnavailable:  # as long as nobody can write, others can read
                    return
                age = READ_AFTER * random.uniform(-0.5, 0.5)  # so a crowd does not try again at the same time
            time.sleep(READ_AFTER - age)

    def within(self, session: Any, loop: asyncio.AbstractEventLoop | None) -> Adder:
        """Return an adder for the open transaction of an application's session."""
        from taskqueue.store.postgresql.caller_transaction import CallerInserts
        from taskqueue.store.postgresql.sessions import run_on

        return CallerInserts(self.address, self.identity(), run_on(session, loop))

    def add_without_lock(self, records: Sequence[Record]) -> list[Record]:
        """Add records that change no other row, as ``Store.add``; whoever takes the lock next takes them in."""
        with self._in_words(Role.ADD):
            self.identity()
            try:
                return self._add_once(records)
            except psycopg.Error:
                if self._database is None or not self._database.raw.closed:
                    raise
                again = zip(records, self._add_once(records), strict=True)
                return [_as_first_added(new, stored) for new, stored in again]

    def identity(self) -> str:
        """Return the id of the store, which distinguishes it from others."""
        if self._identity is None:
            self._identity = self.look(_identity)
        return self._identity

    def time(self) -> datetime:
        """Ask the server for its time."""
        return self.look(_time)

    def reach_the_disk(self) -> None:
        """Wait until all committed data would survive a power cut of the server.

        It fails if the server that has committed them is another one by now, or has crashed since: it may have lost
        them, even if another thread has opened a new connection.
        """
        with self._in_words(Role.NODE):
            database = self._opened()
            if database.run != getattr(self._committed, "run", database.run):
                raise psycopg.OperationalError("it has restarted before the last writes were on its disk")
            try:
                database.raw.execute(_REACH_THE_DISK)
            finally:
                database.undo()

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        return self.read(lambda database: _alike(database, new, ignore_data))

    def bell(self, topic: str) -> Bell:
        with self._in_words(Role.READ):
            return self._bells.bell(topic)

    def diagnose(self) -> list[Finding]:
        from taskqueue.store.postgresql import diagnosis

        return [*self.look(diagnosis.diagnose), diagnosis.notifications(self.address, self.identity)]

    def strains(self) -> list[Finding]:
        from taskqueue.store.postgresql import diagnosis

        return self.look(diagnosis.strains)

    def disagreeing(self, limit: int) -> Disagreements:
        from taskqueue.store.postgresql import derived_fields

        return self.look(lambda database: derived_fields.disagreeing(database, limit))

    def write_again(self, work: Transaction, found: Sequence[Disagreement]) -> int:
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
        """Keep the parent's connection from being garbage-collected, since its socket belongs to the parent."""
        self._inherited += [self._database, self._lock]
        self._database, self._lock = None, threading.RLock()
        self._bells.reset_after_fork()

    def _read_once(self, action: Callable[[PostgreSQLDatabase], Result]) -> Result:
        database = self._opened()
        try:
            result = action(database)
            database.send()
            return result
        finally:
            database.undo()  # if the action was interrupted

    def _add_once(self, records: Sequence[Record]) -> list[Record]:
        from taskqueue.store.postgresql.caller_transaction import CallerInserts
        from taskqueue.store.postgresql.sessions import percent

        database = self._opened()
        try:
            database.begin_without_lock(_BEGIN_WITHOUT_LOCK)
            inserts = CallerInserts(
                self.address, self.identity(), lambda statement, values: database.ask(percent(statement), values)
            )
            stored = inserts.add(records)
            database.commit([])
            return stored
        finally:
            database.undo()

    def _write(
        self, level: Sync, body: Callable[[PostgreSQLDatabase], tuple[Transaction, Result]], nowait: str = ""
    ) -> tuple[Transaction, Result]:
        try:
            return self._write_once(level, body, nowait, takes_in=False)
        except Arrived:
            return self._write_once(level, body, nowait, takes_in=True)

    def _write_once(
        self,
        level: Sync,
        body: Callable[[PostgreSQLDatabase], tuple[Transaction, Result]],
        nowait: str,
        *,
        takes_in: bool,
    ) -> tuple[Transaction, Result]:
        database = self._opened()
        try:
            database.begin(self._begin(_SYNC[level], nowait))
            topics = self._taken_in(database, level) if takes_in else set()
            work, result = body(database)
            if database.read_number() and not takes_in:
                raise Arrived
            topics |= work.topics
            if database.numbers_ends:  # a user who may only read has heard of them, and could not read them
                topics |= {NEWS, ENDS}
            rings = [notification(self.address.schema, topics)] if topics else []
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
        self._committed.run = database.run
        return work, result

    def _number(self, *, waits: bool) -> bool:
        """Give events numbers; return False if others have the lock, unless this ``waits`` for it."""
        if waits:
            self.write(Sync.NORMAL, _nothing)
            return True
        with self._in_words(Role.NODE):
            try:
                self._write(Sync.NORMAL, _nothing, " NOWAIT")
            except (*REPEATED, Undone):
                return False
        return True

    def _number_old(self) -> None:
        """Give old events numbers; sessions look at different times, so that one of them does it."""
        now = time.monotonic()
        if now >= self._numbers_at:
            self._numbers_at = now + NUMBERED_AFTER * random.uniform(0.5, 1.5)
            with contextlib.suppress(StoreUnavailable):  # the caller needs to know what was committed
                if (self.look(PostgreSQLDatabase.age_of_events) or 0.0) >= NUMBERED_AFTER:
                    self.write(Sync.NORMAL, _nothing)

    def _taken_in(self, database: PostgreSQLDatabase, level: Sync) -> set[str]:
        """Take in jobs added without the lock, many of them in transactions of their own; return the topics."""
        topics: set[str] = set()
        is_all = False
        while not is_all:
            rung, is_all = arrivals.take_in(database)
            topics |= rung
            if not is_all:
                database.commit([])
                database.begin(self._begin(_SYNC[level]))
        return topics

    def _was_committed(self, lost: PostgreSQLDatabase) -> bool:
        """Return whether the last transaction of a lost connection was committed, as far as this can be known.

        A server that has crashed may give the number of a lost transaction again: then a commit is not certain.
        """
        database = self._opened()
        try:
            database.begin(self._begin("off"))  # waits for the lost transaction, if it has not ended
            fate = database.fate(lost.transaction)
        except REPEATED:  # looking again would not help; the caller must not run it again
            fate = None
        finally:
            database.undo()
        if fate not in ("committed", "aborted") or (fate == "committed" and database.run != lost.run):
            raise psycopg.OperationalError("the connection was lost during the commit, which may have succeeded")
        return fate == "committed"

    def _begin(self, sync: str, nowait: str = "") -> list[str]:
        return [statement.format(sync=sync, schema=self.address.schema, nowait=nowait) for statement in _BEGIN]

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
        self._database, self.may_lock = database, database.may_lock
        return database

    @contextlib.contextmanager
    def _in_words(self, role: Role | None) -> Iterator[None]:
        """Raise the driver's errors as errors of the store; ``role`` has the rights that are needed, if it is known."""
        with self._lock:
            try:
                yield
            except psycopg.Error as error:
                grant = missing(role, self.address.options.get("user", "USER"))
                raise in_words(self.address.shown, error, self._holder(error), grant) from error

    def _holder(self, error: psycopg.Error) -> str:
        """Return in words who holds the store's lock, if waiting for it failed."""
        database = self._database
        if not isinstance(error, LOCKED) or database is None or database.raw.closed:
            return ""
        with contextlib.suppress(psycopg.Error):
            return database.holder()
        return ""


def _as_first_added(new: Record, stored: Record) -> Record:
    """Return the record that a second try found; what the first try added has its id and time, and is new."""
    return replace(stored, existed=stored.existed and stored.created_at != new.created_at)


def _nothing(database: PostgreSQLDatabase) -> tuple[Transaction, None]:
    """Do nothing besides what each transaction does."""
    return Transaction(database, tells_ends=False), None


def _alike(database: PostgreSQLDatabase, new: Record, ignore_data: bool) -> list[Record]:
    """Return the pending records that are the same job as a new one, as ``Store.alike`` does."""
    if ignore_data:
        rows = database.execute(_PENDING, (new.job,)).fetchall()
    else:
        holder = database.execute(_HOLDER, (new.unique,)).fetchone()
        if holder is not None:
            return [record(holder)]
        rows = database.execute(_AS_LONG, (new.job, len(new.data))).fetchall()
    return same_jobs(map(record, rows), new, ignore_data)


def _identity(database: PostgreSQLDatabase) -> str:
    [identity] = database.execute("SELECT id FROM store").fetchone() or [""]
    return str(identity)


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
