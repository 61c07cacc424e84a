"""The relational store in PostgreSQL, where a user without the right to take the store's lock may still add jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from taskqueue.model.lifecycle.recovered_copy import ORIGIN
from taskqueue.model.record import Record, Status
from taskqueue.model.unique_period import PERIOD
from taskqueue.store.postgresql.bells import NoRinger
from taskqueue.store.postgresql.connection import Connection
from taskqueue.store.relational.store import RelationalStore


class PostgreSQLStore(RelationalStore):
    """Keeps jobs in the tables of one schema."""

    def __init__(self, connection: Connection, clock: Callable[[], datetime]) -> None:
        super().__init__(connection, NoRinger(), clock)
        self._connection = connection

    def add(self, records: Sequence[Record]) -> list[Record]:
        if self._connection.may_lock or not all(map(_is_inserted_alone, records)):
            return super().add(records)
        return self._connection.add_without_lock(records)


def _is_inserted_alone(new: Record) -> bool:
    """Return whether the add of a record changes no other row."""
    return PERIOD not in new.given and ORIGIN not in new.given and new.status is not Status.PROCESSING
