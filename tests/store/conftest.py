"""The stores that the contract is checked on; the tests never ask which one they got."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from taskqueue.store import SCHEMA_VERSION, Store
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.open import open_store
from tests.servers import PATIENCE, with_database

Opener = Callable[[], Store]


@pytest.fixture(scope="module")
def mongo_database(mongo_set: str) -> Iterator[Database[dict[str, Any]]]:
    """Return the database that the tests of a file share; its threads must not outlive the file: others fork."""
    with MongoClient[dict[str, Any]](mongo_set) as client:
        yield client[f"contract-{os.getpid()}"]


@pytest.fixture(scope="module")
def postgresql_connection(postgresql_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection that the tests of a file share; no statement is prepared, for tests change its tables."""
    with psycopg.connect(postgresql_url, autocommit=True, prepare_threshold=None) as connection:
        yield connection


SHARED = pytest.param("postgresql-shared", marks=pytest.mark.long)
"""The use of the lock to which many nodes change; a single client that is free to choose does not share it."""


@pytest.fixture(params=["sqlite", "postgresql", SHARED, "mongodb"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    kind, _, use = request.param.partition("-")
    url = {"sqlite": _sqlite, "mongodb": _mongodb, "postgresql": _postgresql}[kind](request, tmp_path)
    return f"{url}&taskqueue.lock={use}" if use else url


@pytest.fixture
def opener(store_url: str) -> Iterator[Opener]:
    """Return what opens one more connection to the same store."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(open_store(store_url)))


@pytest.fixture
def store(opener: Opener) -> Store:
    """Return an empty store."""
    return opener()


@pytest.fixture
def mongo_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MongoStore]:
    """Yield an empty store of MongoDB, for what no other has."""
    with closing(open_store(_mongodb(request, tmp_path))) as opened:
        assert isinstance(opened, MongoStore)
        yield opened


@pytest.fixture
def mongo_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store of MongoDB, for connections of a test's own."""
    return _mongodb(request, tmp_path)


def _sqlite(_: pytest.FixtureRequest, folder: Path) -> str:
    return f"sqlite://{folder}/jobs.db"


def _mongodb(request: pytest.FixtureRequest, _: Path) -> str:
    """Empty the database of this process: to create one with its indexes takes longer than most tests."""
    database: Database[dict[str, Any]] = request.getfixturevalue("mongo_database")
    for name in database.list_collection_names():
        database[name].delete_many({})
    return f"{with_database(request.getfixturevalue('mongo_set'), database.name)}&timeoutMS={PATIENCE * 1000:.0f}"


def _postgresql(request: pytest.FixtureRequest, _: Path) -> str:
    """Empty the schema of this process: to create one with its indexes takes longer than most tests."""
    connection: psycopg.Connection[Any] = request.getfixturevalue("postgresql_connection")
    name = f"contract_{os.getpid()}"
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (name,)).fetchall()
    versions = connection.execute(f"SELECT schema FROM {name}.store").fetchall() if tables else []
    if versions == [(SCHEMA_VERSION,)]:
        connection.execute("; ".join(f"DELETE FROM {name}.{table}" for (table,) in tables if table != "store"))
    else:  # a test of migrations has left it
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
    return f"{request.getfixturevalue('postgresql_url')}?taskqueue.schema={name}"
