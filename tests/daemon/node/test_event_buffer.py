"""What a node tells of itself is written down together, and outlives an outage of the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.event_buffer import MOST_KEPT, EventBuffer
from taskqueue.daemon.protocol.messages import WorkerChanged
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.errors import StoreUnavailable
from taskqueue.model.record import Holder
from taskqueue.store import OLDEST, Event, Store
from taskqueue.store.open import open_store
from tests.daemon.node.conftest import context_of
from tests.nodes import LIMIT

WEB = Holder(seat="web-1", incarnation="a1")


class Away:
    """A real store that does not take what nodes tell while it is away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_away = False
        self.writes = 0

    def record_events(self, events: list[Event]) -> None:
        if self.is_away:
            raise StoreUnavailable("here", "it is away", "wait")
        self.writes += 1
        self._store.record_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db")) as store:
        yield store


@pytest.fixture
def away(store: Store) -> Away:
    return Away(store)


@pytest.fixture
def loop(store: Store) -> Iterator[Loop]:
    """Return a loop that ends once something is told, or in time."""
    loop = Loop()
    loop.after_turn(lambda: loop.stop() if store.events(OLDEST)[0] else None)
    loop.at(time.monotonic() + LIMIT, loop.stop)
    yield loop
    loop.close()


@pytest.fixture
def events(loop: Loop, away: Away) -> EventBuffer:
    return EventBuffer(context_of(cast(Store, away), CircuitBreaker(lambda: None), loop=loop, holder=WEB))


def test_what_comes_together_is_one_write(events: EventBuffer, loop: Loop, away: Away, store: Store) -> None:
    events.leadership_changed(leads=True)
    events.worker_changed(WorkerChanged(pid=7))
    events.worker_changed(WorkerChanged(pid=7, exit="exited with status 0", reason="it was worn"))
    loop.run()

    kept, _ = store.events(OLDEST)
    assert [(event.name, event.about) for event in kept] == [
        ("became_leader", {}),
        ("worker_spawned", {"pid": 7}),
        ("worker_ended", {"pid": 7, "exit": "exited with status 0", "why": "it was worn"}),
    ]
    assert kept[0].id == "web-1/a1:1:became_leader"
    assert len({event.id for event in kept}) == 3
    assert away.writes == 1


def test_nothing_is_written_when_nothing_happened(events: EventBuffer, away: Away) -> None:
    events.write()

    assert away.writes == 0


def test_an_outage_delays_what_is_told(events: EventBuffer, loop: Loop, away: Away, store: Store) -> None:
    away.is_away = True
    events.leadership_changed(leads=False)
    events.write()
    away.is_away = False

    loop.run()

    assert [event.name for event in store.events(OLDEST)[0]] == ["stepped_down"]


def test_a_long_outage_costs_the_oldest(events: EventBuffer, away: Away, store: Store) -> None:
    for pid in range(MOST_KEPT + 5):
        events.worker_changed(WorkerChanged(pid=pid))

    events.write()

    kept, _ = store.events(OLDEST, limit=2 * MOST_KEPT)
    assert [event.about["pid"] for event in kept] == list(range(5, MOST_KEPT + 5))
