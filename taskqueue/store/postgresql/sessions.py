"""Runs statements within the open transaction of what an application has: psycopg, SQLAlchemy or Django.

Only psycopg is imported: objects of the others come from the application, which has imported them.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from taskqueue.errors import InvalidOption
from taskqueue.store.session_kinds import ASYNCHRONOUS_SQLALCHEMY, DJANGO, SQLALCHEMY, kinds_of, refused

Run: TypeAlias = Callable[[str, Mapping[str, Any]], Iterable[Any]]
"""Runs a statement with values for its ``:name`` and returns the rows."""

_NAME = re.compile(r":([a-z_]+)")

_ACCEPTED = (
    "pass a Connection or AsyncConnection of psycopg, a Session, Connection, AsyncSession or AsyncConnection of "
    "SQLAlchemy, or django.db.connection"
)
_FAILED = "session: its transaction has failed: roll it back, begin a new one and repeat its work"


def run_on(session: Any, loop: asyncio.AbstractEventLoop | None) -> Run:
    """Return what runs statements in the transaction of ``session``; an asynchronous one is used on its ``loop``.

    Raises ``InvalidOption`` for an object of another kind, and for one without an open transaction.
    """
    kinds = kinds_of(session)
    if isinstance(session, psycopg.Connection):
        _check(session)
        return lambda statement, values: _fetched(session, statement, values)
    if kinds & SQLALCHEMY:
        return lambda statement, values: _fetched_by_sqlalchemy(session, statement, values)
    if kinds & DJANGO:
        _check_django(session)
        return lambda statement, values: _fetched_by_django(session, statement, values)
    if isinstance(session, psycopg.AsyncConnection):
        _check(session)
        return _awaited(session, loop, _fetched_asynchronously)
    if kinds & ASYNCHRONOUS_SQLALCHEMY:
        return _awaited(session, loop, _fetched_by_asynchronous_sqlalchemy)
    if "sqlite3.Connection" in kinds:
        raise InvalidOption("session: its database is sqlite, but the store is in PostgreSQL: use an Outbox")
    raise refused(session, _ACCEPTED)


def failed_transaction(error: Exception) -> InvalidOption | None:
    """If this driver error comes from a transaction that had already failed, return the error that says so."""
    cause = getattr(error, "orig", None) or error.__cause__ or error
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return InvalidOption(_FAILED) if state == "25P02" else None


def _check(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if raw.closed:
        raise InvalidOption(f"session={raw!r} is closed: pass an open connection")
    if raw.autocommit and raw.info.transaction_status is TransactionStatus.IDLE:
        raise InvalidOption(
            "session: no transaction is open on it, and it commits each statement: "
            "call this inside connection.transaction()"
        )


def _fetched(raw: psycopg.Connection[Any], statement: str, values: Mapping[str, Any]) -> list[Any]:
    with raw.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(percent(statement), values, prepare=False).fetchall()


async def _fetched_asynchronously(
    raw: psycopg.AsyncConnection[Any], statement: str, values: Mapping[str, Any]
) -> list[Any]:
    async with raw.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(percent(statement), values, prepare=False)
        return await cursor.fetchall()


def _fetched_by_sqlalchemy(session: Any, statement: str, values: Mapping[str, Any]) -> list[Any]:
    if not getattr(session, "is_active", True):
        raise InvalidOption(_FAILED)
    connection = session if hasattr(session, "dialect") else session.connection()
    if connection.closed:
        raise InvalidOption(f"session={session!r} is closed: pass an open connection")
    if connection.dialect.name != "postgresql":
        raise InvalidOption(
            f"session: its database is {connection.dialect.name}, but the store is in PostgreSQL: "
            "use a connection to the database of the store"
        )
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise InvalidOption(
            "session: it has the isolation level AUTOCOMMIT, which commits each statement: use one without"
        )
    return [tuple(row) for row in connection.execute(sys.modules["sqlalchemy"].text(statement), dict(values))]


async def _fetched_by_asynchronous_sqlalchemy(session: Any, statement: str, values: Mapping[str, Any]) -> list[Any]:
    rows: list[Any] = await session.run_sync(_fetched_by_sqlalchemy, statement, values)
    return rows


def _check_django(connection: Any) -> None:
    if connection.vendor != "postgresql":
        raise InvalidOption(
            f"session: the database {connection.alias!r} of Django is {connection.vendor}, but the store is in "
            "PostgreSQL: use django.db.connections[…] of the database of the store"
        )
    if connection.needs_rollback:
        raise InvalidOption(_FAILED)
    if connection.get_autocommit() and not connection.in_atomic_block:
        raise InvalidOption("session: no transaction is open on it: call this inside django.db.transaction.atomic()")


def _fetched_by_django(connection: Any, statement: str, values: Mapping[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(percent(statement), values)
        rows: list[Any] = cursor.fetchall()
        return rows


def _awaited(
    session: Any, loop: asyncio.AbstractEventLoop | None, fetched: Callable[..., Coroutine[Any, Any, list[Any]]]
) -> Run:
    """Return what runs statements of an asynchronous session on its loop, while this thread waits."""
    if loop is None:
        raise InvalidOption(f"session={session!r} is asynchronous: pass it to a call of AsyncScheduler")

    def run(statement: str, values: Mapping[str, Any]) -> list[Any]:
        return asyncio.run_coroutine_threadsafe(fetched(session, statement, values), loop).result()

    return run


def percent(statement: str) -> str:
    """Return the statement as drivers with ``%(name)s`` read it."""
    return _NAME.sub(r"%(\1)s", statement)
