"""The blocking client and the store that tests of the layer above have, for what is seen through them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue import Scheduler
from tests.scheduler.conftest import store, url

__all__ = ["scheduler", "store", "url"]


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    """Return a client on it."""
    with Scheduler(url) as scheduler:
        yield scheduler
