"""Statements run on what applications have, and never outside of a transaction of theirs."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from taskqueue import NewJob, Scheduler
from taskqueue.errors import InvalidOption
from taskqueue.outbox import AsyncOutbox, Outbox, connections
from tests.outbox.jobs import Echo

paramstyle = "named"  # of the driver that this module is for its connections


class Named(sqlite3.Connection):
    """A connection of a driver that takes values by name."""


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Return the file of a database with an outbox."""
    file = str(tmp_path / "app.db")
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute(Outbox(connect).create_sql("sqlite"))
    return file


@pytest.fixture
def mine(database: str) -> Iterator[sqlite3.Connection]:
    """Return a connection of the application."""
    with closing(sqlite3.connect(database)) as raw:
        yield raw


def connect() -> Any:
    """Connect to nothing: these tests relay nothing."""
    raise AssertionError


def rows(session: Any) -> list[tuple[Any, ...]]:
    """Return what is in the outbox."""
    return connections.execute(session, "SELECT job, data, error FROM taskqueue_outbox ORDER BY id", {})


EXPECTED = [("tests.outbox.jobs:Echo", '{"text":"50 % of :it? ü"}', None)]
DATA = {"text": "50 % of :it? ü"}


def test_a_row_is_part_of_the_transaction(mine: sqlite3.Connection) -> None:
    outbox = Outbox(connect)
    outbox.add_job(Echo, DATA, session=mine)
    mine.rollback()
    assert rows(mine) == []

    with mine:
        outbox.add_job(Echo, DATA, session=mine)
    assert rows(mine) == EXPECTED


def test_values_are_passed_in_the_style_of_the_driver(database: str) -> None:
    with closing(sqlite3.connect(database, factory=Named)) as named, named:
        Outbox(connect).add_job(Echo, DATA, session=named)
        assert rows(named) == EXPECTED


def test_rows_of_any_form_are_read(database: str, mine: sqlite3.Connection, postgresql_url: str) -> None:
    mine.row_factory = sqlite3.Row
    Outbox(connect).add_job(Echo, DATA, session=mine)
    assert rows(mine) == EXPECTED
    mine.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }
    assert rows(mine) == EXPECTED

    with psycopg.connect(postgresql_url, row_factory=dict_row) as raw:
        raw.execute(Outbox(connect).create_sql("postgresql").replace("TABLE IF", "TEMPORARY TABLE IF"))
        Outbox(connect).add_job(Echo, DATA, session=raw)
        assert rows(raw) == EXPECTED


def test_a_connection_that_commits_each_statement_is_refused(database: str, postgresql_url: str) -> None:
    outbox = Outbox(connect)
    with closing(sqlite3.connect(database, isolation_level=None)) as raw:
        with pytest.raises(InvalidOption, match="no transaction is open on it, and it commits each statement: begin"):
            outbox.add_job(Echo, DATA, session=raw)
        raw.execute("BEGIN")
        outbox.add_job(Echo, DATA, session=raw)
        assert rows(raw) == EXPECTED
    with closing(psycopg.connect(postgresql_url, autocommit=True)) as server:
        with pytest.raises(InvalidOption, match="commits each statement"):
            outbox.add_job(Echo, DATA, session=server)
        with server.transaction():
            server.execute(outbox.create_sql("postgresql").replace("TABLE IF", "TEMPORARY TABLE IF"))
            outbox.add_job(Echo, DATA, session=server)
            assert rows(server) == EXPECTED


def test_a_session_and_a_connection_of_sqlalchemy(database: str) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    outbox = Outbox(engine.connect)
    with Session(engine) as session, session.begin():
        outbox.add_job(Echo, DATA, session=session)
    scoped = scoped_session(sessionmaker(engine))  # as db.session of Flask-SQLAlchemy is
    outbox.add_job(Echo, DATA, session=scoped)
    scoped.rollback()
    with engine.connect() as connection:
        assert rows(connection) == EXPECTED
        outbox.add_job(Echo, DATA, session=connection)
        connection.rollback()
        assert rows(connection) == EXPECTED
    automatic = engine.execution_options(isolation_level="AUTOCOMMIT")
    with (
        automatic.connect() as connection,
        pytest.raises(InvalidOption, match="without the isolation level AUTOCOMMIT"),
    ):
        outbox.add_job(Echo, DATA, session=connection)
    engine.dispose()


@pytest.mark.parametrize("session", [None, "shop.db", object()])
def test_what_is_no_connection_is_refused(session: Any) -> None:
    with pytest.raises(InvalidOption, match="cannot be used: pass an open connection of a DB-API driver"):
        Outbox(connect).add_job(Echo, DATA, session=session)


