"""Helpers for the tests of applications: fixtures for pytest, loaded on request, and a mixin for ``unittest``.

``pytest_plugins = ["taskqueue.testing"]`` in a ``conftest.py``, or ``-p taskqueue.testing``, loads the fixtures
``scheduler``, ``jobs``, ``clock``, ``start_node`` and ``node``. They need pytest, the mixin does not.
"""

from importlib.util import find_spec

from taskqueue.testing.clock import MovableClock
from taskqueue.testing.jobs import Jobs
from taskqueue.testing.mixin import TaskqueueMixin
from taskqueue.testing.node import TestNode

if find_spec("pytest") is not None:
    from taskqueue.testing.fixtures import (
        clock,
        empty_database,
        jobs,
        node,
        scheduler,
        start_node,
        store_clock,
        taskqueue_hooks,
        taskqueue_url,
    )

__all__ = [
    "Jobs",
    "MovableClock",
    "TaskqueueMixin",
    "TestNode",
    "clock",
    "empty_database",
    "jobs",
    "node",
    "scheduler",
    "start_node",
    "store_clock",
    "taskqueue_hooks",
    "taskqueue_url",
]
