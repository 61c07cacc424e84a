"""A connection of PostgreSQL's driver, on which the shared statements of the relational store run."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader

from taskqueue.store.postgresql.add_counts import PostgreSQLCounts
from taskqueue.store.postgresql.dialect import translated
from taskqueue.store.postgresql.message import Answer as Rows
from taskqueue.store.postgresql.message import Message
from taskqueue.store.postgresql.url import PostgreSQLUrl
from taskqueue.store.relational.engine import AddCounts

ANSWERS_WITHIN = 60.0
"""Seconds after which a server that has not answered a statement is given up, and its connection closed."""

_LOOKS_EVERY = 0.1
"""Seconds after which a wait for the server looks at the time, and at signals."""

# The statistics of a server begin anew when it recovers from a crash, also if only one of its sessions has crashed.
_SERVER = """
SELECT concat_ws(' ', pg_postmaster_start_time(), stats_reset), has_table_privilege(%s, 'UPDATE, DELETE, TRUNCATE')
FROM pg_stat_wal
"""

# To a user without rights the server shows but the pid and the name of the application.
_HOLDER = """
SELECT concat_ws(' ', 'the lock is held by pid', pid, nullif(quote_literal(application_name), quote_literal('')),
    'from ' || coalesce(host(client_addr), 'the host of the server'), 'state ' || quote_literal(state),
    to_char(xact_start AT TIME ZONE 'UTC', '"since" YYYY-MM-DD HH24:MI:SS "UTC"'))
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE relation = to_regclass(%s) AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND granted AND mode <> 'AccessShareLock' AND pid <> pg_backend_pid()
ORDER BY xact_start LIMIT 1
"""

Answer = TypeVar("Answer")


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up a server which does not answer in time."""

    answers_within = ANSWERS_WITHIN

    def wait(self, gen: Generator[Any, Any, Answer], *args: Any, **options: Any) -> Answer:  # noqa: ARG002
        """Run the steps of the driver until they end; as the driver does, but no longer than ``answers_within``."""
        return super().wait(_bounded(gen, self.pgconn, self.answers_within), _LOOKS_EVERY)


def _bounded(steps: Generator[Any, Any, Answer], pgconn: Any, seconds: float) -> Generator[Any, Any, Answer]:
    """Yield what the steps yield; when they have waited too long, close the connection and raise the driver's error."""
    until = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > until:
                pgconn.finish()
                raise psycopg.OperationalError(f"no answer within {seconds:g} s")
            wanted = steps.send(ready)
    except StopIteration as last:
        answer: Answer = last.value
        return answer


def is_pooled(raw: psycopg.Connection[Any]) -> bool:
    """Return whether the session is another one than the server opened for this connection, as a pooler's is."""
    [pid] = raw.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    return bool(pid != raw.info.backend_pid)


class PostgreSQLDatabase:
    """One connection and the schema that its statements are about."""

    adds: AddCounts = PostgreSQLCounts()
    evaluates_data = False

    def __init__(self, address: PostgreSQLUrl) -> None:
        options: dict[str, Any] = address.options
        self.raw = BoundedConnection.connect(autocommit=True, prepare_threshold=None, **options)
        self.raw.adapters.register_loader("json", TextLoader)  # the store reads JSON itself
        self._message = Message(self.raw)
        self.schema = address.schema
        self._begun: Rows | None = None
        self._has_arrivals = False
        self.transaction = ""
        """The number that the server gave the last write transaction."""
        self.run = ""
        """Which run of the server answers; it is another one after each crash."""
        self.may_lock = True
        """Whether the user has a right without which nobody takes the store's lock."""

    def execute(self, statement: str, values: Any = ()) -> Rows:
        """Run a statement of the relational store, at the latest when its result is asked for."""
        return self._message.add(translated(statement, self.schema), values)

    def ask(self, statement: str, values: Mapping[str, Any]) -> Rows:
        """Run a statement of PostgreSQL's own, with ``%(name)s``, at the latest when its result is asked for."""
        return self._message.add(statement, values)

    def begin_without_lock(self, statements: Sequence[str]) -> None:
        """Begin a transaction that only adds jobs by these statements."""
        self._message.add_plain(statements)

    def begin(self, statements: Sequence[str]) -> None:
        """Begin a write transaction by these statements, of which the last one reads its number."""
        *settings, number = statements
        self._message.add_plain(settings)
        self._begun = self._message.add(number)

    def read_number(self) -> bool:
        """Note the number of the transaction, by which its end can be looked up; return what else was read with it.

        That is, whether jobs were added without the lock that are not taken in yet.
        """
        if self._begun is not None:
            [self.transaction, self._has_arrivals, _] = self._begun.fetchone()
            self._begun = None
        return self._has_arrivals

    def has_arrivals(self) -> bool:
        """Return whether jobs were added without the lock that are not taken in yet; sends what waits."""
        [has_arrivals] = self.execute("SELECT EXISTS (SELECT 1 FROM jobs WHERE rowid IS NULL)").fetchone()
        return bool(has_arrivals)

    def commit(self, last: Sequence[str]) -> None:
        """Send what waits, these statements and COMMIT as one message."""
        self._message.add_plain([*last, "COMMIT"])
        self._message.send()

    def send(self) -> None:
        """Send the statements that wait."""
        self._message.send()

    def note_server(self) -> None:
        """Note who answers, and spare a pooler what it cannot keep for a transaction."""
        row = self.raw.execute(_SERVER, (f"{self.schema}.store",)).fetchone()
        self.run, self.may_lock = row or ("", True)
        if is_pooled(self.raw):
            self._message.prepares = False

    def fate(self, transaction: str) -> str | None:
        """Return whether a transaction that has ended was ``committed`` or ``aborted``; None if it is not known."""
        try:
            [fate] = self._message.add("SELECT pg_xact_status(%s::xid8)", (transaction,)).fetchone()
        except errors.InvalidParameterValue:  # its number is in the future: it was lost in a crash
            return "aborted"
        return None if fate is None else str(fate)

    def holder(self) -> str:
        """Return in words which session holds the store's lock and since when; an empty text if none does."""
        [words] = self.raw.execute(_HOLDER, (f"{self.schema}.store",)).fetchone() or [""]
        return str(words)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, be it a failed one, or will be after what waits."""
        for text in reversed(self._message.texts):
            if text == "ROLLBACK" or text.startswith("BEGIN "):
                return text != "ROLLBACK"
        return self.raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def undo(self) -> None:
        """End an open transaction as if it had not begun; a lost connection has ended it already."""
        self._message.forget()
        if self.raw.info.transaction_status is TransactionStatus.ACTIVE:  # an exception ended the wait for an answer
            self.raw.close()
        if not self.raw.closed and self.in_transaction:
            self.raw.execute("ROLLBACK")
