"""The tables of a SQLite store, numbered: what this version creates and refuses."""

from __future__ import annotations

import sqlite3

from taskqueue.errors import SchemaMismatch, StoreUnavailable
from taskqueue.store import SCHEMA_VERSION
from taskqueue.store.relational.tables import TABLES


def check(connection: sqlite3.Connection, store: str) -> bool:
    """Return whether the tables are there; raise ``SchemaMismatch`` for other tables."""
    present = version(connection, store)
    if present is None:
        return False
    if present != SCHEMA_VERSION:
        raise SchemaMismatch(store, present, SCHEMA_VERSION)
    return True


def version(connection: sqlite3.Connection, store: str) -> int | None:
    """Return the version of the tables, None without tables; raise ``StoreUnavailable`` if they are not ours."""
    # Tables first: another process may create them, and with them the number, between these two statements.
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    [number] = connection.execute("PRAGMA user_version").fetchone()
    if not tables:
        return int(number) or None
    if not number or len(tables & {"jobs", "waits", "leases"}) < 2:  # a damaged file may lack one
        raise StoreUnavailable(store, "belongs to another program", "name another file")
    return int(number)


def check_opened(connection: sqlite3.Connection) -> None:
    """Read something to detect an unreadable file."""
    connection.execute("SELECT 1 FROM jobs LIMIT 1").fetchone()


def create(connection: sqlite3.Connection) -> None:
    """Create the tables, inside the transaction of the caller."""
    for statement in TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
