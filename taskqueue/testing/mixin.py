"""The counterpart of the pytest fixtures for ``unittest``: a mixin whose tests each have a store of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from taskqueue.testing.clock import MovableClock
from taskqueue.testing.own_store import jobs_of_test, nodes_of_test, scheduler_of_test

if TYPE_CHECKING:
    from unittest import TestCase

    from taskqueue.scheduler.scheduler import Scheduler
    from taskqueue.testing.jobs import Jobs
    from taskqueue.testing.node import TestNode

    _Base = TestCase
else:
    _Base = object


class TaskqueueMixin(_Base):
    """Name it before ``TestCase``: each test gets an empty store, which every scheduler without an address uses.

    ``taskqueue_url`` and ``taskqueue_hooks`` may be set by a class: another store, which must be empty, and the hooks
    of the test's scheduler by their names. A ``setUp`` of your own calls ``super().setUp()`` first.
    """

    taskqueue_url: str = ""
    """The address of the store; empty for a file in a temporary folder, and its address while a test runs."""
    taskqueue_hooks: Mapping[str, Callable[..., Any]] = {}
    scheduler: Scheduler
    """A scheduler on the test's store."""
    jobs: Jobs
    """The helper for the jobs of the test's store: ``assert_added``, ``drain``, ``perform``, ``crash`` …"""
    start_node: Callable[..., TestNode]
    """Starts a node, ``self.start_node("--max-children", "4", TZ="UTC")``, which is stopped at the end of the test."""

    def setUp(self) -> None:
        """Make the store of the test."""
        if not hasattr(self, "addCleanup"):
            raise TypeError(f"{type(self).__name__} is not a TestCase: name one after TaskqueueMixin among its bases")
        super().setUp()
        self._store_clock = MovableClock()
        with ExitStack() as stack:
            if not type(self).taskqueue_url:
                folder = stack.enter_context(TemporaryDirectory(prefix="taskqueue-test-"))
                self.taskqueue_url = f"sqlite://{quote(folder)}/taskqueue.db?synchronous=normal"
            url, clock = self.taskqueue_url, self._store_clock
            self.scheduler = stack.enter_context(scheduler_of_test(url, clock, self.taskqueue_hooks))
            self.start_node = stack.enter_context(nodes_of_test(url, clock))
            self.jobs = stack.enter_context(jobs_of_test(self.scheduler, url, clock, self.start_node))
            self.addCleanup(stack.pop_all().close)

    @property
    def clock(self) -> MovableClock:
        """The clock of the test's store; from its first use on, it stands still until the test moves it."""
        self._store_clock.stop()
        return self._store_clock
