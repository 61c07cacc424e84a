"""The relay: moves the rows of an outbox to the store, each exactly once.

A row is deleted only after its job is in the store. A relay that is killed in between adds the job again: it has the
same id, so that nothing is added, and the row is deleted then. Two relays at once do no harm, for the same reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.model.record import Record
from taskqueue.outbox import connections
from taskqueue.outbox.rows import Row, record_of
from taskqueue.store.session_kinds import current

if TYPE_CHECKING:
    from taskqueue.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

BATCH = 100
"""Maximum number of rows that are read, added and deleted at once."""


class Relay:
    """Moves rows over one connection to the outbox, which it opens when it first looks."""

    def __init__(self, connect: Callable[[], Any], table: str, scheduler: Scheduler) -> None:
        self._connect = connect
        self._table = table
        self._scheduler = scheduler
        self._connection: Any = None
        self._refused: set[str] = set()
        """The ids of rows that were refused once, since the job that a row depends on may come with a later row."""

    def move(self) -> int:
        """Move all rows that are there now; return how many jobs were added, or were there already."""
        moved = self._pass()
        return moved + self._pass() if self._refused else moved

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            connections.close(self._connection)
            self._connection = None

    def _pass(self) -> int:
        moved, after = 0, ""
        while True:
            rows = self._read(after)
            moved += self._move(rows)
            if len(rows) < BATCH:
                return moved
            after = rows[-1].id

    def _read(self, after: str) -> list[Row]:
        """Return the next rows in the order of their ids, without rows that have an error."""
        columns, table = ", ".join(Row._fields), self._table
        select = f"SELECT {columns} FROM {table} WHERE id > :after AND error IS NULL ORDER BY id LIMIT {BATCH}"
        try:
            rows = self._execute(select, {"after": after})
        except Exception as error:
            if self._connection is None or not self._answers():
                raise
            raise ConfigError(
                f"the table {table} of the outbox cannot be read ({type(error).__name__}: {error}): create it with "
                "what outbox.create_sql('sqlite'), ('postgresql') or ('mysql') returns, and make sure that this user "
                "may read it"
            ) from error
        connections.rollback(self._connection)  # no transaction stays open while the store is used
        return [Row(*row) for row in rows]

    def _answers(self) -> bool:
        """Return whether the database carries out a statement that needs no table."""
        try:
            connections.rollback(self._connection)
            self._execute("SELECT 1", {})
        except Exception:
            return False
        return True

    def _move(self, rows: Sequence[Row]) -> int:
        """Add the jobs of the rows, and then delete the rows; keep rows that cannot become jobs."""
        if not rows:
            return 0
        records: dict[str, Record] = {}
        refused: dict[str, Exception] = {}
        now = self._scheduler._connections.store.now()  # noqa: SLF001 - records have the times of the store
        for row in rows:
            try:
                records[row.id] = record_of(row, now)
            except Exception as error:  # whatever is in a row, the others are moved
                refused[row.id] = error
        refused |= self._add(records)
        self._delete([id for id in records if id not in refused])
        self._keep([row for row in rows if row.id in refused], refused)
        connections.commit(self._connection)
        return len(rows) - len(refused)

    def _add(self, records: Mapping[str, Record]) -> dict[str, Exception]:
        """Add the records together, or one by one if that is refused; return the errors by row."""
        try:
            self._scheduler._add_records(list(records.values()))  # noqa: SLF001 - they are checked already
        except (StoreUnavailable, ConfigError):
            raise
        except Exception as error:
            if len(records) == 1:
                return dict.fromkeys(records, error)
            log.debug("outbox %s: adding %d jobs one by one: %s", self._table, len(records), error)
        else:
            return {}
        refused: dict[str, Exception] = {}
        for id, record in records.items():
            refused |= self._add({id: record})
        return refused

    def _delete(self, ids: Sequence[str]) -> None:
        if ids:
            values = {f"id_{place}": id for place, id in enumerate(ids)}
            self._execute(f"DELETE FROM {self._table} WHERE id IN ({', '.join(f':{name}' for name in values)})", values)
            self._refused.difference_update(ids)

    def _keep(self, rows: Sequence[Row], refused: Mapping[str, Exception]) -> None:
        """Write its error into each row that was refused twice, so that it is not read again."""
        for row in rows:
            if row.id not in self._refused:
                self._refused.add(row.id)
                continue
            self._refused.discard(row.id)
            error = f"{type(refused[row.id]).__name__}: {refused[row.id]}"
            self._execute(f"UPDATE {self._table} SET error = :error WHERE id = :id", {"error": error, "id": row.id})
            log.error(
                "outbox %s: row %s of %s cannot become a job and stays in the table %s: %s: delete it, or correct it "
                "and set its error to NULL",
                self._table,
                row.id,
                row.job,
                self._table,
                error,
            )

    def _execute(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = current(self._connect())
        return connections.execute(self._connection, statement, values)
