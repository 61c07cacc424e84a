"""What a job that comes alone costs MongoDB: the commands of node and caller together, as the server counts them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from taskqueue import Scheduler
from tests.acceptance.work import Echo
from tests.nodes import node
from tests.servers import emptied

NAME = "costs"
JOBS = 20


@pytest.fixture
def database(mongo_set: str) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_set) as client:
        client.drop_database(NAME)
        yield client[NAME]
        client.drop_database(NAME)


@contextmanager
def counted(database: Database[dict[str, Any]]) -> Iterator[Counter[str]]:
    """Count the commands of all clients while the block runs, but for the waits of change streams."""
    counts: Counter[str] = Counter()
    database.command("profile", 2)
    try:
        yield counts
    finally:
        database.command("profile", 0)
        for one in database["system.profile"].find({"op": {"$ne": "getmore"}}, {"op": 1, "command": 1, "ns": 1}):
            name = next(iter(one.get("command", {})), one["op"]) if one["op"] == "command" else one["op"]
            counts[f"{name} {one['ns'].partition('.')[2].removeprefix('taskqueue_')}"] += 1


def test_a_job_alone_takes_twelve_commands(mongo_set: str, database: Database[dict[str, Any]], tmp_path: Path) -> None:
    url = emptied(mongo_set, NAME)
    with Scheduler(url) as scheduler, node(url, tmp_path, "--pm", "static", "--min-children", "2"):
        for number in range(5):
            assert scheduler.add_job(Echo, number).wait(60).result == number
        began = time.monotonic()
        with counted(database) as counts:
            for number in range(JOBS):
                assert scheduler.add_job(Echo, number).wait(60).result == number
        seconds = time.monotonic() - began

    assert counts["insert jobs"] == JOBS
    # One job: its insert, claim, outcome, a look who waits for it, the end of its effects, its figures, and three pages
    # of events with their numbers at most; and each second a scan, each third of a lease the renewals.
    assert sum(counts.values()) <= 12 * JOBS + 25 * seconds, counts
