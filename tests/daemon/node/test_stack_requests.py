"""A node passes on requests for its own runs, once each, and removes what killed askers have left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.in_flight import InFlight
from taskqueue.daemon.node.manager_handle import StackRequests
from taskqueue.daemon.protocol.messages import StackTaken, TakeStack
from taskqueue.daemon.runtime.prefetch import Prefetch
from taskqueue.model.record import Holder, Record
from taskqueue.model.stack import ANSWER, REQUEST
from taskqueue.store import Lease, Store
from taskqueue.store.open import open_store
from tests.daemon.fake_node import settings
from tests.daemon.node.conftest import context_of
from tests.store.records import a_record

WEB = Holder(seat="web-1", incarnation="a1")
ASKER = Holder(seat="stack", incarnation="b2")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db")) as store:
        yield store


@pytest.fixture
def record() -> Record:
    return a_record(claims=3)


@pytest.fixture
def requests(store: Store, record: Record) -> StackRequests:
    in_flight = InFlight(settings(), Prefetch(1), store.now)
    in_flight.add([record])
    return StackRequests(context_of(store, CircuitBreaker(lambda: None), holder=WEB), in_flight)


def ask(store: Store, name: str, about: dict[str, object], seconds: float = 60.0) -> None:
    now = store.now()
    lease = Lease(name=name, holder=ASKER, since=now, until=now + timedelta(seconds=seconds), about=about)
    store.acquire(lease, now)


def test_a_request_for_a_run_of_this_node_is_passed_on_once(
    store: Store, record: Record, requests: StackRequests
) -> None:
    ask(store, f"{REQUEST}7", {"job": str(record.id), "claims": 3})

    assert requests.look(store.leases()) == [TakeStack(id=str(record.id), claims=3, request="7")]
    assert requests.look(store.leases()) == []


@pytest.mark.parametrize("about", [{}, {"job": 7, "claims": "x"}, {"job": "f" * 24, "claims": 3}])
def test_other_requests_are_left_alone(store: Store, requests: StackRequests, about: dict[str, object]) -> None:
    ask(store, f"{REQUEST}7", about)

    assert requests.look(store.leases()) == []
    assert len(store.leases()) == 1


def test_an_earlier_claim_is_not_meant(store: Store, record: Record, requests: StackRequests) -> None:
    ask(store, f"{REQUEST}7", {"job": str(record.id), "claims": 2})

    assert requests.look(store.leases()) == []


def test_the_answer_is_a_lease_that_ends_by_itself(store: Store, requests: StackRequests) -> None:
    requests.on_taken(StackTaken(request="7", stack="Main thread", why_not=""))

    [lease] = store.leases()
    assert (lease.name, lease.about["stack"], lease.holder) == (f"{ANSWER}7", "Main thread", WEB)


def test_requests_and_answers_that_are_over_are_removed(store: Store, requests: StackRequests) -> None:
    for name in (f"{REQUEST}7", f"{ANSWER}8", "seat:web-2"):
        ask(store, name, {}, seconds=-1)
    ask(store, f"{REQUEST}9", {})

    requests.look(store.leases())

    assert {lease.name for lease in store.leases()} == {"seat:web-2", f"{REQUEST}9"}
