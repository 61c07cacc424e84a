"""Adding jobs inside a transaction that the application has begun itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Protocol

from taskqueue.errors import InvalidOption
from taskqueue.model.record import Record
from taskqueue.model.timestamps import host_time
from taskqueue.store import Store
from taskqueue.store.relational.store import RelationalStore
from taskqueue.store.sqlite.caller_transaction import CallerConnection, LateRinger


class Adder(Protocol):
    """Accepts records."""

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Insert all records and return for each the one that is kept, in order."""


def session_inserts(store: Store, session: Any) -> Adder:
    """Return an adder within the open transaction of a pymongo ``session``; raise ``InvalidOption``."""
    if isinstance(store, RelationalStore):
        raise InvalidOption(
            "session is for MongoDB: on SQLite, add the job through Scheduler(connection=…); "
            "on PostgreSQL, leave it out and add the job after your COMMIT"
        )
    from taskqueue.store.mongodb.store import MongoStore

    assert isinstance(store, MongoStore)
    return store.within(session)


def open_on_connection(connection: sqlite3.Connection) -> Store:
    """Return the store in the file of the application's own connection, through which everything is done.

    Raises ``ConfigError`` if it is not a connection to a store.
    """
    borrowed = CallerConnection(connection)
    return RelationalStore(borrowed, LateRinger(borrowed.address.bells, borrowed), host_time)
