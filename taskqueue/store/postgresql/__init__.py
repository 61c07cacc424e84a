"""The relational store in a PostgreSQL database, for clusters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.store.server_clock import ServerClock

try:
    import psycopg  # noqa: F401
except ImportError as missing:  # of the package, or of the library of PostgreSQL that it needs
    raise ConfigError(
        f"a PostgreSQL store needs the package psycopg ({missing}): "
        "pip install 'taskqueue-jobs[postgresql]' 'psycopg[binary]'"
    ) from None

from taskqueue.store.postgresql.connection import Connection
from taskqueue.store.postgresql.store import PostgreSQLStore
from taskqueue.store.postgresql.url import parse


def open_postgresql(url: str, clock: Callable[[], datetime] | None = None) -> PostgreSQLStore:
    """Return the store at a URL. Without ``clock`` the time is that of the server.

    Raises ``ConfigError`` for a URL that cannot be read, ``StoreUnavailable`` without an answer, and
    ``SchemaMismatch``.
    """
    connection = Connection(parse(url))
    now = clock or ServerClock(connection.time, StoreUnavailable, lambda _: nullcontext()).now
    return PostgreSQLStore(connection, now)
