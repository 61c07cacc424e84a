"""Migrates a store to this version's schema in numbered steps; nodes that still run on it block it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from taskqueue.errors import ConfigError, SchemaMismatch, StoreUnavailable
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.store import SCHEMA_VERSION, Lease
from taskqueue.store.open import MONGODB_SCHEMES, POSTGRESQL_SCHEMES, address_of
from taskqueue.store.redaction import concealed
from taskqueue.store.sqlite.migration import SqliteMigration

if TYPE_CHECKING:
    from taskqueue.store.postgresql.migration import PostgreSQLMigration

STEPS: Mapping[int, str] = {}
"""Describes the step to each schema after the first; each store has the steps themselves."""


class Migration(Protocol):
    """Migrates one store from schema to schema."""

    store: str
    """The store, for messages."""

    def version(self) -> int:
        """Return the schema version of the store; a new store is up to date, since opening it creates the schema."""

    def seats(self) -> Sequence[Lease]:
        """Return the seats whose leases have not ended."""

    def apply(self, number: int) -> None:
        """Apply the step to this schema, unless another process has applied it."""

    def close(self) -> None:
        """Close the store."""


@dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """The pending steps of one store, and the nodes that must be stopped first."""

    store: str
    found: int
    known: int
    steps: Mapping[int, str]
    in_the_way: Sequence[str]


def open_migration(url: str | None = None) -> Migration:
    """Return the migration of the store at ``url``. Raises ``ConfigError`` and ``StoreUnavailable``."""
    address = address_of(url)
    if address.startswith(MONGODB_SCHEMES):
        from taskqueue.store.mongodb.migration import MongoMigration

        return MongoMigration(address)
    if address.startswith(POSTGRESQL_SCHEMES):
        from taskqueue.store.postgresql.migration import PostgreSQLMigration

        return PostgreSQLMigration(address)
    return SqliteMigration(address)


def open_sql_migration(url: str | None = None) -> PostgreSQLMigration:
    """Return the migration of a store whose steps and rights are SQL that an administrator may run."""
    address = address_of(url)
    if not address.startswith(POSTGRESQL_SCHEMES):
        raise ConfigError(f"store {concealed(address)}: only PostgreSQL has --sql and --grants: leave them out")
    from taskqueue.store.postgresql.migration import PostgreSQLMigration

    return PostgreSQLMigration(address)


def pending_steps(migration: Migration) -> MigrationPlan:
    """Return the pending steps; raise ``SchemaMismatch`` for a store that is newer than this version."""
    version = migration.version()
    if version > SCHEMA_VERSION:
        raise SchemaMismatch(migration.store, version, SCHEMA_VERSION)
    steps = {number: what for number, what in STEPS.items() if number > version}
    in_the_way = [seat.name.removeprefix("seat:") for seat in migration.seats()] if steps else []
    return MigrationPlan(store=migration.store, found=version, known=SCHEMA_VERSION, steps=steps, in_the_way=in_the_way)


def carry_out(migration: Migration, planned: MigrationPlan) -> None:
    """Apply the steps in order: each is atomic in a relational store, and can be repeated on MongoDB."""
    if planned.in_the_way:
        nodes = ", ".join(planned.in_the_way)
        raise StoreUnavailable(planned.store, f"nodes of an older taskqueue run on it ({nodes})", "stop them first")
    for number in planned.steps:
        migration.apply(number)
