"""The embedded store: all facts about jobs in one SQLite file of this host."""

from taskqueue.store.sqlite.store import SqliteStore
from taskqueue.store.sqlite.url import location

__all__ = ["SqliteStore", "open_sqlite"]


def open_sqlite(url: str) -> SqliteStore:
    """Return the store at ``sqlite:///path?…`` or a bare path; raises ``ConfigError`` or ``StoreUnavailable``."""
    return SqliteStore(location(url))
