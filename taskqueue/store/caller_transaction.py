"""Adds jobs inside a transaction that the application has started itself."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

from taskqueue.model.timestamps import host_time
from taskqueue.store import Store
from taskqueue.store.relational.engine import Adder
from taskqueue.store.relational.store import RelationalStore
from taskqueue.store.session_kinds import current
from taskqueue.store.sqlite.caller_transaction import CallerConnection, LateRinger

if TYPE_CHECKING:
    import asyncio


class LoopSession(NamedTuple):
    """An asynchronous session, and the only event loop on which it may be used."""

    session: Any
    loop: asyncio.AbstractEventLoop


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
