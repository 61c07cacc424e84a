"""The kinds of sessions and connections of other libraries, known by name, and what to pass in place of others."""

from __future__ import annotations

from typing import Any

from taskqueue.errors import InvalidOption

SQLALCHEMY = {"sqlalchemy.orm.session.Session", "sqlalchemy.engine.base.Connection"}
ASYNCHRONOUS_SQLALCHEMY = {
    "sqlalchemy.ext.asyncio.session.AsyncSession",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection",
}
DJANGO = {"django.utils.connection.ConnectionProxy", "django.db.backends.base.base.BaseDatabaseWrapper"}
"""Kinds of sessions: nothing is imported to know them, since the application has imported what it passes."""

_REGISTRIES = {"sqlalchemy.orm.scoping.scoped_session", "sqlalchemy.ext.asyncio.scoping.async_scoped_session"}
_ASYNCPG = "pass an AsyncConnection of SQLAlchemy on asyncpg: create_async_engine('postgresql+asyncpg://…').connect()"
_NOT_ENTERED = "it is not entered yet: pass what comes out of it, the session in: with … as session"
_WAYS_OUT = {
    "contextlib._GeneratorContextManager": _NOT_ENTERED,
    "contextlib._AsyncGeneratorContextManager": f"{_NOT_ENTERED}, with async before it",
    "sqlalchemy.orm.session.sessionmaker": "it makes sessions: pass one, as in: with factory.begin() as session",
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": (
        "it makes sessions: pass one, as in: async with factory.begin() as session"
    ),
    "sqlalchemy.orm.session.SessionTransaction": "pass its session",
    "sqlalchemy.engine.base.Engine": "pass one of its connections, as in: with engine.begin() as connection",
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": (
        "pass one of its connections, as in: async with engine.begin() as connection"
    ),
    "sqlalchemy.pool.base._ConnectionFairy": "pass its driver_connection",
    "psycopg_pool.pool.ConnectionPool": "pass one of its connections, as in: with pool.connection() as connection",
    "psycopg_pool.pool_async.AsyncConnectionPool": (
        "pass one of its connections, as in: async with pool.connection() as connection"
    ),
    "asyncpg.connection.Connection": _ASYNCPG,
    "asyncpg.pool.PoolConnectionProxy": _ASYNCPG,
    "asyncpg.pool.Pool": _ASYNCPG,
    "django.db.utils.ConnectionHandler": "pass one of them: connections['default']",
    "django.db.transaction.Atomic": "pass django.db.connection, within the transaction",
}
"""What to pass in place of a kind that looks like a session and is none."""


def kinds_of(session: object) -> set[str]:
    """Return the full names of the session's class and of its bases."""
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in type(session).__mro__}


def current(session: Any) -> Any:
    """Return the session of this thread or task, if one is passed that has a session for each of them."""
    return session() if kinds_of(session) & _REGISTRIES else session


def refused(session: object, accepted: str) -> InvalidOption:
    """Return the error for a value that is not a session: it says what to pass instead, or else what is ``accepted``.

    It shows the type alone, since a URL that is passed may have a password.
    """
    kinds = kinds_of(session)
    ways_out = [way_out for kind, way_out in _WAYS_OUT.items() if kind in kinds]
    if hasattr(session, "fetchall"):
        ways_out = ["it is a cursor: pass its connection"]
    kind = f"{type(session).__module__}.{type(session).__qualname__}".removeprefix("builtins.")
    return InvalidOption(f"a session of type {kind} cannot be used: {(ways_out or [accepted])[0]}")
