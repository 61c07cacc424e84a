"""The tables of a SQLite store, numbered: what this version creates and what it refuses."""

from __future__ import annotations

import sqlite3

from taskqueue.errors import SchemaMismatch, StoreUnavailable
from taskqueue.store import SCHEMA_VERSION

# Small and often changed columns come first: SQLite reads a row from the left, and not past what was asked for.
# Each partial index serves one question, and holds only the rows that question is about: a claim never meets a job
# that is postponed or finished. jobs_postponed keeps apart those that wait for other jobs, which no time promotes.
# Every index is a page more in each commit that touches it (measured: 4 us), so no question has an index to itself that
# another one can answer: a claim from every queue merges the ranges of those that have waiting jobs.
TABLES = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY NOT NULL,
    status INTEGER NOT NULL,
    cause TEXT NOT NULL,
    queue TEXT NOT NULL,
    forced INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    ready_at INTEGER,
    seat TEXT,
    incarnation TEXT,
    claims INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER,
    expires_at INTEGER,
    unique_key TEXT,
    waiting_for TEXT,
    cancel TEXT,
    unloadable_since INTEGER,
    unloadable_times INTEGER NOT NULL,
    progress REAL NOT NULL,
    progress_message TEXT NOT NULL,
    progress_at INTEGER,
    job TEXT NOT NULL,
    options TEXT NOT NULL,
    given TEXT,
    tags TEXT,
    error TEXT,
    attempts TEXT,
    state TEXT,
    result TEXT,
    data TEXT NOT NULL
);
CREATE INDEX jobs_waiting ON jobs (queue, forced, rank, id) WHERE status = 0;
CREATE INDEX jobs_postponed ON jobs (waiting_for IS NOT NULL, ready_at) WHERE status = 1;
CREATE INDEX jobs_running ON jobs (seat) WHERE status = 2;
CREATE INDEX jobs_ended ON jobs (status, ended_at) WHERE status > 2;
CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE expires_at IS NOT NULL AND status < 2;
CREATE UNIQUE INDEX jobs_unique ON jobs (unique_key) WHERE unique_key IS NOT NULL AND status <= 2;
CREATE TABLE waits (awaited TEXT NOT NULL, job TEXT NOT NULL, PRIMARY KEY (awaited, job)) WITHOUT ROWID;
CREATE TABLE tally (
    queue TEXT NOT NULL, status INTEGER NOT NULL, records INTEGER NOT NULL, PRIMARY KEY (queue, status)
) WITHOUT ROWID;
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    claims INTEGER NOT NULL,
    name TEXT NOT NULL,
    at INTEGER NOT NULL,
    status INTEGER NOT NULL
);
CREATE TABLE leases (
    name TEXT PRIMARY KEY NOT NULL,
    seat TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    about TEXT NOT NULL
);
"""


def check(connection: sqlite3.Connection, store: str) -> bool:
    """Tell whether the tables are there; raise ``SchemaMismatch`` for other tables."""
    [version] = connection.execute("PRAGMA user_version").fetchone()
    [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == SCHEMA_VERSION:
        return True
    if version:
        raise SchemaMismatch(store, version, SCHEMA_VERSION)
    if tables:
        raise StoreUnavailable(store, "is a database of another program", "name another file")
    return False


def check_opened(connection: sqlite3.Connection) -> None:
    """Read something, so that a file that cannot be read is found out."""
    connection.execute("SELECT 1 FROM jobs LIMIT 1").fetchone()


def create(connection: sqlite3.Connection) -> None:
    """Create the tables, inside the transaction of the caller."""
    for statement in TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
