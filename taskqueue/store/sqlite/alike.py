"""Finds the pending records that are the same job as a new one.

Jobs that ``add_job_once`` added are found by their keys. A store remembers, for each class, up to which row it knows
all others and which these are: rows are numbered in the order in which they come in, as long as the last one is there.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from taskqueue.model import once_key
from taskqueue.model.record import Record, Status
from taskqueue.model.serializer import same
from taskqueue.store import ALIKE
from taskqueue.store.relational.columns import COLUMNS, Row
from taskqueue.store.relational.rows import record

_HOLDER = f"SELECT {COLUMNS} FROM jobs WHERE unique_key = ? AND status <= 2"
_KEYED = (
    f"SELECT {COLUMNS} FROM jobs INDEXED BY jobs_unique WHERE unique_key > ? AND unique_key < ? AND status <= 2 "
    f"ORDER BY status = {int(Status.PROCESSING)} DESC, created_at, id LIMIT {ALIKE}"
)
_OTHERS = "job = ? AND (unique_key IS NULL OR (unique_key <> ? AND NOT (unique_key > ? AND unique_key < ?)))"
_NEWEST = "SELECT rowid, id FROM jobs ORDER BY rowid DESC LIMIT 1"
_IS_THERE = "SELECT 1 FROM jobs WHERE rowid = ? AND id = ?"
_OTHERS_SINCE = (
    f"SELECT id FROM jobs NOT INDEXED WHERE rowid > ? AND status <= 2 AND {_OTHERS} LIMIT {once_key.FEW + 1}"
)
_PENDING = f"SELECT {COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND status <= 2"

# Each status has an index of its own; without its name SQLite would read what has ended, too.
_BY_STATUS = tuple(
    f"FROM jobs INDEXED BY {index} WHERE status = {int(status)} AND "
    for status, index in (
        (Status.PROCESSING, "jobs_running"),
        (Status.WAITING, "jobs_waiting"),
        (Status.POSTPONED, "jobs_postponed"),
    )
)
_ALL_OTHERS = f"{' UNION ALL '.join(f'SELECT id {source} {_OTHERS}' for source in _BY_STATUS)} LIMIT {once_key.FEW + 1}"
_ALL = " UNION ALL ".join(f"SELECT {COLUMNS} {source} job = ?" for source in _BY_STATUS)
# Texts of the same data are equally long, whatever the order of keys.
_ALL_AS_LONG = " UNION ALL ".join(f"SELECT {COLUMNS} {source} job = ? AND length(data) = ?" for source in _BY_STATUS)

KNOWN = 1000
"""Classes that one store remembers at most."""


class Alike:
    """Finds the pending records for which a new one is the same job."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, str], Sequence[str]]] = {}
        self._many: dict[str, int] = {}  # for how many calls more such a class is taken to have many others

    def find(self, raw: sqlite3.Connection, new: Record, ignore_data: bool) -> list[Record]:
        """Return them as ``Store.alike`` says."""
        if not ignore_data:
            holder = raw.execute(_HOLDER, (new.unique,)).fetchone()
            if holder is not None:
                return [record(holder)]
        rows = self._others(raw, new.job)
        if rows is not None:
            rows += raw.execute(_HOLDER, (once_key.of_class(new.job),)).fetchall()
            rows += raw.execute(_KEYED, once_key.range_of(new.job)).fetchall() if ignore_data else []
        elif ignore_data:
            rows = raw.execute(_ALL, (new.job,) * 3).fetchall()
        else:
            rows = raw.execute(_ALL_AS_LONG, (new.job, len(new.data)) * 3).fetchall()
        pending = [other for other in map(record, rows) if other.job == new.job]
        alike = [other for other in pending if ignore_data or same(other.data, new.data)]
        alike.sort(key=lambda other: (other.status is not Status.PROCESSING, other.created_at, other.id))
        return alike[:ALIKE]

    def _others(self, raw: sqlite3.Connection, job: str) -> list[Row] | None:
        """Return the pending rows of the class without a key of ``add_job_once``; None if they are many."""
        calls = self._many.pop(job, 0)
        if calls:
            self._many[job] = calls - 1
            return None
        keys = (job, once_key.of_class(job), *once_key.range_of(job))
        newest = raw.execute(_NEWEST).fetchone()  # first: later rows are read the next time
        last, ids = self._known.pop(job, (None, ()))
        if last is not None and raw.execute(_IS_THERE, last).fetchone() is not None:
            ids = [*ids, *(id for (id,) in raw.execute(_OTHERS_SINCE, (last[0], *keys)))]
        else:
            ids = [id for (id,) in raw.execute(_ALL_OTHERS, keys * 3)]
        if len(ids) > once_key.FEW:
            self._many[job] = once_key.FEW
            return None
        rows = raw.execute(_PENDING, (json.dumps(ids),)).fetchall() if ids else []
        if newest is not None:
            if len(self._known) + len(self._many) >= KNOWN:
                self._known.clear()
                self._many.clear()
            self._known[job] = (newest, [row[0] for row in rows])
        return rows
