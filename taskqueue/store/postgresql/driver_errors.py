"""Turns errors of PostgreSQL's driver into one error that says why and what to do."""

from __future__ import annotations

import psycopg
from psycopg import errors

from taskqueue.errors import ConfigError, StoreUnavailable, TaskqueueError

REPEATED = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable, errors.UniqueViolation)
"""Errors after which the same transaction may succeed (40001, 40P01, 55P03, 23505).

The last one means that an application has just committed a job with the same unique key, which the next try sees.
"""

CROSSED = (errors.DeadlockDetected, errors.NotNullViolation)
"""Errors after which a plain statement goes the general way: others changed its rows while it ran (40P01, 23502)."""

LOCKED = (errors.LockNotAvailable, errors.QueryCanceled)
"""Errors of a statement that waited too long for other transactions (55P03, 57014)."""

_REPEAT = "the call may be repeated, with id= or unique= if it adds a job"
_AWAY = ("does not answer", f"check that the server runs and is reachable from here; {_REPEAT}")
_REFUSED = ("rejects the user or password", "correct them in the URL; see pg_hba.conf of the server")
_BY_STATE = (
    (("57P01", "57P02", "57P03", "08"), *_AWAY),
    (("28",), *_REFUSED),
    (("3D000",), "has no such database", "create it (CREATE DATABASE), or correct the URL"),
    (("53300",), "has no free connections", "raise max_connections of the server, or use a pooler"),
    (("53100",), "has a full disk", "make room on the server; the call may be repeated"),
    (("53",), "lacks memory or other resources", "see the log of the server; the call may be repeated"),
    (("25006",), "accepts no writes, as a standby does", "name all servers in the URL: postgresql://a,b/database"),
    (("42501",), "refuses this user", "grant the user what is missing"),
    (("3F000", "42P01"), "has no store in this schema", "correct taskqueue.schema in the URL, or run a node first"),
    (
        ("55P03", "57014"),
        "stayed locked by another transaction",
        "end that transaction, or SELECT pg_terminate_backend(pid)",
    ),
    (("22021", "22P05"), "cannot keep this text", "remove NUL characters from it"),
)
"""The beginnings of SQLSTATE, what they say about the server, and the way out."""

_WRITES = ("53100", "25006")
"""States of servers that still answer reads."""

_BY_TEXT = (
    ("does not support SSL", "speaks no TLS", "set it up there, or correct sslmode in the URL"),
    ("root certificate", "cannot be verified", "name the file of its authority in the URL: sslrootcert=/path"),
    ("certificate verify failed", "is not trusted", "name the file of its authority in the URL: sslrootcert=/path"),
    ("does not match host name", "has the certificate of another host", "write the name in it into the URL"),
    ("password authentication failed", *_REFUSED),
    ("no password supplied", *_REFUSED),
    ("no pg_hba.conf entry", *_REFUSED),
    ("does not exist", "has no such database or user", "create it (CREATE DATABASE, CREATE ROLE), or correct the URL"),
    ("too many clients", "has no free connections", "raise max_connections of the server, or use a pooler"),
    ("remaining connection slots", "has no free connections", "raise max_connections of the server, or use a pooler"),
    ("session is read-only", "accepts no writes, as a standby does", "name all servers: postgresql://a,b/database"),
)
"""Words in errors of a failed connection, for which the driver has no SQLSTATE."""


_CREATE = "have an administrator of the database run what `taskqueue migrate --sql` prints"


def in_words(shown: str, error: psycopg.Error, holder: str = "", grant: str = "") -> TaskqueueError:
    """Return the error that says what is wrong with the store at the address ``shown``, and what to do.

    ``holder`` names the session that holds the store's lock, if the error is ``LOCKED`` and it still does. ``grant`` is
    the way out if the user lacks rights in the schema.
    """
    text = f"{reason_of(error)}; {holder}" if holder else reason_of(error)
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return ConfigError(f"store {shown}: {text}: correct the URL")
    state = error.sqlstate or ""
    for states, reason, way_out in _BY_STATE if state else ():
        if state.startswith(states):
            lacking = _CREATE if "for database" in text else grant
            do = lacking if state == "42501" and lacking else way_out
            return StoreUnavailable(shown, f"the server {reason} ({text})", do, only_reads=state in _WRITES)
    for words, reason, way_out in () if state else _BY_TEXT:
        if words in text:
            return StoreUnavailable(shown, f"the server {reason} ({text})", way_out)
    if not state:
        return StoreUnavailable(shown, f"the server {_AWAY[0]} ({text})", _AWAY[1])
    return StoreUnavailable(shown, f"the server refuses ({state}: {text})", "see the log of the server")


def reason_of(error: psycopg.Error) -> str:
    """Return the server's reason in one line."""
    primary = error.diag.message_primary
    return (primary or " ".join(str(error).split()) or type(error).__name__)[:300]
