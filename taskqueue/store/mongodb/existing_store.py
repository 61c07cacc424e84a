"""Opens or drops a store that already exists on a server; never creates one."""

from __future__ import annotations

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.store import Store
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.driver_errors import reaching
from taskqueue.store.mongodb.migration import SCHEMA
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import DATABASE, parse
from taskqueue.store.redaction import concealed


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
