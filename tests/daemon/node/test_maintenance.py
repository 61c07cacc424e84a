"""The tasks of a node for the whole store run one by one, so that none holds up a renewal together with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.clocks import ClockWatch
from taskqueue.daemon.node.leases import NodeLeases
from taskqueue.daemon.node.maintenance import Maintenance
from taskqueue.daemon.node.status import NodeStage
from taskqueue.daemon.runtime.loop import Loop, every
from taskqueue.daemon.settings import Settings
from taskqueue.model.record import Holder
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.daemon.node.conftest import context_of

TASKS = ("repair", "prune", "schedules", "due", "tidy_history")
HOLDER = Holder(seat="a", incarnation="1")


class Noted:
    """A store that notes the tasks in the order in which they come."""

    def __init__(self, real: Store, done: list[str]) -> None:
        self._real = real
        self._done = done

    def __getattr__(self, name: str) -> Any:
        if name in TASKS:
            self._done.append(name)
        return getattr(self._real, name)

    def tidy_history(self, now: datetime, limit: int) -> bool:
        """Tidy all, and say that more is left, twice."""
        self._done.append("tidy_history")
        return self._real.tidy_history(now, limit) or self._done.count("tidy_history") < 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"{tmp_path}/jobs.db")) as opened:
        yield opened


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def maintenance(store: Store, loop: Loop, done: list[str]) -> Maintenance:
    """Return the tasks of a node that leads."""
    settings = Settings(name="a", lease=300)
    node = context_of(store, CircuitBreaker(lambda: None), holder=HOLDER, settings=settings, loop=loop)
    leases = NodeLeases(node, ClockWatch(store.now, settings.lease))
    leases.renew_lead()
    assert leases.leads
    node.status.stage = NodeStage.SEATED
    return Maintenance(replace(node, store=cast(Store, Noted(store, done))), leases)


def run_until(loop: Loop, is_over: Callable[[], bool]) -> None:
    loop.after_turn(lambda: loop.stop() if is_over() else None)
    loop.run()


def test_a_renewal_that_is_due_comes_between_any_two_tasks(
    loop: Loop, maintenance: Maintenance, done: list[str]
) -> None:
    every(loop, 0.0, lambda: done.append("renewal"))
    maintenance.maintain()
    maintenance.repair()  # it is queued

    run_until(loop, lambda: "due" in done)

    assert [name for name in done if name != "renewal"] == ["repair", "prune", "schedules", "due"]
    assert all("renewal" in pair for pair in pairwise(done))


def test_a_task_may_be_due_again_when_it_is_done(loop: Loop, maintenance: Maintenance, done: list[str]) -> None:
    maintenance.repair()
    run_until(loop, lambda: done == ["repair"])

    maintenance.repair()
    run_until(loop, lambda: done == ["repair", "repair"])


def test_a_long_history_is_tidied_in_parts_with_renewals_between(
    loop: Loop, maintenance: Maintenance, done: list[str]
) -> None:
    every(loop, 0.0, lambda: done.append("renewal"))
    maintenance.tidy_history()

    run_until(loop, lambda: done.count("tidy_history") == 3)
    run_until(loop, lambda: done[-3:] == ["renewal"] * 3)

    assert done.count("tidy_history") == 3
    assert all("renewal" in pair for pair in pairwise(done))
