"""The testing kit, on the embedded store and on MongoDB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from taskqueue.testing import clock, jobs, node, scheduler, start_node, store_clock, taskqueue_hooks
from tests.servers import PATIENCE, with_database

__all__ = ["clock", "jobs", "node", "scheduler", "start_node", "store_clock", "taskqueue_hooks"]


@pytest.fixture(scope="module")
def mongo_database(mongo_set: str) -> Iterator[Database[dict[str, Any]]]:
    """Return the database that the tests of a file share; its threads must not outlive the file: others fork."""
    with MongoClient[dict[str, Any]](mongo_set) as client:
        yield client[f"testing-{os.getpid()}"]


@pytest.fixture(params=["sqlite", "mongodb"])
def taskqueue_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/jobs.db?synchronous=normal"
    database: Database[dict[str, Any]] = request.getfixturevalue("mongo_database")
    for name in database.list_collection_names():
        database[name].delete_many({})
    return f"{with_database(request.getfixturevalue('mongo_set'), database.name)}&timeoutMS={PATIENCE * 1000:.0f}"
