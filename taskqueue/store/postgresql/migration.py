"""Migrates a PostgreSQL store: each step is one transaction under the store's lock, with the number in ``store``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import psycopg

from taskqueue.errors import SchemaMismatch
from taskqueue.store import SCHEMA_VERSION, Lease
from taskqueue.store.postgresql import roles, schema
from taskqueue.store.postgresql.database import connected
from taskqueue.store.postgresql.driver_errors import in_words
from taskqueue.store.postgresql.url import parse
from taskqueue.store.relational.leases import lease_of

STEPS: Mapping[int, str] = {}
"""The statements of the step to each schema after the first, if it changes something here; ``{schema}`` is its name."""

_SEATS = """
SELECT name, seat, incarnation, since, until, about FROM {}.leases
WHERE name LIKE 'seat:%' AND until > extract(epoch FROM clock_timestamp()) * 1000
"""
# Everybody waits for the table, even readers; nobody waits long for a migration that cannot start.
_LOCK = "SET LOCAL lock_timeout = '5s'; LOCK TABLE {0}.store IN EXCLUSIVE MODE; LOCK TABLE {0}.jobs"


class PostgreSQLMigration:
    """Migrates one schema; see ``taskqueue.store.migration.Migration``."""

    def __init__(self, url: str) -> None:
        address = parse(url)
        self.store = address.shown
        self._schema = address.schema
        with self._in_words():
            self._raw = connected(address)

    def version(self) -> int:
        """Return the schema version of the store; a new store gets the current one when it is opened."""
        with self._in_words():
            return schema.version(self._raw, self._schema, self.store) or SCHEMA_VERSION

    def seats(self) -> Sequence[Lease]:
        """Return the seats whose leases have not ended."""
        with self._in_words():
            return [lease_of(row) for row in self._raw.execute(_SEATS.format(self._schema))]

    def apply(self, number: int) -> None:
        """Apply the step to this schema in one transaction."""
        with self._in_words(), self._raw.transaction():
            self._raw.execute(_LOCK.format(self._schema))
            if self.version() < number:
                self._raw.execute(self._step(number))

    def statements(self) -> str:
        """Return the statements that create the store, or apply the remaining steps; a comment if there are none."""
        with self._in_words():
            stored_version = schema.version(self._raw, self._schema, self.store)
        if stored_version is None:
            return f"BEGIN;\n{schema.creation(self._schema)}COMMIT;\n"
        if stored_version > SCHEMA_VERSION:
            raise SchemaMismatch(self.store, stored_version, SCHEMA_VERSION)
        steps = [self._step(number) for number in range(stored_version + 1, SCHEMA_VERSION + 1)]
        lock = _LOCK.format(self._schema)
        none = "-- the store has the schema of this version: nothing to do\n"
        return "".join(f"BEGIN;\n{lock};\n{step}COMMIT;\n" for step in steps) or none

    def grants(self, role: str, user: str) -> str:
        """Return the statements that give a user of the database the rights of a role."""
        return "".join(f"{statement}\n" for statement in roles.grants(self._schema, roles.Role(role), user))

    def _step(self, number: int) -> str:
        step = STEPS.get(number, "").replace("{schema}", self._schema)
        return f"{step}UPDATE {self._schema}.store SET schema = {number};\n"

    def close(self) -> None:
        """Close the connection."""
        self._raw.close()

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise in_words(self.store, error) from error
