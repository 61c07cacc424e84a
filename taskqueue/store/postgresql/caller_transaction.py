"""Adds jobs within a transaction of the application's own connection, without the store's lock: ``arrivals``.

The statements only insert, and none of them fails for a job that is refused: the application's earlier changes stay.
For a user who may not take the lock, the store does this in a transaction of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from taskqueue.errors import InvalidOption, SchemaMismatch, StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import moment
from taskqueue.model.unique_period import PERIOD, keeps_out
from taskqueue.store import SCHEMA_VERSION
from taskqueue.store.arguments import existing, same_jobs
from taskqueue.store.bell import NEWS, WORK
from taskqueue.store.postgresql.bells import notification
from taskqueue.store.postgresql.roles import KNOWN_TO_ADD, Role, missing
from taskqueue.store.postgresql.schema import types_of_jobs
from taskqueue.store.postgresql.sessions import Run, failed_transaction
from taskqueue.store.postgresql.url import PostgreSQLUrl
from taskqueue.store.relational.columns import ALL_COLUMNS, ALL_NAMES, NAMES, whole_row
from taskqueue.store.relational.rows import record
from taskqueue.store.tries import Tries

_TYPES = types_of_jobs()
_VALUES = ", ".join(f"CAST(new.{name} AS {_TYPES[name]})" for name in ALL_NAMES)
_FIELDS = ", ".join(f"{name} {'TEXT' if _TYPES[name] == 'JSON' else _TYPES[name]}" for name in ALL_NAMES)
# Tables and rights are checked first: a statement that fails would end the transaction.
_RIGHTS = """
SELECT current_database(), current_user, count(jobs.oid),
    coalesce(bool_and(has_schema_privilege(store.relnamespace, 'USAGE') AND has_table_privilege(store.oid, 'SELECT')
        AND has_table_privilege(jobs.oid, 'INSERT') AND has_column_privilege(jobs.oid, 'id', 'SELECT')), FALSE),
    coalesce(bool_and(has_table_privilege(jobs.oid, 'SELECT')), FALSE)
FROM pg_class AS store JOIN pg_class AS jobs USING (relnamespace)
WHERE store.relname = 'store' AND jobs.relname = 'jobs'
    AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = CAST(:schema_name AS TEXT))
