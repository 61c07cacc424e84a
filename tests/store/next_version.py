"""The next version of taskqueue: it works with a second schema, whose step was made for the tests."""

from __future__ import annotations

import sqlite3

import pytest

from taskqueue.store import SCHEMA_VERSION, migration
from taskqueue.store.mongodb import migration as mongodb_migration
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.postgresql import migration as postgresql_migration
from taskqueue.store.postgresql import schema as postgresql_schema
from taskqueue.store.sqlite import migration as sqlite_migration
from taskqueue.store.sqlite import schema

NEXT = SCHEMA_VERSION + 1
WHAT = "give each job a color"
COLOR_TYPED_ROWS = """
ALTER TABLE {schema}.jobs ADD COLUMN color TEXT NOT NULL DEFAULT 'red';
CREATE TABLE {schema}.colors (name TEXT);
"""


def install_next_version(patch: pytest.MonkeyPatch) -> None:
    """Have this process work with the next schema until the patch is undone."""
    for module in (migration, mongodb_migration, sqlite_migration, schema, postgresql_migration, postgresql_schema):
        patch.setattr(module, "SCHEMA_VERSION", NEXT)
    patch.setitem(migration.STEPS, NEXT, WHAT)
    patch.setitem(sqlite_migration.STEPS, NEXT, _color_rows)
    patch.setitem(postgresql_migration.STEPS, NEXT, COLOR_TYPED_ROWS)
    patch.setitem(mongodb_migration.STEPS, NEXT, _color_documents)


def _color_rows(raw: sqlite3.Connection) -> None:
    raw.execute("ALTER TABLE jobs ADD COLUMN color TEXT NOT NULL DEFAULT 'red'")
    raw.execute("CREATE TABLE colors (name TEXT)")


def _color_documents(connection: Connection) -> None:
    connection.collections.jobs.update_many({}, {"$set": {"color": "red"}})
