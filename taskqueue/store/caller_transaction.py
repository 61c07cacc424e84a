"""Adds jobs inside a transaction that the application has started itself."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

from taskqueue.errors import InvalidOption
from taskqueue.model.timestamps import host_time
from taskqueue.store import Store
from taskqueue.store.relational.engine import Adder
from taskqueue.store.relational.store import RelationalStore
from taskqueue.store.sqlite.caller_transaction import CallerConnection, LateRinger

if TYPE_CHECKING:
    import asyncio


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


class LoopSession(NamedTuple):
    """An asynchronous session, and the only event loop on which it may be used."""

    session: Any
    loop: asyncio.AbstractEventLoop


def kinds_of(session: object) -> set[str]:
    """Return the full names of the session's class and of its bases."""
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in type(session).__mro__}


def current(session: Any) -> Any:
    """Return the session of this thread or task, if one is passed that has a session for each of them."""
    return session() if kinds_of(session) & _REGISTRIES else session


def refused(session: object, accepted: str) -> InvalidOption:
    """Return the error for what is no session: what to pass in its place, or else what is ``accepted``.

    It shows the type alone, since a URL that is passed may have a password.
    """
    kinds = kinds_of(session)
    ways_out = [way_out for kind, way_out in _WAYS_OUT.items() if kind in kinds]
    if hasattr(session, "fetchall"):
        ways_out = ["it is a cursor: pass its connection"]
    kind = f"{type(session).__module__}.{type(session).__qualname__}".removeprefix("builtins.")
    return InvalidOption(f"a session of type {kind} cannot be used: {(ways_out or [accepted])[0]}")


def session_inserts(store: Store, session: Any) -> Adder:
    """Return an adder within the open transaction of the application's ``session``; raise ``InvalidOption``."""
    session, loop = session if isinstance(session, LoopSession) else (current(session), None)
    if isinstance(store, RelationalStore):
        return store.within(session, loop)
    from taskqueue.store.mongodb.store import MongoStore

    assert isinstance(store, MongoStore)
    return store.within(session)


def open_on_connection(connection: sqlite3.Connection) -> Store:
    """Return the store in the file of the application's own connection, through which everything is done.

    Raises ``ConfigError`` if it is not a connection to a store.
    """
    borrowed = CallerConnection(connection)
    return RelationalStore(borrowed, LateRinger(borrowed.address.bells, borrowed), host_time)
