"""What tests of several parts of the daemon need."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from taskqueue.daemon.runtime import leftovers

RLIMIT_LOCKS = 10


@pytest.fixture
def marked_as_manager() -> Iterator[None]:
    """Mark this process as a manager for a test with workers: a node that starts on this host kills others."""
    before = resource.getrlimit(RLIMIT_LOCKS)
    leftovers.mark()
    yield
    resource.setrlimit(RLIMIT_LOCKS, before)
