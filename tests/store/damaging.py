"""Damage done to what a store keeps, behind its back: by SQL in its file or schema, or by updates in its database."""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from taskqueue.store.mongodb.url import PREFIX

try:
    import psycopg
    from psycopg import sql

    from taskqueue.store.postgresql.url import parse
except ImportError:  # other Pythons run some of these tests without the driver of PostgreSQL
    _TYPE_ERRORS: tuple[type[Exception], ...] = ()
else:
    _TYPE_ERRORS = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.DatatypeMismatch)

MISSING = object()
"""The value of a field that is not there."""


@dataclass(frozen=True)
class Away:
    """A time out of the calendar, in milliseconds, as each store keeps times."""

    at: int


REFUSED = (sqlite3.IntegrityError, DuplicateKeyError, *_TYPE_ERRORS)
"""What a store refuses stays as it is, such as a column that cannot be empty, or that has a type."""

FAR, LONG_AGO = Away(10**17), Away(-(10**17))

Damage = Callable[[str, Any, str, Any], None]
"""Damages a field of what has this id in a table: ``(table, id, field, value)``; a field may be ``column.part``."""

_KEYS = {"jobs": "id", "plans": "name", "leases": "name", "controls": "name", "audit": "number"}


@contextlib.contextmanager
def damager(store_url: str) -> Iterator[Damage]:
    """Give what damages the store at this address, through one connection."""
    if store_url.startswith("mongodb"):
        with MongoClient[dict[str, Any]](store_url) as client:
            yield functools.partial(_damage_document, client.get_default_database())
    elif store_url.startswith("postgresql"):
        address = parse(store_url)
        with psycopg.connect(address.client_url, autocommit=True) as connection:
            yield functools.partial(_damage_typed_row, connection, address.schema)
    else:
        with contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite://"))) as raw:
            yield functools.partial(_damage_row, raw)


def run_sql(store_url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on a relational store and return its rows; ``{}`` stands before each table."""
    if store_url.startswith("postgresql"):
        address = parse(store_url)
        with psycopg.connect(address.client_url, autocommit=True) as connection:
            cursor = connection.execute(statement.format(f"{address.schema}."))
            return cursor.fetchall() if cursor.description else []
    with contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite://"))) as raw, raw:
        return raw.execute(statement.format("")).fetchall()


def _damage_row(raw: sqlite3.Connection, table: str, id: Any, field: str, value: Any) -> None:
    column, _, part = field.partition(".")
    where = f"WHERE {_KEYS[table]} = ?"
    with raw:
        if part:
            [kept] = raw.execute(f"SELECT {column} FROM {table} {where}", (str(id),)).fetchone()
            value = json.dumps({**json.loads(kept), part: value})
        raw.execute(f"UPDATE {table} SET {column} = ? {where}", (_stored(value), str(id)))


def _damage_typed_row(
    connection: psycopg.Connection[Any], schema: str, table: str, id: Any, field: str, value: Any
) -> None:
    column, _, part = field.partition(".")
    key = int(id) if table == "audit" else str(id)
    names = {
        "table": sql.Identifier(schema, table),
        "column": sql.Identifier(column),
        "key": sql.Identifier(_KEYS[table]),
    }
    if part:
        read = sql.SQL("SELECT {column} FROM {table} WHERE {key} = %s").format(**names)
        [kept] = connection.execute(read, (key,)).fetchone() or ["{}"]
        value = json.dumps({**json.loads(kept), part: value})
    connection.execute(
        sql.SQL("UPDATE {table} SET {column} = %s WHERE {key} = %s").format(**names), (_stored(value), key)
    )


def _stored(value: Any) -> Any:
    return None if value is MISSING else value.at if isinstance(value, Away) else value


def _damage_document(database: Database[dict[str, Any]], table: str, id: Any, field: str, value: Any) -> None:
    where = {"_id.name": id} if table == "controls" else {"_id": id}
    change = (
        {"$unset": {field: ""}}
        if value is MISSING
        else {"$set": {field: DatetimeMS(value.at) if isinstance(value, Away) else value}}
    )
    assert database[f"{PREFIX}{table}"].update_one(where, change).matched_count == 1
