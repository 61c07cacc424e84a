"""Rings bells by NOTIFY: one listening connection for the bells of a process, opened with the first of them."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable, Collection
from typing import Any

import psycopg
from psycopg import errors

from taskqueue.errors import ConfigError, TaskqueueError
from taskqueue.store.bell import PLAIN_RING, Bell
from taskqueue.store.fan_out import POLL_PAUSE, FanOut, OpenBells, PollBell, RungBell
from taskqueue.store.postgresql.database import BoundedConnection, is_pooled
from taskqueue.store.postgresql.driver_errors import in_words, reason_of
from taskqueue.store.postgresql.url import DIRECT_OPTION, PostgreSQLUrl

log = logging.getLogger(__name__)

HEARTBEAT = 10.0
"""After this many seconds without a ring, ask the server whether it still listens: a failover closes no socket."""

ENDS_WITHIN = 1.0
"""Seconds within which the thread of closed bells ends, unless it waits for a server that does not respond."""


PAST_POOLER = f"add {DIRECT_OPTION}=postgresql://HOST:PORT of the server itself to the URL"
"""The way out if notifications come from a pooler."""


def notification(schema: str, topics: Collection[str]) -> str:
    """Return the statement that rings these topics of the store in this schema with the commit."""
    return f"SELECT pg_notify('{_channel(schema)}', '{' '.join(sorted(topics))}')"


class NoRinger:
    """Rings nothing after the commit: the transaction has rung with it."""

    reaches_ends = False

    def ring(self, topics: Collection[str], end: bytes = PLAIN_RING) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Bells:
    """Opens the bells of a process; those of its store ring while one of them is open."""

    def __init__(self, address: PostgreSQLUrl, store_id: Callable[[], str]) -> None:
        """``store_id`` returns the id of the store, which distinguishes it from others."""
        self._address = address
        self._store_id = store_id
        self._lock = threading.Lock()
        self._open = OpenBells()
        self._listener: Listener | None = None
        self._is_polled = False
        self._inherited: list[object] = []

    def bell(self, topic: str) -> Bell:
        """Return a bell of the topic that listens from now on; through a pooler, one that is polled."""
        with self._lock:
            return self._open.keep(PollBell() if self._is_polled else self._admitted(topic))

    def close(self) -> None:
        """Close the bells, and wait for their thread."""
        self._open.close(ENDS_WITHIN)

    def reset_after_fork(self) -> None:
        """Use a connection of this process; keep the parent's from being garbage-collected."""
        self._inherited += [self._listener, self._lock]
        self._lock, self._listener = threading.Lock(), None

    def _admitted(self, topic: str) -> PollBell:
        bell = RungBell(topic)
        try:
            if self._listener is None or not self._listener.admit(bell):
                self._listener = Listener(self._address, self._store_id)
                self._listener.admit(bell)
        except NotHeard:
            bell.close()
            self._is_polled = True
            log.warning(
                "store %s: a pooler withholds notifications, so listeners poll every %g s: %s",
                self._address.direct_shown,
                POLL_PAUSE,
                PAST_POOLER,
            )
            return PollBell()
        except BaseException:
            bell.close()
            raise
        return bell


class NotHeard(Exception):
    """A pooler gives each transaction another session, so none receives notifications."""


class Listener:
    """One listening connection, and the thread that rings its bells until the last of them is closed."""

    def __init__(self, address: PostgreSQLUrl, store_id: Callable[[], str]) -> None:
        self._address = address
        self._store_id = store_id
        self._lock = threading.Lock()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._fan_out = FanOut[RungBell](self._listen, self._wake)
        try:
            self._raw = self._connected()
        except BaseException:
            os.close(self._woken)
            raise

    def admit(self, bell: RungBell) -> bool:
        """Ring this bell, too, from now on; return False if the last bell was closed."""
        return self._fan_out.admit(bell)

    def _connected(self) -> psycopg.Connection[Any]:
        raw = listening(self._address, self._store_id)
        raw.add_notify_handler(lambda notify: self._ring(notify.payload))
        return raw

    def _wake(self) -> None:
        """End a wait of the thread; it may have ended by itself, and its descriptor may be another's by now."""
        with self._lock:
            if self._woken >= 0:
                os.eventfd_write(self._woken, 1)

    def _listen(self) -> None:
        try:
            while not self._fan_out.ended.is_set():
                try:
                    self._hear()
                except psycopg.Error as error:
                    self._listen_again(error)
        finally:
            self._raw.close()
            with self._lock:
                os.close(self._woken)
                self._woken = -1

    def _hear(self) -> None:
        """Wait for rings, and ring the bells of their topics."""
        poll = select.poll()
        for descriptor in (self._raw.fileno(), self._woken):
            poll.register(descriptor, select.POLLIN)
        if not poll.poll(HEARTBEAT * 1000) and not self._raw.execute("SELECT pg_listening_channels()").fetchone():
            raise psycopg.OperationalError("the server has forgotten that this session listens")
        self._raw.pgconn.consume_input()
        while (notify := self._raw.pgconn.notifies()) is not None:
            self._ring(notify.extra.decode())

    def _ring(self, topics: str) -> None:
        for bell in self._fan_out.bells:
            if bell.topic in topics.split():
                bell.ring()

    def _listen_again(self, error: psycopg.Error) -> None:
        """Listen on a new connection."""
        self._raw.close()
        failures = (TaskqueueError, NotHeard)
        self._fan_out.open_again("the listening connection", reason_of(error), self._open, failures)

    def _open(self) -> None:
        self._raw = self._connected()


def listening(address: PostgreSQLUrl, store_id: Callable[[], str]) -> BoundedConnection:
    """Return a new connection to the server itself that listens to the store from now on.

    Raises ``NotHeard`` through a pooler, ``ConfigError`` if the server has no store with this id.
    """
    options: dict[str, Any] = address.direct_options
    try:
        raw = BoundedConnection.connect(autocommit=True, prepare_threshold=None, **options)
        try:
            if is_pooled(raw):
                raise NotHeard
            if address.direct:
                _check_store(raw, address, store_id)
            raw.execute(f"LISTEN {_channel(address.schema)}")
        except BaseException:
            raw.close()
            raise
    except psycopg.Error as error:
        raise in_words(address.direct_shown, error) from error
    return raw


def _check_store(raw: psycopg.Connection[Any], address: PostgreSQLUrl, store_id: Callable[[], str]) -> None:
    """Refuse a server or database other than the pooler's: its notifications would be about other jobs."""
    id: str | None = None
    with contextlib.suppress(errors.UndefinedTable):
        [id] = raw.execute(f"SELECT id FROM {address.schema}.store").fetchone() or [None]
    if id != store_id():
        raise ConfigError(
            f"store {address.direct_shown}: {DIRECT_OPTION} names {'no' if id is None else 'another'} store: "
            "name the server and the database that the pooler connects to"
        )


def _channel(schema: str) -> str:
    return f"taskqueue_{schema}"
