"""The stores of the contract, and a scheduler on the same one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue import Scheduler
from tests.store.conftest import mongo_database, opener, store, store_url

__all__ = ["mongo_database", "opener", "scheduler", "store", "store_url"]


@pytest.fixture
def scheduler(store_url: str) -> Iterator[Scheduler]:
    """Return a scheduler on the empty store that ``store`` is another connection to."""
    with Scheduler(store_url) as scheduler:
        yield scheduler
