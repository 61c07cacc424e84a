"""Examines a PostgreSQL store: its server, how durable commits are, and what keeps its tables from being cleaned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from taskqueue.errors import TaskqueueError
from taskqueue.model.finding import Finding, Level, below
from taskqueue.model.wording import size, span
from taskqueue.store.fan_out import POLL_PAUSE
from taskqueue.store.postgresql.bells import PAST_POOLER, NotHeard, listening
from taskqueue.store.postgresql.database import PostgreSQLDatabase, is_pooled
from taskqueue.store.postgresql.url import DIRECT_OPTION, PostgreSQLUrl

LONG_TRANSACTION = 15 * 60.0
"""After this many seconds an open transaction is named: the server keeps all row versions that it might still read."""

MANY_DEAD_ROWS = 200_000

LONG_WAL, VERY_LONG_WAL = 64 * 2**20, 2**30
"""Bytes of the write-ahead log that the server keeps for a standby, or another reader, that is away."""

_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')"
_CONNECTIONS = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
"""
# In all databases of the server: the oldest snapshot affects them all.
_OLDEST = """
SELECT pid, usename, state, extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND xact_start IS NOT NULL
    AND backend_type = 'client backend' AND pid <> pg_backend_pid()
ORDER BY age(backend_xmin) DESC LIMIT 1
"""
_SLOTS = """
SELECT slot_name, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots
WHERE NOT active AND restart_lsn IS NOT NULL AND NOT pg_is_in_recovery() ORDER BY slot_name
"""
# A role that may not read statistics sees that a standby is connected, and not whether it is synchronous.
_STANDBYS = """
SELECT names, (SELECT count(*) FROM pg_stat_replication WHERE coalesce(sync_state, 'sync') IN ('sync', 'quorum'))
FROM current_setting('synchronous_standby_names') AS names WHERE names <> '' AND NOT pg_is_in_recovery()
"""
_NEEDED = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\(", re.IGNORECASE)
_ROWS = """
SELECT n_live_tup, n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables
WHERE schemaname = %s AND relname = 'jobs'
"""


def diagnose(database: PostgreSQLDatabase, long_transaction: float = LONG_TRANSACTION) -> list[Finding]:
    """Return the findings; reads only."""
    return [
        Finding("PostgreSQL", str(database.raw.info.parameter_status("server_version"))),
        _pooler(database),
        *_durability(database),
        *strains(database, long_transaction),
        *_rows(database),
    ]


def strains(database: PostgreSQLDatabase, long_transaction: float = LONG_TRANSACTION) -> list[Finding]:
    """Return those findings that change by themselves."""
    return [
        _connections(database),
        _oldest_transaction(database, long_transaction),
        *_slots(database),
        *_standbys(database),
    ]


def _pooler(database: PostgreSQLDatabase) -> Finding:
    if not is_pooled(database.raw):
        return Finding("connection", "it goes to the server itself")
    return Finding("connection", "it goes through a pooler: statements are not prepared")


def notifications(address: PostgreSQLUrl, store_id: Callable[[], str]) -> Finding:
    """Return whether the server itself can be heard, which a pooler prevents."""
    try:
        listening(address, store_id).close()
    except NotHeard:
        says = f"a pooler keeps them back: nodes and waiting applications look every {POLL_PAUSE:g} s"
        return Finding("notifications", says, Level.WARNING, PAST_POOLER)
    except TaskqueueError as error:
        do = f"correct {DIRECT_OPTION} in the URL" if address.direct else "name the server that takes writes in the URL"
        return Finding("notifications", str(error), Level.ERROR, do)
    return Finding("notifications", "the server sends them itself")


def _durability(database: PostgreSQLDatabase) -> Iterator[Finding]:
    settings = dict(database.raw.execute(_SETTINGS).fetchall())
    for name, what in (("fsync", "acknowledged jobs"), ("full_page_writes", "the whole database")):
        is_on = settings[name] == "on"
        yield Finding(
            name,
            settings[name] if is_on else f"{settings[name]}: a power cut may lose {what}",
            Level.OK if is_on else Level.ERROR,
            "" if is_on else f"ALTER SYSTEM SET {name} = on, and reload the server",
        )


def _connections(database: PostgreSQLDatabase) -> Finding:
    used, most = database.raw.execute(_CONNECTIONS).fetchone() or (0, 0)
    words = f"{used} of {most} are in use"
    do = "raise max_connections, or connect applications through a pooler such as PgBouncer"
    return below("connections", words, most - used, warning=max(10.0, most / 10), error=3, do=do)


def _oldest_transaction(database: PostgreSQLDatabase, long: float) -> Finding:
    row = database.raw.execute(_OLDEST).fetchone()
    if row is None:
        return Finding("oldest transaction", "none is open")
    pid, user, state, seconds = row
    words = f"open for {span(seconds)} by {user or 'another user'}, pid {pid}, {state or 'of an unknown state'}"
    if seconds < long:
        return Finding("oldest transaction", words)
    do = f"end it, or SELECT pg_terminate_backend({pid}): rows that jobs have left behind cannot be removed before"
    return Finding("oldest transaction", words, Level.WARNING, do)


def _slots(database: PostgreSQLDatabase) -> Iterator[Finding]:
    """Yield the replication slots whose standby, or other reader, is away."""
    for name, kept in database.raw.execute(_SLOTS).fetchall():
        words = f"{name} has no reader, and keeps {size(kept)} of the write-ahead log"
        do = "start its standby or reader again, or pg_drop_replication_slot it: the log fills the disk of the server"
        finding = below("replication slot", words, -kept, warning=-LONG_WAL, error=-VERY_LONG_WAL, do=do)
        yield finding._replace(name=name)


def _standbys(database: PostgreSQLDatabase) -> Iterator[Finding]:
    """Yield whether the standbys that commits wait for are there; of others the server knows nothing while away."""
    for names, connected in database.raw.execute(_STANDBYS).fetchall():
        match = _NEEDED.match(names)
        needed = int(match[1]) if match else 1
        words = f"{connected} of {needed} are connected"
        if connected >= needed:
            yield Finding("synchronous standbys", words)
            continue
        do = "start them again, or ALTER SYSTEM SET synchronous_standby_names = '', and reload the server"
        yield Finding("synchronous standbys", f"{words}: no commit ends, so no job is added", Level.ERROR, do)


def _rows(database: PostgreSQLDatabase) -> Iterator[Finding]:
    for live, dead, size_on_disk in database.raw.execute(_ROWS, (database.schema,)).fetchall():
        words = f"about {live:,} jobs and {dead:,} dead rows, {size(size_on_disk)}"
        is_many = dead > max(MANY_DEAD_ROWS, live)
        do = "look for the oldest transaction and for autovacuum=off; VACUUM the table jobs" if is_many else ""
        yield Finding("table jobs", words, Level.WARNING if is_many else Level.OK, do)
