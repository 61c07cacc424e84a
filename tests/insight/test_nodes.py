"""``nodes()``: the nodes of a store with their leases, jobs and states in words."""

from __future__ import annotations

from datetime import timedelta

from taskqueue import Scheduler
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store


def test_a_node_has_its_state_in_words_and_what_it_published(scheduler: Scheduler, store: Store) -> None:
    now = store.now()
    holder = Holder(seat="web-1", incarnation="a1")
    seat = Lease(name="seat:web-1", holder=holder, since=now, until=now + timedelta(seconds=20), about={"lease": 30})
    store.acquire(seat, now)
    store.acquire(Lease(name="lead", holder=holder, since=now, until=now + timedelta(seconds=20)), now)
    scheduler.drain("web-1", by="ann")

    [node] = scheduler.nodes()

    assert (node.name, node.is_leader, node.is_live, node.jobs) == ("web-1", True, True, 0)
    assert node.state == "is drained, by ann"
    assert node.about == {"lease": 30}


def test_a_store_without_nodes_has_none(scheduler: Scheduler) -> None:
    assert scheduler.nodes() == []
