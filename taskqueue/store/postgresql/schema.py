"""The tables of a PostgreSQL store, in a schema of its own; what this version creates and refuses."""

from __future__ import annotations

import re
import secrets
from typing import Any

import psycopg
from psycopg import errors

from taskqueue.errors import SchemaMismatch, StoreUnavailable
from taskqueue.store import SCHEMA_VERSION
from taskqueue.store.relational.tables import TABLES

Raw = psycopg.Connection[Any]

OLDEST = 150_000
"""The oldest server version with which the store's use of JSON, upserts and locks has been tested."""

_OTHERS = ("CockroachDB", "YugabyteDB", "-YB-", "Redshift")
"""Words in the version of servers that only speak the protocol."""

# Text is compared by code points, as in SQLite and Python, and so that no update of collations breaks an index.
# JSON values have this type, which stores them as they are written and refuses anything else.
_TYPES = (
    (r" WITHOUT ROWID", ""),
    (r"\b(options|given|tags|error|origins|waiting_for) TEXT", r"\1 JSON"),
    (r"\(CASE WHEN json_valid\((\w+)\) THEN json_extract\(\1, '\$\.(\w+)'\) END\)", r"((\1 #>> '{\2}'))"),
    (r"\bTEXT\b", 'TEXT COLLATE "C"'),
    (r"\bINTEGER\b", "BIGINT"),
    (r"\bREAL\b", "DOUBLE PRECISION"),
)
# A job that was added without the store's lock has no number yet: ``arrivals``.
_OWN = """
ALTER TABLE jobs ADD rowid BIGSERIAL;
ALTER TABLE jobs ALTER rowid DROP NOT NULL;
CREATE UNIQUE INDEX jobs_rowid ON jobs (rowid);
CREATE INDEX jobs_arrived ON jobs (id) WHERE rowid IS NULL;
CREATE TABLE store (id TEXT NOT NULL, schema BIGINT NOT NULL);
"""
_MANY_VERSIONS = "autovacuum_vacuum_threshold = {}, autovacuum_vacuum_scale_factor = {}"
_STORAGE = {
    "jobs": f"fillfactor = 90, {_MANY_VERSIONS.format(2000, 0.01)}, autovacuum_analyze_scale_factor = 0.02",
    **dict.fromkeys(("turns", "waits", "slots", "leases", "tally", "counted"), _MANY_VERSIONS.format(1000, 0)),
}
"""Storage settings of tables whose rows change often: old row versions stay until the table is vacuumed."""


def definitions(schema: str) -> str:
    """Return the statements that create the schema with its tables."""
    tables = _typed_tables()
    tables = re.sub(r"\b((?:CREATE|ALTER) TABLE|INDEX \w+ ON) (\w+)", rf"\1 {schema}.\2", tables + _OWN)
    storage = [f"ALTER TABLE {schema}.{table} SET ({settings})" for table, settings in _STORAGE.items()]
    return f"CREATE SCHEMA {schema};{tables}" + "".join(f"{statement};\n" for statement in storage)


def creation(schema: str) -> str:
    """Return the statements that create the schema of a new store with its id."""
    store = f"('{secrets.token_hex(12)}', {SCHEMA_VERSION})"
    return f"{definitions(schema)}INSERT INTO {schema}.store (id, schema) VALUES {store};\n"


def types_of_jobs() -> dict[str, str]:
    """Return the type of each column of a job that both engines have."""
    jobs = _typed_tables().split("CREATE TABLE jobs (")[1].split(");")[0]
    return dict(re.findall(r"(\w+) (JSON|TEXT|BIGINT|DOUBLE PRECISION)\b", jobs))


def _typed_tables() -> str:
    """Return the tables of both engines with the types of PostgreSQL."""
    tables = TABLES
    for pattern, replacement in _TYPES:
        tables = re.sub(pattern, replacement, tables)
    return tables


def prepare(raw: Raw, schema: str, shown: str) -> None:
    """Refuse a server that cannot hold a store, and create the tables if there are none."""
    refuse_strange(raw, shown)
    if not exists(raw, schema, shown):
        try:
            with raw.transaction():
                raw.execute(creation(schema))
        except (errors.UniqueViolation, errors.DuplicateSchema):  # another process has created them first
            if not exists(raw, schema, shown):
                raise


def refuse_strange(raw: Raw, shown: str) -> None:
    """Raise ``StoreUnavailable`` for a server that is too old, is not PostgreSQL, or has another encoding."""
    [version] = raw.execute("SELECT version()").fetchone() or [""]
    if other := next((word for word in _OTHERS if word in version), None):
        raise StoreUnavailable(shown, f"the server is not PostgreSQL but {other}", "use a PostgreSQL server")
    if raw.info.server_version < OLDEST:
        raise StoreUnavailable(shown, f"the server is older than PostgreSQL 15 ({version[:40]})", "upgrade the server")
    encoding = raw.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        way_out = "create one with CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0"
        raise StoreUnavailable(shown, f"the database has the encoding {encoding}", way_out)


def exists(raw: Raw, schema: str, shown: str) -> bool:
    """Return whether the tables are there; raise ``SchemaMismatch`` for those of another version."""
    stored = version(raw, schema, shown)
    if stored is not None and stored != SCHEMA_VERSION:
        raise SchemaMismatch(shown, stored, SCHEMA_VERSION)
    return stored is not None


def version(raw: Raw, schema: str, shown: str) -> int | None:
    """Return the version of the tables, None if there is no such schema; raise for one that is another program's."""
    if raw.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
        return None
    try:
        row = raw.execute(f"SELECT schema FROM {schema}.store").fetchone()
    except errors.UndefinedTable:
        way_out = "name another one with taskqueue.schema= in the URL"
        raise StoreUnavailable(shown, f"the schema {schema} belongs to another program", way_out) from None
    return None if row is None else int(row[0])