"""
_INSERT = f"""
WITH added AS (
    INSERT INTO {{schema}}.jobs ({ALL_COLUMNS}, rowid) SELECT {_VALUES}, NULL
    FROM {{schema}}.store, json_to_recordset(CAST(CAST(:records AS TEXT) AS JSON)) AS new ({_FIELDS})
    WHERE store.id = :store_id AND store.schema = {SCHEMA_VERSION} ON CONFLICT DO NOTHING RETURNING id
)
SELECT store.id, store.schema, (SELECT string_agg(id, ' ') FROM added), CAST(({{ring}} FROM added LIMIT 1) AS TEXT)
FROM {{schema}}.store
"""
_AT_ONCE = 500
"""Maximum number of records in one statement."""
_ALL = ", ".join(f"CAST({name} AS TEXT)" if _TYPES[name] == "JSON" else name for name in NAMES)
_JOBS = "SELECT {columns} FROM {schema}.jobs"
_PRESENT = f"{_JOBS} WHERE id = CAST(:id AS TEXT) OR unique_key = CAST(:unique_key AS TEXT) AND status <= 2"
_OF_PERIOD = f"{_JOBS} WHERE period = CAST(:unique_key AS TEXT)"
_PENDING = f"{_JOBS} WHERE status IN (0, 1, 2) AND job = CAST(:job AS TEXT)"
_AS_LONG = f"{_PENDING} AND length(data) = CAST(:length AS BIGINT)"


class CallerInserts:
    """Adds records inside a transaction; with its commit they are there, and bells ring."""

    def __init__(self, address: PostgreSQLUrl, store_id: str, run: Run) -> None:
        """Raise ``InvalidOption`` for another database, ``StoreUnavailable`` for a user who may not add jobs."""
        self._shown = address.shown
        self._schema = address.schema
        self._store_id = store_id
        self._run = run
        self._reads_jobs = self._check_database()

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Insert all records and return the stored record for each, in order, as the transaction sees it.

        Raises ``DuplicateId``, and the driver's own errors: the transaction is the caller's, who may repeat it.
        """
        first: dict[JobId, Record] = {}
        for new in records:
            first.setdefault(new.id, new)
        holders = {new.id: self._present(new) for new in first.values() if PERIOD in new.given}
        free = [new for new in first.values() if holders.get(new.id) is None]
        ordered = sorted(free, key=lambda new: new.unique or "")  # such calls never deadlock
        answers = [self._insert(ordered[start : start + _AT_ONCE]) for start in range(0, len(ordered), _AT_ONCE)]
        inserted = {id for answer in answers for id in self._inserted(answer)}
        return [new if new is first[new.id] and str(new.id) in inserted else self._kept(new) for new in records]

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which a new one is the same job, as the transaction sees them."""
        if ignore_data:
            return same_jobs(self._found(new, _PENDING, {"job": new.job}), new, ignore_data)
        holder = self._present(new)
        if holder is not None:
            return [holder]
        return same_jobs(self._found(new, _AS_LONG, {"job": new.job, "length": len(new.data)}), new, ignore_data)

    def _check_database(self) -> bool:
        """Return whether the user may read jobs."""
        try:
            [(database, user, stores, adds, reads)] = self._run(_RIGHTS, {"schema_name": self._schema})
        except Exception as error:
            if failed := failed_transaction(error):
                raise failed from error
            raise
        if not stores:
            raise self._elsewhere(f"the database {database!r} has no store in the schema {self._schema}")
        if not adds:
            reason = f"the server refuses this user ({user} lacks rights in the schema {self._schema} to add jobs)"
            raise StoreUnavailable(self._shown, reason, missing(Role.ADD, user))
        return bool(reads)

    def _kept(self, new: Record) -> Record:
        """Return the record that keeps the new one out, or the new one itself."""
        tries = Tries(self._shown, f"the job with unique={new.unique!r}")
        while True:
            present = self._present(new)
            if present is not None:
                return present
            tries.another()  # the holder of the key has ended by now
            if self._inserted(self._insert([new])):
                return new

    def _insert(self, new: Sequence[Record]) -> Iterable[Any]:
        """Insert the records whose ids and unique keys are free."""
        statement = _INSERT.format(schema=self._schema, ring=notification(self._schema, (NEWS, WORK)))
        # Another job may still have the period, which only the holder of the lock changes: it is moved by taking in.
        rows = [dict(zip(ALL_NAMES, whole_row(record), strict=True)) | {"period": None} for record in new]
        return self._run(statement, {"records": json.dumps(rows), "store_id": self._store_id})

    def _inserted(self, answer: Iterable[Any]) -> list[str]:
        """Return the ids of the records that were inserted."""
        [(store_id, version, inserted, _)] = answer
        if store_id != self._store_id:
            raise self._elsewhere("it is connected to another store")
        if version != SCHEMA_VERSION:
            raise SchemaMismatch(self._shown, version, SCHEMA_VERSION)
        return (inserted or "").split()

    def _present(self, new: Record) -> Record | None:
        """Return the record that keeps the new one out: one with its id precedes one with its unique key."""
        records = self._found(new, _PRESENT, {"id": str(new.id), "unique_key": new.unique})
        for same in records:
            if same.id == new.id:
                return existing(new, same)
        if records or PERIOD not in new.given:
            return records[0] if records else None
        if not self._reads_jobs:
            raise InvalidOption(
                "unique_for: this database user may not read how long another job keeps the key: leave it out, or "
                "use a user with the rights that `taskqueue migrate --grants read` prints"
            )
        holders = self._found(new, _OF_PERIOD, {"unique_key": new.unique})
        return next((holder for holder in holders if keeps_out(holder, new)), None)

    def _found(self, new: Record, statement: str, values: Mapping[str, Any]) -> list[Record]:
        """Return the records that the statement finds.

        For a user who may only add, columns that this user may not read are those of the new record.
        """
        columns = _ALL if self._reads_jobs else ", ".join(KNOWN_TO_ADD)
        rows = [tuple(row) for row in self._run(statement.format(schema=self._schema, columns=columns), values)]
        return [record(row) if self._reads_jobs else _known(new, row) for row in rows]

    def _elsewhere(self, reason: str) -> InvalidOption:
        return InvalidOption(f"session: {reason}: use a connection to the database of {self._shown}")


def _known(new: Record, row: tuple[Any, ...]) -> Record:
    """Return the record that exists already, from the columns that a user who may only add can read."""
    id, status, unique, job, data, created_at = row
    return replace(
        new, id=JobId(id), status=Status(status), unique=unique, job=job, data=data, created_at=moment(created_at)
    )
