"""A client on an empty store, blocking or of asyncio, and a second connection that plays the node."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.scheduler.awaited import awaited
from tests.servers import PATIENCE, emptied


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    if request.param == "mongodb":
        emptied_one = emptied(request.getfixturevalue("mongo_set"), f"scheduler_{os.getpid()}")
        return f"{emptied_one}&timeoutMS={PATIENCE * 1000:.0f}"
    if request.param == "postgresql":
        return f"{request.getfixturevalue('postgresql_url')}?taskqueue.schema=scheduler_{secrets.token_hex(6)}"
    return f"sqlite://{tmp_path}/jobs.db?synchronous=normal"


@pytest.fixture(params=["blocking", "asyncio"])
def scheduler(request: pytest.FixtureRequest, url: str) -> Iterator[Scheduler]:
    """Return a client on it: the same calls mean the same in asyncio."""
    if request.param == "blocking":
        with Scheduler(url) as scheduler:
            yield scheduler
        return
    scheduler, end_loop = awaited(url)
    with scheduler:
        yield scheduler
    assert end_loop() == []


@pytest.fixture
def blocking(url: str) -> Iterator[Scheduler]:
    """Return a blocking client alone, for a test of its parts."""
    with Scheduler(url) as scheduler:
        yield scheduler


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Return another connection to it, as a node has one."""
    with closing(open_store(url)) as store:
        yield store
