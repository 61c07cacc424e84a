"""The fixtures of the pytest plugin: each test has a store of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store.open import open_store
from taskqueue.testing.clock import MovableClock
from taskqueue.testing.jobs import Jobs
from taskqueue.testing.node import TestNode
from taskqueue.testing.own_store import jobs_of_test, nodes_of_test, scheduler_of_test


@pytest.fixture(scope="session", name="_empty_database")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of an empty store: copying it is much faster than creating a new store, which is synced."""
    file = tmp_path_factory.mktemp("taskqueue") / "empty.db"
    open_store(str(file)).close()
    return file


@pytest.fixture
def taskqueue_url(_empty_database: Path, tmp_path: Path) -> str:
    """Return the address of the test's own empty store; override it to test on another one, such as MongoDB."""
    shutil.copy(_empty_database, tmp_path / "taskqueue.db")
    return f"sqlite://{tmp_path}/taskqueue.db?synchronous=normal"


@pytest.fixture(name="_store_clock")
def store_clock() -> MovableClock:
    """Return the clock of the store, which runs until the fixture ``clock`` is used."""
    return MovableClock()


@pytest.fixture
def clock(_store_clock: MovableClock) -> MovableClock:
    """Return the clock of the test's store; it stands still until the test moves it."""
    _store_clock.stop()
    return _store_clock


@pytest.fixture
def taskqueue_hooks() -> Mapping[str, Callable[..., Any]]:
    """Return the hooks of the test's scheduler by name: none, unless you override this fixture."""
    return {}


@pytest.fixture
def scheduler(
    taskqueue_url: str, _store_clock: MovableClock, taskqueue_hooks: Mapping[str, Callable[..., Any]]
) -> Iterator[Scheduler]:
    """Return a scheduler on the test's store; during the test, every scheduler without an address uses this store."""
    with scheduler_of_test(taskqueue_url, _store_clock, taskqueue_hooks) as scheduler:
        yield scheduler


@pytest.fixture
def start_node(taskqueue_url: str, _store_clock: MovableClock) -> Iterator[Callable[..., TestNode]]:
    """Return a function that starts a node on the test's store, ``start_node("--max-children", "4", TZ="UTC")``.

    Its arguments are options of ``taskqueue-node`` and variables. All nodes are stopped at the end of the test.
    """
    with nodes_of_test(taskqueue_url, _store_clock) as start:
        yield start


@pytest.fixture
def node(start_node: Callable[..., TestNode]) -> TestNode:
    """Return a node that runs the jobs of the test's store in real workers."""
    return start_node()


@pytest.fixture
def jobs(
    scheduler: Scheduler, taskqueue_url: str, _store_clock: MovableClock, start_node: Callable[..., TestNode]
) -> Iterator[Jobs]:
    """Return the helper for the jobs of the test's store: ``assert_added``, ``drain``, ``perform``, ``crash`` …"""
    with jobs_of_test(scheduler, taskqueue_url, _store_clock, start_node) as jobs:
        yield jobs
