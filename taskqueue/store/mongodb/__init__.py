"""The store for clusters: a MongoDB replica set, or a single server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from pymongo.database import Database

from taskqueue.store import Store
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import PREFIX, MongoUrl, checked_prefix, parse


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
