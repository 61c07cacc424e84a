"""What a claim costs beside the backlog of a key whose places are all taken, counted: lanes are looked at, not jobs.

``python -m tests.store.full_keys`` takes the time with 100,000 jobs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from taskqueue.store import Store
from taskqueue.store.mongodb import open_mongodb
from taskqueue.store.open import open_store
from tests.store.full_keys import Backlog
from tests.store.records import NOON, SECOND
from tests.store.test_sqlite_costs import steps

MANY = 3_000


@pytest.fixture
def database(mongo_set: str) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_set) as client:
        yield client[f"lanes-{os.getpid()}"]
        client.drop_database(f"lanes-{os.getpid()}")


def examined(database: Database[dict[str, Any]], call: Callable[[], object]) -> int:
    """Return how many keys and documents the server looks at for a call, as its profiler says."""
    database.command("profile", 2)
    call()
    database.command("profile", 0)
    looks = list(database["system.profile"].find())
    database.drop_collection("system.profile")
    assert any("keysExamined" in one for one in looks)
    return sum(one.get("keysExamined", 0) + one.get("docsExamined", 0) for one in looks)


def check(store: Store, count: Callable[[Callable[[], object]], int]) -> None:
    """Compare a claim beside two waiting jobs of a full key with one beside thousands; each looks for what is due."""
    backlog = Backlog(store)
    backlog.claim(NOON)  # statements are prepared once
    alone = count(lambda: backlog.claim(NOON + SECOND))
    backlog.grow(MANY)

    assert count(lambda: backlog.claim(NOON + 2 * SECOND)) < 1.2 * alone + 50


def test_a_backlog_of_a_full_key_takes_sqlite_no_steps(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db?synchronous=normal")) as store:
        check(store, lambda call: steps(store, call))


def test_a_backlog_of_a_full_key_is_not_examined_by_mongodb(database: Database[dict[str, Any]]) -> None:
    with closing(open_mongodb(database)) as store:
        check(store, lambda call: examined(database, call))
