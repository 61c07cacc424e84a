"""Adds jobs within a transaction of the application's own connection, without the store's lock: ``arrivals``.

The statements only insert, and none of them fails for a job that is refused: the application's earlier changes stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from taskqueue.errors import InvalidOption, SchemaMismatch
from taskqueue.model.record import Record
from taskqueue.model.unique_period import PERIOD
from taskqueue.store import SCHEMA_VERSION
from taskqueue.store.arguments import check_same_job
from taskqueue.store.bell import NEWS, WORK
from taskqueue.store.postgresql.bells import notification
from taskqueue.store.postgresql.schema import types_of_jobs
from taskqueue.store.postgresql.sessions import failed_transaction, run_on
from taskqueue.store.postgresql.url import PostgreSQLUrl
from taskqueue.store.relational.columns import ALL_COLUMNS, ALL_NAMES, NAMES, whole_row
from taskqueue.store.relational.rows import record
from taskqueue.store.tries import Tries

_TYPES = types_of_jobs()
_VALUES = ", ".join(f"CAST(:{name} AS {_TYPES[name]})" for name in ALL_NAMES)
# The name of the tables is looked up first: a statement about tables that are not there would end the transaction.
_TABLE = "SELECT CAST(to_regclass(:table_name) AS TEXT), current_database()"
_INSERT = f"""
WITH added AS (
    INSERT INTO {{schema}}.jobs ({ALL_COLUMNS}, rowid) SELECT {_VALUES}, NULL FROM {{schema}}.store
    WHERE store.id = :store_id AND store.schema = {SCHEMA_VERSION} ON CONFLICT DO NOTHING RETURNING id
)
SELECT store.id, store.schema, (SELECT count(*) FROM added), CAST(({{ring}} FROM added) AS TEXT) FROM {{schema}}.store
"""
_COLUMNS = ", ".join(f"CAST({name} AS TEXT)" if _TYPES[name] == "JSON" else name for name in NAMES)
_PRESENT = f"""
SELECT {_COLUMNS} FROM {{schema}}.jobs
WHERE id = CAST(:id AS TEXT) OR unique_key = CAST(:unique_key AS TEXT) AND status <= 2
"""


class CallerInserts:
    """Adds records inside a transaction; with its commit they are there, and bells ring."""

    def __init__(
        self, address: PostgreSQLUrl, store_id: str, session: Any, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """Raise ``InvalidOption`` for no session, one without a transaction, or one of another database."""
        self._shown = address.shown
        self._schema = address.schema
        self._store_id = store_id
        self._run = run_on(session, loop)
        self._check_database()

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
        return [self._kept(new) for new in records]

    def _check_database(self) -> None:
        try:
            [(table, database)] = self._run(_TABLE, {"table_name": f"{self._schema}.store"})
        except Exception as error:
            if failed := failed_transaction(error):
                raise failed from error
            raise
        if table is None:
            raise self._elsewhere(f"the database {database!r} has no store in the schema {self._schema}")

    def _kept(self, new: Record) -> Record:
        tries = Tries(self._shown, f"the job with unique={new.unique!r}")
        while not self._inserted(new):
            present = self._present(new)
            if present is not None:
                return present
            tries.another()  # who had the key has ended in between
        return new

    def _inserted(self, new: Record) -> bool:
        statement = _INSERT.format(schema=self._schema, ring=notification(self._schema, (NEWS, WORK)))
        values = dict(zip(ALL_NAMES, whole_row(new), strict=True))
        [(store_id, version, inserted, _)] = self._run(statement, {**values, "store_id": self._store_id})
        if store_id != self._store_id:
            raise self._elsewhere("it is connected to another store")
        if version != SCHEMA_VERSION:
            raise SchemaMismatch(self._shown, version, SCHEMA_VERSION)
        return bool(inserted)

    def _present(self, new: Record) -> Record | None:
        """Return the record that keeps the new one out; the same id goes before the same unique key."""
        rows = self._run(_PRESENT.format(schema=self._schema), {"id": str(new.id), "unique_key": new.unique})
        found = [record(tuple(row)) for row in rows]
        for same in found:
            if same.id == new.id:
                check_same_job(new, same)
                return same
        return found[0] if found else None

    def _elsewhere(self, reason: str) -> InvalidOption:
        return InvalidOption(f"session: {reason}: use a connection to the database of {self._shown}")
