"""The store for clusters, a MongoDB replica set or a single server: opens, finds or removes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from pymongo.database import Database

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.store import Store
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.driver_errors import reaching
from taskqueue.store.mongodb.migration import SCHEMA
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import DATABASE, PREFIX, MongoUrl, checked_prefix, parse
from taskqueue.store.redaction import concealed


def open_mongodb(
    where: str | Database[Any], prefix: str = PREFIX, clock: Callable[[], datetime] | None = None
) -> Store:
    """Return the store at a URL, or in a database of the caller's client, which stays the caller's to close.

    The name of each collection is ``prefix`` and a noun; a URL sets it with ``taskqueue.prefix=NAME_``. Without
    ``clock`` the time is the server's. Raises ``ConfigError`` for a URL that cannot be read,
    ``StoreUnavailable`` without an answer, and ``SchemaMismatch``.
    """
    if isinstance(where, str):
        return MongoStore(Connection(parse(where)), clock)
    return MongoStore(Connection(MongoUrl.of_database(where, checked_prefix(prefix)), where), clock)


def open_existing(url: str) -> Store | None:
    """Return the store, or None if it does not exist. Raises ``ConfigError`` and ``StoreUnavailable``."""
    connection = Connection(parse(url))
    try:
        with reaching(connection.address.shown, connection.address.timeout):
            is_there = connection.collections.facts.find_one(SCHEMA, {"_id": True}) is not None
    except (ConfigError, StoreUnavailable):
        connection.close()
        raise
    if not is_there:
        connection.close()
        return None
    return MongoStore(connection)


def name_of(url: str) -> str:
    """Return the address of a store for messages, without secrets and with its database in any case."""
    return concealed(url) if parse(url).names_database else f"{concealed(url)} (database {DATABASE})"


def remove(url: str) -> None:
    """Drop the collections of the store at ``url``, with everything in them; other collections of the database stay."""
    connection = Connection(parse(url))
    try:
        with reaching(connection.address.shown, connection.address.timeout):
            for collection in vars(connection.collections).values():
                collection.drop()
    finally:
        connection.close()
