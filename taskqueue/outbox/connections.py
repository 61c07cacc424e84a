"""Runs statements on an application's connection: of any DB-API driver, of SQLAlchemy or of Django.

No driver is imported: everything needed from it is in modules that the application has imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.store.session_kinds import (
    ASYNCHRONOUS_SQLALCHEMY,
    DJANGO,
    SQLALCHEMY,
    current,
    kinds_of,
    refused,
)

_NAME = re.compile(r":([a-z_0-9]+)")
_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s", "named": None}
"""How the place of a value is written in each ``paramstyle`` of the DB-API (PEP 249); None: as here, by its name."""

_ACCEPTED = "pass an open connection of a DB-API driver, a Session or Connection of SQLAlchemy, or django.db.connection"


def check_transaction(session: Any) -> None:
    """Raise ``InvalidOption`` for a session without an open transaction that commits each statement."""
    kinds = kinds_of(session)
    if kinds & DJANGO:
        if session.needs_rollback:
            raise InvalidOption("session: its transaction has failed: roll it back, and repeat its work")
        commits = session.get_autocommit() and not session.in_atomic_block
        way_out = "call this inside django.db.transaction.atomic()"
    elif kinds & SQLALCHEMY:
        connection = session if hasattr(session, "dialect") else session.connection()
        commits = _commits_each_statement(connection.connection.dbapi_connection)
        way_out = "use one without the isolation level AUTOCOMMIT"
    else:
        commits = _commits_each_statement(session)
        way_out = "begin a transaction first, or connect without autocommit"
    if commits:
        raise InvalidOption(f"session: no transaction is open on it, and it commits each statement: {way_out}")


def execute(session: Any, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run a statement with values for its ``:name``, and return its rows; a statement without rows has none."""
    kinds = kinds_of(session)
    if kinds & SQLALCHEMY:
        result = session.execute(sys.modules["sqlalchemy"].text(statement), dict(values))
        return [tuple(row) for row in result] if result.returns_rows else []
    style = "format" if kinds & DJANGO else _paramstyle(session)
    cursor = session.cursor()
    try:
        cursor.execute(*_written(statement, values, style))
        rows = [] if cursor.description is None else cursor.fetchall()
    finally:
        cursor.close()
    return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in rows]


def insert(session: Any, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run a statement with the values of each row, in the open transaction of the session."""
    session = current(session)
    _check_kind(session)
    check_transaction(session)
    for values in rows:
        execute(session, statement, values)


async def insert_in_loop(session: Any, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Do as ``insert``, with an asynchronous session."""
    session = current(session)
    if kinds_of(session) & ASYNCHRONOUS_SQLALCHEMY:
        await session.run_sync(insert, statement, rows)
        return
    if not _is_asynchronous(session):
        raise refused(session, "it cannot be awaited: pass an AsyncSession or AsyncConnection, or use an Outbox")
    check_transaction(session)
    style = _paramstyle(session)
    cursor = session.cursor()
    if isawaitable(cursor):  # of aiosqlite, say
        cursor = await cursor
    async with cursor:
        for values in rows:
            await cursor.execute(*_written(statement, values, style))


def commit(session: Any) -> None:
    """Commit, unless a transaction of Django is open, which ends in its own place."""
    if not getattr(session, "in_atomic_block", False):
        session.commit()


def rollback(session: Any) -> None:
    """End a transaction that has only read, unless it is one of Django, which ends in its own place."""
    if not getattr(session, "in_atomic_block", False):
        session.rollback()


def close(session: Any) -> None:
    """Close the connection, unless a transaction of Django is open on it."""
    if not getattr(session, "in_atomic_block", False):
        session.close()


def _check_kind(session: Any) -> None:
    if kinds_of(session) & {*SQLALCHEMY, *DJANGO}:
        return
    if _is_asynchronous(session):
        raise refused(session, "it is asynchronous: use an AsyncOutbox, and await its add_job")
    if not callable(getattr(session, "cursor", None)) or not callable(getattr(session, "commit", None)):
        raise refused(session, _ACCEPTED)


def _is_asynchronous(session: Any) -> bool:
    return iscoroutinefunction(getattr(session, "commit", None))


def _commits_each_statement(raw: Any) -> bool:
    """Return whether no transaction is open and the next statement opens none, as far as the driver can say."""
    commits = getattr(raw, "autocommit", None)  # of psycopg, sqlite3 from Python 3.12 on, mysql.connector
    if not isinstance(commits, bool):
        ask = getattr(raw, "get_autocommit", None)  # of PyMySQL and mysqlclient
        commits = bool(ask()) if callable(ask) else getattr(raw, "isolation_level", "") is None  # of sqlite3
    if not commits:
        return False
    status = getattr(getattr(raw, "info", None), "transaction_status", 0)
    return not (getattr(raw, "in_transaction", False) is True or status or getattr(raw, "server_status", 0) & 1)


def _paramstyle(session: Any) -> str:
    """Return how the driver of the connection writes values in statements."""
    for kind in type(session).__mro__:
        module = kind.__module__
        while module:
            style = getattr(sys.modules.get(module), "paramstyle", None)
            if style in _MARKS:
                return str(style)
            module = module.rpartition(".")[0]
    raise refused(session, f"it belongs to no driver whose paramstyle is {', '.join(_MARKS)}: {_ACCEPTED}")


def _written(statement: str, values: Mapping[str, Any], style: str) -> tuple[str, Any]:
    """Return the statement and its values as the driver takes them."""
    names, mark = _NAME.findall(statement), _MARKS[style]
    if mark is None:
        return statement, {name: values[name] for name in names}
    return _NAME.sub(mark, statement), [values[name] for name in names]
