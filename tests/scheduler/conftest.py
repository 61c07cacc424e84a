"""A scheduler on an empty embedded store, and a second connection that plays the node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.store import Store
from taskqueue.store.open import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the address of an empty store."""
    return f"sqlite://{tmp_path}/jobs.db?synchronous=normal"


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    """Return a scheduler on it."""
    with Scheduler(url) as scheduler:
        yield scheduler


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Return another connection to it, as a node has one."""
    with closing(open_store(url)) as store:
        yield store
