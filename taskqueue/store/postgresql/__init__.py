"""The relational store in a PostgreSQL database, for clusters: opens, finds or removes it; runs plain claims apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from datetime import datetime

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.recovered_copy import ORIGIN
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.unique_period import PERIOD
from taskqueue.store import Claim, ClaimRequest, Event, Settlement
from taskqueue.store.server_clock import ServerClock

try:
    import psycopg
except ImportError as missing:  # psycopg itself, or the PostgreSQL library that it needs
    raise ConfigError(
        f"a PostgreSQL store needs the package psycopg ({missing}): "
        "pip install 'taskqueue-jobs[postgresql]' 'psycopg[binary]'"
    ) from None

from taskqueue.store.postgresql import plain, schema
from taskqueue.store.postgresql.bells import NoRinger
from taskqueue.store.postgresql.connection import Connection
from taskqueue.store.postgresql.database import connected
from taskqueue.store.postgresql.driver_errors import in_words
from taskqueue.store.postgresql.url import LockUse, parse
from taskqueue.store.relational.engine import Sync
from taskqueue.store.relational.settlements import settle
from taskqueue.store.relational.store import RelationalStore
from taskqueue.store.relational.transaction import Transaction

MOST_GENERAL = 15
"""Maximum number of claims in a row that go the general way after a plain one was refused, which is the first of them.

It is one after the first refusal, and about twice as many after each further one.
"""


def open_postgresql(url: str, clock: Callable[[], datetime] | None = None) -> PostgreSQLStore:
    """Return the store at a URL. Without ``clock``, the time is the server's.

    Raises ``ConfigError`` for a URL that cannot be read, ``StoreUnavailable`` without an answer, and
    ``SchemaMismatch``.
    """
    connection = Connection(parse(url))
    now = clock or ServerClock(connection.time, StoreUnavailable, lambda _: nullcontext()).now
    return PostgreSQLStore(connection, now)


def open_existing(url: str) -> PostgreSQLStore | None:
    """Return the store, None if it does not exist. Raises ``ConfigError`` and ``StoreUnavailable``."""
    address = parse(url)
    try:
        with closing(connected(address)) as raw:
            if schema.version(raw, address.schema, address.shown) is None:
                return None
    except psycopg.Error as error:
        raise in_words(address.shown, error) from error
    return open_postgresql(url)


def name_of(url: str) -> str:
    """Return the address of a store for messages, without secrets."""
    return parse(url).shown


def remove(url: str) -> None:
    """Drop the schema of the store at ``url`` with everything in it; other schemas of the database stay."""
    address = parse(url)
    try:
        with closing(connected(address)) as raw:
            for is_last in (False, False, True):
                try:
                    raw.execute(f"DROP SCHEMA IF EXISTS {address.schema} CASCADE")
                    return
                except psycopg.errors.DeadlockDetected:  # with a process that uses the store, or whose session ends
                    if is_last:
                        raise
    except psycopg.Error as error:
        raise in_words(address.shown, error) from error


class PostgreSQLStore(RelationalStore):
    """Keeps jobs in the tables of one schema."""

    def __init__(self, connection: Connection, clock: Callable[[], datetime]) -> None:
        super().__init__(connection, NoRinger(), clock)
        self._connection = connection
        self._lock_use = connection.address.lock
        self._general_claims = self._pause_of_plain = 0
        self._in_doubt: set[JobId] = set()
        """Jobs whose plain outcomes may be written, although their caller has no answer."""

    def claim(self, holder: Holder, demand: ClaimRequest, now: datetime, until: datetime) -> Claim:
        if self._claims_plainly():
            claim = plain.claim(self._connection, holder, demand, now, until)
            if claim is not None and claim.has_more and not claim.records:  # others were just claiming
                claim = plain.claim(self._connection, holder, demand, now, until)
            if claim is not None and (claim.records or not claim.has_more):
                self._pause_of_plain = 0
                return claim
            self._pause_of_plain = min(2 * self._pause_of_plain + 1, MOST_GENERAL)
            self._general_claims = self._pause_of_plain
        self._general_claims = max(0, self._general_claims - 1)
        return super().claim(holder, demand, now, until)

    def _claims_plainly(self) -> bool:
        """Return whether a plain claim may find what it needs: the last general one took jobs of one queue alone."""
        if self._lock_use is LockUse.ADAPTIVE:
            return self._general_claims == 0 and self._claim_cache.only is not None
        return self._lock_use is LockUse.SHARED

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> set[JobId]:
        if self._lock_use is LockUse.EXCLUSIVE:
            return super().settle(settlements, now)
        accepted = plain.settle(self._connection, settlements, now, self._in_doubt)
        others = [settlement for settlement in settlements if settlement.after.id not in accepted]
        if others:
            try:
                accepted |= self._write(Sync.FULL, lambda work: self._settle_generally(work, others, now))
            except BaseException:
                self._in_doubt |= accepted  # the caller does not know of them
                raise
        self._in_doubt.difference_update(settlement.after.id for settlement in settlements)
        return accepted

    def _settle_generally(self, work: Transaction, others: Sequence[Settlement], now: datetime) -> set[JobId]:
        """Write outcomes, and look in the same transaction which refused ones were written when an answer was lost."""
        accepted = settle(work, others, now)
        refused = [new for new in others if new.after.id in self._in_doubt and new.after.id not in accepted]
        return accepted | plain.done_before(work, refused)

    def events(self, cursor: str | None, limit: int = 1000) -> tuple[list[Event], str]:
        self._connection.number_events()
        return super().events(cursor, limit)

    def events_of(self, id: JobId, since: datetime, limit: int) -> list[Event]:
        self._connection.number_events()
        return super().events_of(id, since, limit)

    def cursor_at(self, at: datetime) -> str:
        self._connection.number_events()
        return super().cursor_at(at)

    def add(self, records: Sequence[Record]) -> list[Record]:
        if self._connection.may_lock or not all(map(_is_inserted_alone, records)):
            return super().add(records)
        return self._connection.add_without_lock(records)


def _is_inserted_alone(new: Record) -> bool:
    """Return whether the add of a record changes no other row."""
    return PERIOD not in new.given and ORIGIN not in new.given and new.status is not Status.PROCESSING