def test_what_only_leads_to_a_session_is_refused_with_the_way_to_it(mine: sqlite3.Connection) -> None:
    engine, factory = sqlalchemy.create_engine("sqlite://"), sessionmaker()
    for session, way_out in [
        (engine, "sqlalchemy.engine.base.Engine cannot be used: pass one of its connections, as in: with engine.begin"),
        (engine.begin(), "it is not entered yet: pass what comes out of it"),
        (factory, "it makes sessions: pass one, as in: with factory.begin()"),
        (Session(engine).begin(), "pass its session"),
        (engine.raw_connection(), "pass its driver_connection"),
        (mine.cursor(), "sqlite3.Cursor cannot be used: it is a cursor: pass its connection"),
        (_like("psycopg_pool.pool", "ConnectionPool"), r"as in: with pool.connection\(\) as connection"),
    ]:
        with pytest.raises(InvalidOption, match=way_out):
            Outbox(connect).add_job(Echo, DATA, session=session)
    for session, way_out in [
        (
            create_async_engine("postgresql+psycopg://nobody@localhost/none"),
            r"async with engine.begin\(\) as connection",
        ),
        (async_sessionmaker(), r"as in: async with factory.begin\(\) as session"),
        (
            _like("asyncpg.connection", "Connection"),
            "asyncpg.connection.Connection .* of SQLAlchemy on asyncpg",
        ),
        (_like("asyncpg.pool", "Pool"), "AsyncConnection of SQLAlchemy on asyncpg"),
    ]:
        with pytest.raises(InvalidOption, match=way_out):
            asyncio.run(AsyncOutbox(connect).add_job(Echo, DATA, session=session))
    engine.dispose()


def test_a_url_in_place_of_a_session_is_not_shown_since_it_may_have_a_password() -> None:
    with pytest.raises(InvalidOption, match="a session of type str cannot be used") as refused:
        Outbox(connect).add_job(Echo, DATA, session="postgresql://shop:secret@db-1/shop")
    assert "secret" not in str(refused.value)


def _like(module: str, name: str) -> Any:
    """Return an object that looks like one of a package that the tests do not need otherwise."""
    return type(name, (), {"__module__": module})()


def test_an_asynchronous_session_is_refused_with_the_way_out() -> None:
    engine = create_async_engine("postgresql+psycopg://nobody@localhost/none")
    with pytest.raises(InvalidOption, match="is asynchronous: use an AsyncOutbox, and await its add_job"):
        Outbox(connect).add_job(Echo, DATA, session=AsyncSession(engine))
    with pytest.raises(InvalidOption, match=r"AsyncConnection.* belongs to no driver whose paramstyle"):
        connections.execute(engine.connect(), "SELECT 1", {})  # as a relay does whose outbox connects like this


def test_jobs_are_added_in_the_transactions_of_asynchronous_sessions(postgresql_url: str, tmp_path: Path) -> None:
    async def trace(new: NewJob) -> None:
        new.meta["trace"] = "t-1"

    outbox = AsyncOutbox(
        lambda: psycopg.connect(postgresql_url), table=f"outbox_{secrets.token_hex(6)}", before_add=trace
    )

    async def add(session: Any) -> None:
        await outbox.add_job(Echo, "rolled back", session=session)
        await session.rollback()
        await outbox.add_job(Echo, DATA, session=session)
        await outbox.add_jobs([(Echo, 1), (Echo, 2, {"priority": 3})], session=session)
        with pytest.raises(InvalidOption, match="priority=99"):
            await outbox.add_job(Echo, 3, session=session, priority=99)
        await session.commit()

    async def add_with_each() -> None:
        engine = create_async_engine(f"postgresql+psycopg{postgresql_url[10:]}")
        raw = await psycopg.AsyncConnection.connect(postgresql_url)
        registry = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        async with AsyncSession(engine) as session, engine.connect() as connection, raw:
            for each in (session, connection, raw, registry):
                await add(each)
        await registry.remove()
        await engine.dispose()

    with psycopg.connect(postgresql_url, autocommit=True) as raw, Scheduler(str(tmp_path / "jobs.db")) as scheduler:
        raw.execute(outbox.create_sql("postgresql"))
        asyncio.run(add_with_each())
        assert outbox.relay(scheduler) == 12
        raw.execute(f"DROP TABLE {outbox.table}")
        jobs = list(scheduler.get_jobs({}))
    assert sorted(str(job.data) for job in jobs) == sorted(map(str, [DATA, 1, 2] * 4))
    assert [job.meta for job in jobs] == [{"trace": "t-1"}] * 12


def test_an_asynchronous_outbox_refuses_what_it_cannot_await_or_what_commits_each_statement(
    mine: sqlite3.Connection, postgresql_url: str
) -> None:
    async def add(session: Any) -> None:
        await AsyncOutbox(connect).add_job(Echo, DATA, session=session)

    async def add_where_each_statement_commits() -> None:
        async with await psycopg.AsyncConnection.connect(postgresql_url, autocommit=True) as raw:
            await add(raw)

    with pytest.raises(InvalidOption, match="cannot be awaited: pass an AsyncSession or AsyncConnection, or use an"):
        asyncio.run(add(mine))
    with pytest.raises(InvalidOption, match="no transaction is open on it, and it commits each statement"):
        asyncio.run(add_where_each_statement_commits())


def test_a_driver_with_another_style_is_refused(mine: sqlite3.Connection) -> None:
    class Cursorless:
        """A connection of no driver."""

        def cursor(self) -> None:
            """Return nothing."""

        commit = rollback = cursor

    with pytest.raises(InvalidOption, match="belongs to no driver whose paramstyle is qmark, format, pyformat, named"):
        Outbox(connect).add_job(Echo, DATA, session=_outside(Cursorless)())


def _outside(kind: type) -> type:
    """Return the class as if it were of a module without ``paramstyle``."""
    kind.__module__ = "tests.outbox.elsewhere"
    return kind
