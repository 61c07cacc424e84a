"""``nodes`` shows which nodes work on a store and which one leads, and takes the lead from it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.insight import host
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.test_terminal import terminal

Taskqueue = Callable[..., Answer]
WEB = Holder(seat="web-1", incarnation="a1b2c3d4e5f60718")
SPARE = Holder(seat="web-2", incarnation="b2")
ABOUT = {
    "host": "web",
    "pid": 4711,
    "pm": "dynamic",
    "min_children": 1,
    "max_children": 8,
    "busy": 1,
    "idle": 2,
    "phase": "works",
    "version": "0.1.0",
    "lease": 3000.0,
}
LASTS = timedelta(seconds=2000)
"""How long the lease of a node still lasts that was renewed 17 minutes ago, give or take the half of one."""


@pytest.fixture
def nodes(store: Store) -> None:
    """Seat a leader that holds a job, a node that is degraded, and one that is silent since half an hour."""
    now = store.now()
    lease = Lease(name="seat:web-1", holder=WEB, since=now - timedelta(hours=2), until=now + LASTS, about=ABOUT)
    spare = replace(lease, name="seat:web-2", holder=SPARE, about=ABOUT | {"degraded": "the store is slow"})
    silent = Lease(
        name="seat:web-3",
        holder=Holder(seat="web-3", incarnation="c3"),
        since=now - timedelta(hours=1),
        until=now - timedelta(minutes=30),
    )
    for each in (lease, spare, silent, replace(lease, name="lead", about={})):
        store.acquire(each, now if each is not silent else now - timedelta(hours=1))
    store.add([record for name, record in records.in_every_status().items() if name == "running"])


@pytest.mark.parametrize(("lasts", "renewed"), [(LASTS, "17 min"), (timedelta(seconds=-10), "-")])
def test_a_node_that_was_killed_is_gone_also_when_others_have_ended_its_lease(
    taskqueue: Taskqueue, store: Store, lasts: timedelta, renewed: str
) -> None:
    child = subprocess.Popen(["true"])
    about = ABOUT | {"machine": host.machine(), "processes": host.named({"node": child.pid})}
    child.wait()
    now = store.now()
    lease = Lease(name="seat:web-1", holder=WEB, since=now, until=now + lasts, about=about)
    store.acquire(lease, now - timedelta(hours=1))

    shown = " ".join(taskqueue("nodes").out.split())

    assert re.search(f"web-1 gone: its processes have died 0 1 2 {renewed} ", shown)


def test_concurrent_workers_have_a_column_where_there_are_some(taskqueue: Taskqueue, store: Store) -> None:
    now = store.now()
    lease = Lease(name="seat:web-1", holder=WEB, since=now, until=now + LASTS, about=ABOUT)
    store.acquire(lease, now)
    assert "concurrent" not in taskqueue("nodes").out
    store.acquire(replace(lease, about=ABOUT | {"concurrent": 3}), now)

    head, row = taskqueue("nodes").out.splitlines()

    assert head.split()[2:7] == ["state", "jobs", "busy", "idle", "concurrent"]
    assert row.split()[:6] == ["web-1", "works", "0", "1", "2", "3"]


def test_without_nodes_it_is_said_in_words(taskqueue: Taskqueue) -> None:
    assert taskqueue("nodes").out == "no node works on this store\n"
    assert taskqueue("nodes", "--json").document == []
    assert taskqueue("nodes", "--leader").out == "no node leads\n"
    assert taskqueue("nodes", "--leader", "--json").document == {"leader": None, "resigned": False}
    assert taskqueue("nodes", "--leader").code == Exit.NOT_FOUND


@pytest.mark.usefixtures("nodes")
def test_nodes_are_listed_with_what_they_do(taskqueue: Taskqueue) -> None:
    head, *lines = [" ".join(line.split()) for line in taskqueue("nodes").out.splitlines()]

    assert head == "node lead state jobs busy idle renewed pool version incarnation up pid host"
    assert re.fullmatch(r"web-1 yes works 1 1 2 17 min dynamic 1-8 0\.1\.0 a1b2c3d4 2 h 4711 web", lines[0])
    assert re.fullmatch(r"web-2 degraded: the store is slow 0 1 2 17 min dynamic 1-8 0\.1\.0 b2 2 h 4711 web", lines[1])
    assert re.fullmatch(r"web-3 silent for 30 min 0 \? \? \? \? \?-\? \? c3 60 min \? \?", lines[2])


@pytest.mark.usefixtures("nodes")
def test_what_matters_of_nodes_fits_a_terminal_of_80_columns(url: str) -> None:
    with terminal(url, 80, "nodes") as shown:
        assert shown.end() == 0

    assert all(len(line) <= 80 for line in shown.lines)
    heads = ["node", "lead", "state", "jobs", "busy", "idle", "renewed", "pool", "version", "incarnation"]
    assert shown.lines[0].split()[:10] == heads
    assert "degraded: " in shown.lines[2]


def test_nodes_of_long_names_are_told_apart_on_a_terminal_of_80_columns(url: str, store: Store) -> None:
    now = store.now()
    for name in ("web-1.north.example.org", "web-2.north.example.org"):
        holder = Holder(seat=name, incarnation="a1b2c3d4e5")
        store.acquire(Lease(name=f"seat:{name}", holder=holder, since=now, until=now + LASTS, about=ABOUT), now)
    with terminal(url, 80, "nodes") as shown:
        assert shown.end() == 0

    assert [line.split()[0] for line in shown.lines[1:]] == ["web-1.north.example.org", "web-2.north.example.org"]


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
    assert taskqueue("nodes", "--leader").out.startswith("web-1 leads since ")
    assert taskqueue("nodes", "--leader", "--json").document["leader"] == "web-1"
    assert taskqueue("nodes", "--leader", "--resign").out == "web-1 no longer leads\n"
    assert taskqueue("nodes", "--leader", "--resign").code == Exit.NOT_FOUND


@pytest.mark.parametrize("options", [("--resign",), ("--leader", "--resign", "--watch")])
def test_the_lead_is_taken_only_with_leader_and_once(taskqueue: Taskqueue, options: tuple[str, ...]) -> None:
    answer = taskqueue("nodes", *options)

    assert answer.code == Exit.USAGE
    assert "pass it with --leader and without --watch" in answer.complaint
