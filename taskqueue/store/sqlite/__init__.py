"""The embedded store: all facts about jobs in one SQLite file of this host."""

from collections.abc import Callable
from datetime import datetime

from taskqueue.store.sqlite.store import SqliteStore, host_time
from taskqueue.store.sqlite.url import location

__all__ = ["SqliteStore", "open_sqlite"]


def open_sqlite(url: str, clock: Callable[[], datetime] = host_time) -> SqliteStore:
    """Return the store at ``sqlite:///path?…`` or a bare path; raises ``ConfigError`` or ``StoreUnavailable``."""
    return SqliteStore(location(url), clock=clock)
