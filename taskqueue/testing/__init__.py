"""The pytest plugin for applications: fixtures ``scheduler``, ``jobs``, ``clock``, ``start_node`` and ``node``.

It is loaded only on request: ``pytest_plugins = ["taskqueue.testing"]`` in a ``conftest.py``, or
``-p taskqueue.testing``.
"""

from taskqueue.testing.clock import MovableClock
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
from taskqueue.testing.jobs import Jobs
from taskqueue.testing.node import TestNode

__all__ = [
    "Jobs",
    "MovableClock",
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
