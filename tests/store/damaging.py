"""Damage done to what a store keeps, behind its back: by SQL in its file, or by updates in its database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient

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


def damager(store_url: str) -> Damage:
    """Return what damages the store at this address."""
    return _Documents(store_url) if store_url.startswith("mongodb") else _Rows(store_url)


class _Rows:
    def __init__(self, store_url: str) -> None:
        self._file = store_url.removeprefix("sqlite://")

    def __call__(self, table: str, id: Any, field: str, value: Any) -> None:
        with contextlib.closing(sqlite3.connect(self._file)) as raw, raw:
            stored = None if value is MISSING else value.at if isinstance(value, Away) else value
            raw.execute(f"UPDATE {table} SET {field} = ? WHERE {_KEYS[table]} = ?", (stored, str(id)))


class _Documents:
    def __init__(self, store_url: str) -> None:
        self._url = store_url

    def __call__(self, table: str, id: Any, field: str, value: Any) -> None:
        with MongoClient[dict[str, Any]](self._url) as client:
            documents = client.get_default_database()[f"{PREFIX}{table}"]
            where = {"_id.name": id} if table == "controls" else {"_id": id}
            change = (
                {"$unset": {field: ""}}
                if value is MISSING
                else {"$set": {field: DatetimeMS(value.at) if isinstance(value, Away) else value}}
            )
            assert documents.update_one(where, change).matched_count == 1
