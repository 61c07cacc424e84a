"""Seats and the lead: one holder each, free at once when the processes of a holder on this host are gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from taskqueue.daemon.node.leases import Election, Seat, _end_manager, held_by
from taskqueue.daemon.runtime.child_process import Child, allow_signals, fork
from taskqueue.insight import host
from taskqueue.insight.nodes import LEAD
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from taskqueue.store.open import open_store

TTL = timedelta(seconds=30)
FIRST = Holder(seat="web-1", incarnation="first")
SECOND = Holder(seat="web-1", incarnation="second")
OTHER = Holder(seat="web-2", incarnation="other")
HERE = {"machine": host.machine(), "host": "here", "pid": 7}

Begin = Callable[[], Child]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(str(tmp_path / "jobs.db"))
    yield store
    store.close()


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Return what starts a process that does nothing."""
    with ExitStack() as stack:

        def begin() -> Child:
            child = fork(idle, name="idle")
            stack.callback(end, child)
            return child

        yield begin


def idle() -> None:
    """Wait for a signal that ends this process."""
    allow_signals()
    signal.pause()


def end(child: Child) -> None:
    """End the process, if it has not ended yet."""
    if child.pidfd >= 0:
        child.signal(signal.SIGKILL)
        child.reap()
        child.close()


def of(node: Child, manager: Child) -> Mapping[str, object]:
    """Return what a node of these processes says of itself."""
    return {**HERE, "processes": host.named({"node": node.pid, "manager": manager.pid})}


def test_a_free_seat_is_taken_and_kept(store: Store) -> None:
    ours = Seat(store, FIRST, TTL)

    assert ours.acquire(HERE, store.now()).holder == FIRST
    began = ours.lease
    assert ours.renew(HERE, store.now() + TTL / 2).holder == FIRST
    assert began is not None
    assert ours.lease is not None
    assert ours.lease.since == began.since
    assert ours.lease.until > began.until


@pytest.mark.parametrize("lives", ["node", "manager"])
def test_a_seat_is_not_taken_while_node_or_manager_live(store: Store, begin: Begin, lives: str) -> None:
    node, manager = begin(), begin()
    Seat(store, FIRST, TTL).acquire(of(node, manager), store.now())
    end(manager if lives == "node" else node)

    lease = Seat(store, SECOND, TTL).acquire(HERE, store.now())

    assert lease.holder == FIRST
    assert "here, pid 7" in held_by(lease)


def test_a_seat_whose_holder_is_gone_from_this_host_is_taken_before_its_lease_ends(store: Store, begin: Begin) -> None:
    node, manager = begin(), begin()
    Seat(store, FIRST, TTL).acquire(of(node, manager), store.now())
    end(node)
    end(manager)

    assert Seat(store, SECOND, TTL).acquire(HERE, store.now()).holder == SECOND


def test_a_seat_is_free_though_others_have_the_numbers_of_its_processes_by_now(store: Store, begin: Begin) -> None:
    other = begin()
    born = host.born_at(other.pid)
    assert born is not None
    about = {**HERE, "processes": {"node": [other.pid, born - 1], "manager": [other.pid, born - 1]}}
    Seat(store, FIRST, TTL).acquire(about, store.now())

    assert Seat(store, SECOND, TTL).acquire(HERE, store.now()).holder == SECOND


def test_a_node_that_was_executed_again_takes_the_seat_of_what_it_was(store: Store, begin: Begin) -> None:
    manager = begin()
    about = {**HERE, "processes": host.named({"node": os.getpid(), "manager": manager.pid})}
    Seat(store, FIRST, TTL).acquire(about, store.now())
    end(manager)

    assert Seat(store, SECOND, TTL).acquire(HERE, store.now()).holder == SECOND


@pytest.mark.parametrize("unknown", [{"machine": "elsewhere"}, {"processes": {}}, {"processes": None}])
def test_a_holder_of_which_this_host_knows_nothing_is_waited_for_until_its_lease_ends(
    store: Store, begin: Begin, unknown: Mapping[str, object]
) -> None:
    gone = begin()
    about = {**of(gone, gone), **unknown}
    end(gone)
    Seat(store, FIRST, TTL).acquire(about, store.now())
    ours = Seat(store, SECOND, TTL)

    assert ours.acquire(HERE, store.now()).holder == FIRST
    assert ours.acquire(HERE, store.now() + 2 * TTL).holder == SECOND


