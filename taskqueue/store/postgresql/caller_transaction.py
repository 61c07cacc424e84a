"""Adds jobs within a transaction of the application's own connection, without the store's lock: ``arrivals``.

The statements only insert, and none of them fails for a job that is refused: the application's earlier changes stay.
For a user who may not take the lock, the store does the same in a transaction of its own.
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
from taskqueue.model.unique_period import PERIOD
from taskqueue.store import SCHEMA_VERSION
from taskqueue.store.arguments import check_same_job
from taskqueue.store.bell import NEWS, WORK
from taskqueue.store.postgresql.alike import chosen
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
# Tables and rights are looked up first: a statement without them would end the transaction.
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
"""The most records of one statement."""
_ALL = ", ".join(f"CAST({name} AS TEXT)" if _TYPES[name] == "JSON" else name for name in NAMES)
_JOBS = "SELECT {columns} FROM {schema}.jobs"
_PRESENT = f"{_JOBS} WHERE id = CAST(:id AS TEXT) OR unique_key = CAST(:unique_key AS TEXT) AND status <= 2"
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
        """Insert all records and return for each the one that is kept, in order, as the transaction sees it.

        Raises ``DuplicateId``, and the driver's own errors: the transaction is the caller's, who may repeat it.
        """
        for new in records:
            if PERIOD in new.given:
                raise InvalidOption(
                    "unique_for with session: on PostgreSQL it may change another job: "
                    "leave one of both out, or add the job after your commit"
                )
        first: dict[JobId, Record] = {}
        for new in records:
            first.setdefault(new.id, new)
        ordered = sorted(first.values(), key=lambda new: new.unique or "")  # two such calls wait in no circle
        answers = [self._insert(ordered[start : start + _AT_ONCE]) for start in range(0, len(ordered), _AT_ONCE)]
        inserted = {id for answer in answers for id in self._inserted(answer)}
        return [new if new is first[new.id] and str(new.id) in inserted else self._kept(new) for new in records]

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which a new one is the same job, as the transaction sees them."""
        if ignore_data:
            return chosen(self._found(new, _PENDING, {"job": new.job}), new, ignore_data)
        holder = self._present(new)
        if holder is not None:
            return [holder]
        return chosen(self._found(new, _AS_LONG, {"job": new.job, "length": len(new.data)}), new, ignore_data)

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
        """Return the record that keeps the new one out, or the new one after all."""
        tries = Tries(self._shown, f"the job with unique={new.unique!r}")
        while True:
            present = self._present(new)
            if present is not None:
                return present
            tries.another()  # who had the key has ended in between
            if self._inserted(self._insert([new])):
                return new

    def _insert(self, new: Sequence[Record]) -> Iterable[Any]:
        """Insert the records whose ids and unique keys are free."""
        statement = _INSERT.format(schema=self._schema, ring=notification(self._schema, (NEWS, WORK)))
        rows = [dict(zip(ALL_NAMES, whole_row(one), strict=True)) for one in new]
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
        """Return the record that keeps the new one out; the same id goes before the same unique key."""
        found = self._found(new, _PRESENT, {"id": str(new.id), "unique_key": new.unique})
        for same in found:
            if same.id == new.id:
                check_same_job(new, same)
                return same
        return found[0] if found else None

    def _found(self, new: Record, statement: str, values: Mapping[str, Any]) -> list[Record]:
        """Return the records that the statement finds.

        For a user who may only add, they have what that user may read, and of the rest what the new one has.
        """
        columns = _ALL if self._reads_jobs else ", ".join(KNOWN_TO_ADD)
        rows = [tuple(row) for row in self._run(statement.format(schema=self._schema, columns=columns), values)]
        return [record(row) if self._reads_jobs else _known(new, row) for row in rows]

    def _elsewhere(self, reason: str) -> InvalidOption:
        return InvalidOption(f"session: {reason}: use a connection to the database of {self._shown}")


def _known(new: Record, row: tuple[Any, ...]) -> Record:
    """Return the record that is there already, of the columns that a user reads who may only add."""
    id, status, unique, job, data, created_at = row
    return replace(
        new, id=JobId(id), status=Status(status), unique=unique, job=job, data=data, created_at=moment(created_at)
    )
