"""The store of one test, which every scheduler without an address uses until the test ends, and its nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from taskqueue.scheduler.connection import StoreOpener, standing_in
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store.open import open_store
from taskqueue.testing.clock import MovableClock
from taskqueue.testing.jobs import Jobs
from taskqueue.testing.node import TestNode

ADDRESS = "TASKQUEUE_URL"


@contextmanager
def scheduler_of_test(url: str, clock: MovableClock, hooks: Mapping[str, Callable[..., Any]]) -> Iterator[Scheduler]:
    """Yield a scheduler on the store; in the block, every scheduler without an address also uses this store."""
    opener = StoreOpener(open=lambda: open_store(url, clock.now))
    before = os.environ.get(ADDRESS)
    os.environ[ADDRESS] = url
    try:
        with standing_in(opener), Scheduler(opener, **hooks) as scheduler:  # type: ignore[arg-type]  # by name
            yield scheduler
    finally:
        if before is None:
            del os.environ[ADDRESS]
        else:
            os.environ[ADDRESS] = before


@contextmanager
def nodes_of_test(url: str, clock: MovableClock) -> Iterator[Callable[..., TestNode]]:
    """Yield a function that starts a node on the store; all nodes are stopped at the end of the block."""
    started: list[TestNode] = []

    def start(*options: str, **variables: str) -> TestNode:
        if clock.is_moved:
            raise AssertionError(
                "a node runs by the host's clock, but this test has moved its own: start the node first"
            )
        with closing(open_store(url)):  # created here, so that no two processes create it
            started.append(TestNode(url, options, variables))
        return started[-1]

    try:
        yield start
    finally:
        for node in started:
            if node.is_running:
                node.stop()


@contextmanager
def jobs_of_test(
    scheduler: Scheduler, url: str, clock: MovableClock, start_node: Callable[..., TestNode]
) -> Iterator[Jobs]:
    """Yield the helper for the jobs of the store."""
    with closing(open_store(url, clock.now)) as store:
        yield Jobs(scheduler, store, clock, start_node)