def test_the_manager_of_a_holder_that_let_its_lease_run_out_is_ended(store: Store, begin: Begin) -> None:
    node, manager = begin(), begin()
    Seat(store, FIRST, TTL).acquire(of(node, manager), store.now())
    manager.signal(signal.SIGSTOP)

    assert Seat(store, SECOND, TTL).acquire(HERE, store.now()).holder == FIRST
    assert not host.is_dead(manager.pidfd)
    assert Seat(store, SECOND, TTL).acquire(HERE, store.now() + 2 * TTL).holder == SECOND
    assert manager.reap().signal == signal.SIGKILL
    manager.close()
    assert not host.is_dead(node.pidfd)


def test_the_manager_of_a_holder_that_another_user_runs_is_left_alone(begin: Begin) -> None:
    if os.geteuid() != 0:
        return  # only root can become another user
    manager = begin()
    at = datetime.now(timezone.utc)
    before = Lease(name="seat:web-1", holder=FIRST, since=at, until=at, about=of(manager, manager))

    def as_nobody() -> None:
        os.setuid(65534)
        _end_manager(before)

    successor = fork(as_nobody, name="successor")
    assert successor.reap().code == 0
    successor.close()
    assert not host.is_dead(manager.pidfd)


def test_the_own_manager_lives_though_the_answer_to_the_first_wish_was_lost(store: Store, begin: Begin) -> None:
    manager = begin()
    about = {**HERE, "processes": host.named({"node": os.getpid(), "manager": manager.pid})}
    Seat(store, FIRST, TTL).acquire(about, store.now())

    assert Seat(store, FIRST, TTL).acquire(about, store.now()).holder == FIRST

    manager.signal(signal.SIGTERM)
    assert manager.reap().signal == signal.SIGTERM
    manager.close()


def test_a_resigned_seat_is_free(store: Store) -> None:
    first = Seat(store, FIRST, TTL)
    first.acquire({"machine": "elsewhere"}, store.now())

    first.resign()

    assert first.lease is None
    assert Seat(store, SECOND, TTL).acquire(HERE, store.now()).holder == SECOND


def test_one_of_two_leads_and_the_other_knows_when_it_may_try_again(store: Store) -> None:
    first, second = Election(store, FIRST, TTL), Election(store, OTHER, TTL)

    first.run(store.now())
    second.run(store.now())

    assert (first.leads, second.leads) == (True, False)
    assert first.others_until is None
    assert second.others_until is not None


def test_the_next_holder_of_a_seat_takes_its_lead_at_once(store: Store) -> None:
    first, again = Election(store, FIRST, TTL), Election(store, SECOND, TTL)
    first.run(store.now())

    again.run(store.now())

    assert again.leads
    assert [lease.holder for lease in store.leases()] == [SECOND]


def test_a_resigned_lead_passes_on(store: Store) -> None:
    first, second = Election(store, FIRST, TTL), Election(store, OTHER, TTL)
    first.run(store.now())

    first.resign()
    second.run(store.now())

    assert (first.leads, second.leads) == (False, True)


def test_a_lead_that_was_taken_away_is_noticed_with_the_next_renewal(store: Store) -> None:
    first = Election(store, FIRST, TTL)
    first.run(store.now())
    [lease] = [lease for lease in store.leases() if lease.name == LEAD]
    store.resign(LEAD, FIRST)
    store.acquire(replace(lease, holder=OTHER), store.now())

    first.run(store.now())

    assert not first.leads


def test_a_lead_without_time_left_is_not_trusted(store: Store) -> None:
    brief = Election(store, FIRST, timedelta(seconds=0.5))
    brief.run(store.now())

    assert not brief.leads


def test_a_lease_tells_who_holds_it_even_when_it_says_little(store: Store) -> None:
    bare = Lease(name="seat:x", holder=FIRST, since=store.now(), until=store.now())

    assert "an unknown host" in held_by(bare)
