"""Damage done to what a store keeps, behind its back: by SQL in its file, or by updates in its database."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.database import Database

from taskqueue.store.mongodb.url import PREFIX

MISSING = object()
"""The value of a field that is not there."""


@dataclass(frozen=True)
class Away:
    """A time out of the calendar, in milliseconds, as each store keeps times."""

    at: int


FAR, LONG_AGO = Away(10**17), Away(-(10**17))

Damage = Callable[[str, Any, str, Any], None]
"""Damages a field of what has this id in a table: ``(table, id, field, value)``."""

_KEYS = {"jobs": "id", "plans": "name", "leases": "name", "controls": "name", "audit": "number"}


@contextlib.contextmanager
def damager(store_url: str) -> Iterator[Damage]:
    """Give what damages the store at this address, through one connection."""
    if store_url.startswith("mongodb"):
        with MongoClient[dict[str, Any]](store_url) as client:
            yield functools.partial(_damage_document, client.get_default_database())
    else:
        with contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite://"))) as raw:
            yield functools.partial(_damage_row, raw)


def _damage_row(raw: sqlite3.Connection, table: str, id: Any, field: str, value: Any) -> None:
    stored = None if value is MISSING else value.at if isinstance(value, Away) else value
    with raw:
        raw.execute(f"UPDATE {table} SET {field} = ? WHERE {_KEYS[table]} = ?", (stored, str(id)))


def _damage_document(database: Database[dict[str, Any]], table: str, id: Any, field: str, value: Any) -> None:
    where = {"_id.name": id} if table == "controls" else {"_id": id}
    change = (
        {"$unset": {field: ""}}
        if value is MISSING
        else {"$set": {field: DatetimeMS(value.at) if isinstance(value, Away) else value}}
    )
    assert database[f"{PREFIX}{table}"].update_one(where, change).matched_count == 1
