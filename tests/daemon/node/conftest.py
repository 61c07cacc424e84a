"""Support for tests of the node: its parts on a real store with faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from bson import ObjectId

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.clocks import ClockWatch
from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.dispatcher import OutcomeWriter
from taskqueue.daemon.node.fetcher import Fetcher
from taskqueue.daemon.node.host_watch import Rescuer
from taskqueue.daemon.node.in_flight import InFlight, InFlightRun
from taskqueue.daemon.node.status import NodeStatus
from taskqueue.daemon.runtime.prefetch import Prefetch
from taskqueue.daemon.settings import Settings
from taskqueue.errors import StoreUnavailable
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import Holder, Record
from taskqueue.store import Store
from taskqueue.store.open import open_store

OURS = Holder(seat="web-1", incarnation="ours")


THEIRS = Holder(seat="web-2", incarnation="theirs")


class Failing:
    """The real store, of which some calls are refused, or carried out while the answer is lost, or held up before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refused: set[str] = set()
        self.lost: set[str] = set()
        self.before: dict[str, Callable[[], object]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        return self._through(name, call) if callable(call) else call

    def _through(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def through(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.before.get(name, bool)()
            if name in self.refused:
                raise StoreUnavailable("sqlite:///x", "is away", "wait")
            answer = call(*args, **kwargs)
            if name in self.lost:
                raise StoreUnavailable("sqlite:///x", "did not answer", "wait")
            return answer

        return through


def context_of(store: Store, breaker: CircuitBreaker, **fields: Any) -> NodeContext:
    """Return what the parts of node web-1 share, with other fields as given; the loop is none unless it is given."""
    settings = fields.pop("settings", Settings(name="web-1"))
    values = {"loop": None, "holder": OURS, "status": NodeStatus(settings), **fields}
    return NodeContext(store=store, breaker=breaker, settings=settings, **values)


class Bench:
    """The parts of a node that use the store, on a store with faults, and that store itself."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.faults = Failing(store)
        self.prefetch = Prefetch(2)
        self.breaker = CircuitBreaker(lambda: None)
        configured = Settings(name="web-1", **settings)
        through = cast(Store, self.faults)
        self.in_flight = InFlight(configured, self.prefetch, store.now)
        self.context = context_of(through, self.breaker, settings=configured)
        self.fetcher = Fetcher(self.context, self.in_flight, self.prefetch)
        self.outcome_writer = OutcomeWriter(self.context, self.in_flight, self.fetcher)
        self.elapsed = 0.0
        self.clock_watch = ClockWatch(store.now, configured.lease, lambda: self.elapsed)
        self.rescuer = Rescuer(self.context, self.clock_watch, self.fetcher.wake)

    def add(self, **fields: Any) -> Record:
        now = self.store.now()
        given = {"job": "app:Mail", "ready_at": now, **fields}
        record = Record(id=ObjectId(), created_at=now, **given).at_rank()
        [kept] = self.store.add([record])
        return kept

    def claim(self) -> list[Record]:
        self.fetcher.wake("the test asks")
        return self.fetcher.claim()

    def in_flight_run(self, record: Record) -> InFlightRun:
        claim = self.in_flight.find(str(record.id), record.claims)
        assert claim is not None
        return claim

    def recover(self) -> None:
        self.faults.refused.clear()
        self.faults.lost.clear()
        while time.monotonic() < self.breaker.resume_at:
            time.sleep(0.01)

    def now(self, record: Record) -> Record:
        [found] = [kept for kept in self.store.find(EVERYTHING) if kept.id == record.id]
        return found


class SetClock:
    """A clock that the test sets, and the time that passes meanwhile."""

    def __init__(self) -> None:
        self.elapsed = 100.0
        self._set_by = 0.0

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.elapsed + self._set_by)

    def set_by(self, seconds: float) -> None:
        """Set the clock forward, or with a negative number back."""
        self._set_by += seconds


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Return a store, by the clock that the test sets if it has one."""
    clock = request.getfixturevalue("clock").now if "clock" in request.fixturenames else None
    with closing(open_store(str(tmp_path / "jobs.db"), clock)) as store:
        yield store


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store)
