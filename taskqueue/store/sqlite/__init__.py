"""The embedded store: all facts about jobs in one SQLite file of this host."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from taskqueue.model.timestamps import host_time
from taskqueue.store.bell import Ringer
from taskqueue.store.relational.store import RelationalStore
from taskqueue.store.sqlite.connection import Connection
from taskqueue.store.sqlite.url import location


def open_sqlite(url: str, clock: Callable[[], datetime] = host_time) -> RelationalStore:
    """Return the store at ``sqlite:///path?…`` or a bare path. Raises ``ConfigError`` or ``StoreUnavailable``."""
    address = location(url)
    return RelationalStore(Connection(address), Ringer(address.bells), clock)
