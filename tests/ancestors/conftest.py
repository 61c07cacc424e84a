"""The stores of the contract, and a scheduler on the same one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue import Scheduler
from taskqueue.store import Store
from tests.store.conftest import Opener, mongo_database, opener, postgresql_connection, store_url
from tests.store.fair import ORDERS, ordered

__all__ = ["mongo_database", "opener", "postgresql_connection", "scheduler", "store", "store_url"]


@pytest.fixture(params=ORDERS)
def store(request: pytest.FixtureRequest, opener: Opener) -> Store:
    """Return an empty store, whose claims are in either order."""
    return ordered(opener(), request.param)


@pytest.fixture
def scheduler(store_url: str) -> Iterator[Scheduler]:
    """Return a scheduler on the empty store that ``store`` is another connection to."""
    with Scheduler(store_url) as scheduler:
        yield scheduler
