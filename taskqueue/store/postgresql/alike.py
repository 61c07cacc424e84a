"""Finds the pending records that are the same job as a new one."""

from __future__ import annotations

from collections.abc import Iterable

from taskqueue.model.record import Record, Status
from taskqueue.model.serializer import same
from taskqueue.store import ALIKE
from taskqueue.store.postgresql.database import PostgreSQLDatabase
from taskqueue.store.relational.columns import COLUMNS
from taskqueue.store.relational.rows import record

_HOLDER = f"SELECT {COLUMNS} FROM jobs WHERE unique_key = ? AND status <= 2"
_PENDING = f"SELECT {COLUMNS} FROM jobs WHERE status IN (0, 1, 2) AND job = ?"
# Texts of equal data have equal lengths, whatever the order of keys.
_AS_LONG = f"{_PENDING} AND length(data) = ?"


def find(database: PostgreSQLDatabase, new: Record, ignore_data: bool) -> list[Record]:
    """Return them as ``Store.alike`` does."""
    if ignore_data:
        rows = database.execute(_PENDING, (new.job,)).fetchall()
    else:
        holder = database.execute(_HOLDER, (new.unique,)).fetchone()
        if holder is not None:
            return [record(holder)]
        rows = database.execute(_AS_LONG, (new.job, len(new.data))).fetchall()
    return chosen(map(record, rows), new, ignore_data)


def chosen(found: Iterable[Record], new: Record, ignore_data: bool) -> list[Record]:
    """Return the pending records of this class that are the same job, in the order of ``Store.alike``."""
    pending = [record for record in found if record.job == new.job]
    alike = [record for record in pending if ignore_data or same(record.data, new.data)]
    return sorted(alike, key=lambda one: (one.status is not Status.PROCESSING, one.created_at, one.id))[:ALIKE]
