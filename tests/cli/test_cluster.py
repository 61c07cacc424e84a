"""``nodes`` and ``leader`` tell who works on a store, and take the lead from who has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue.daemon.exits import Exit
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from tests.cli import records
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]
WEB = Holder(seat="web-1", incarnation="a1")
SPARE = Holder(seat="web-2", incarnation="b2")
ABOUT = {"host": "web", "pid": 4711, "pm": "dynamic", "min_children": 1, "max_children": 8, "idle": 2, "phase": "works"}


@pytest.fixture
def nodes(store: Store) -> None:
    """Seat a leader that holds a job, a node that is degraded, and one that is silent since a minute."""
    now = store.now()
    lease = Lease(name="seat:web-1", holder=WEB, since=now - timedelta(hours=2), until=now + timedelta(30), about=ABOUT)
    spare = replace(lease, name="seat:web-2", holder=SPARE, about=ABOUT | {"degraded": "the store is slow"})
    silent = Lease(
        name="seat:web-3",
        holder=Holder(seat="web-3", incarnation="c3"),
        since=now - timedelta(hours=1),
        until=now - timedelta(seconds=60),
    )
    for each in (lease, spare, silent, replace(lease, name="lead", about={})):
        store.acquire(each, now if each is not silent else now - timedelta(hours=1))
    store.add([record for name, record in records.in_every_status().items() if name == "running"])


def test_without_nodes_it_is_said_in_words(taskqueue: Taskqueue) -> None:
    assert taskqueue("nodes").out == "no node works on this store\n"
    assert taskqueue("nodes", "--json").document == []
    assert taskqueue("leader").out == "no node leads\n"
    assert taskqueue("leader", "--json").document == {"leader": None, "resigned": False}
    assert taskqueue("leader").code == Exit.NOT_FOUND


@pytest.mark.usefixtures("nodes")
def test_nodes_are_listed_with_what_they_do(taskqueue: Taskqueue) -> None:
    head, *lines = [" ".join(line.split()) for line in taskqueue("nodes").out.splitlines()]

    assert head == "node lead host pid pool idle jobs up lease state"
    assert lines[0] == "web-1 yes web 4711 dynamic 1-8 2 1 2h 29d works"
    assert lines[1] == "web-2 web 4711 dynamic 1-8 2 0 2h 29d degraded: the store is slow"
    assert lines[2].startswith("web-3 ? ? ? ?-? ? 0 1h 0s silent for 1m")


@pytest.mark.usefixtures("nodes")
def test_nodes_in_json_say_who_leads_and_who_lives(taskqueue: Taskqueue) -> None:
    found = taskqueue("nodes", "--json").document

    assert [(node["name"], node["leader"], node["live"], node["jobs"]) for node in found] == [
        ("web-1", True, True, 1),
        ("web-2", False, True, 0),
        ("web-3", False, False, 0),
    ]
    assert found[0]["about"]["pid"] == 4711


@pytest.mark.usefixtures("nodes")
def test_the_lead_can_be_taken_from_a_node(taskqueue: Taskqueue) -> None:
    assert taskqueue("leader").out.startswith("web-1 leads since ")
    assert taskqueue("leader", "--json").document["leader"] == "web-1"
    assert taskqueue("leader", "--resign").out == "web-1 leads no more\n"
    assert taskqueue("leader", "--resign").code == Exit.NOT_FOUND
