"""The stores that the contract is checked on; the tests never ask which one they got."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from taskqueue.store import Store
from taskqueue.store.opening import open_store
from tests.servers import with_database

Opener = Callable[[], Store]


@pytest.fixture(params=["sqlite", "mongodb"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    return {"sqlite": _sqlite, "mongodb": _mongodb}[request.param](request, tmp_path)


@pytest.fixture
def opener(store_url: str) -> Iterator[Opener]:
    """Return what opens one more connection to the same store."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(open_store(store_url)))


@pytest.fixture
def store(opener: Opener) -> Store:
    """Return an empty store."""
    return opener()


def _sqlite(_: pytest.FixtureRequest, folder: Path) -> str:
    return f"sqlite://{folder}/jobs.db"


def _mongodb(request: pytest.FixtureRequest, _: Path) -> str:
    server: str = request.getfixturevalue("mongo_set")
    name = f"contract-{ObjectId()}"
    request.addfinalizer(lambda: _drop(server, name))
    return with_database(server, name)


def _drop(server: str, name: str) -> None:
    with MongoClient[dict[str, Any]](server) as client:
        client.drop_database(name)
