"""A clock of the store that is set while nodes work: nothing is rescued from nodes that live."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.clocks import HEARD_WITHIN, ClockWatch
from taskqueue.daemon.node.leases import NodeLeases
from taskqueue.daemon.settings import Settings
from taskqueue.insight.nodes import LEAD
from taskqueue.model.record import Holder, Status
from taskqueue.model.timestamps import host_time
from taskqueue.store import ClaimRequest, Lease, Store
from tests.daemon.node.conftest import OURS, THEIRS, Bench, SetClock, context_of

LEASE = timedelta(seconds=30)
LONGER = 30.0 + HEARD_WITHIN


def trusts_ends(watch: ClockWatch) -> bool:
    watch.look()
    return watch.trusts_ends


def watching(clock: SetClock) -> ClockWatch:
    watch = ClockWatch(clock.now, LEASE.total_seconds(), lambda: clock.elapsed)
    assert trusts_ends(watch)
    return watch


def leases_of(holder: Holder, store: Store, clock: SetClock) -> NodeLeases:
    """Return the leases of a node that has this holder."""
    settings = Settings(name=holder.seat, lease=LEASE.total_seconds())
    node = context_of(store, CircuitBreaker(lambda: None), holder=holder, settings=settings)
    return NodeLeases(node, watching(clock))


def test_ends_of_leases_are_not_trusted_for_a_lease_after_the_clock_was_set_forward(
    clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watching(clock)
    clock.elapsed += 3600
    assert trusts_ends(watch)

    clock.set_by(600)
    assert not trusts_ends(watch)
    clock.elapsed += LONGER - 1
    assert not trusts_ends(watch)
    clock.elapsed += 1
    assert trusts_ends(watch)
    assert caplog.messages == [
        "the clock of the store was set forward by 10 min: leases of other nodes are trusted for 40 s"
    ]


def test_a_clock_that_is_set_by_little_changes_nothing(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    watch = watching(clock)
    for seconds in (5, -5, 5):
        clock.set_by(seconds)
        assert trusts_ends(watch)
    assert not caplog.messages


def test_a_clock_that_was_set_back_is_in_the_log(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    watch = watching(clock)
    clock.set_by(-600)
    assert trusts_ends(watch)
    assert caplog.messages == ["the clock of the store was set back by 10 min: due times are that much further away"]


def test_no_job_of_a_node_that_lives_is_rescued_after_the_clock_was_set_forward(store: Store, clock: SetClock) -> None:
    bench = Bench(store)
    bench.elapsed = clock.elapsed
    assert trusts_ends(bench.clock_watch)
    record = bench.add()
    store.claim(THEIRS, ClaimRequest(pooled=1), store.now(), store.now() + LEASE)

    clock.set_by(600)
    bench.rescuer.rescue_expired()
    assert bench.now(record).status is Status.PROCESSING

    clock.elapsed += LONGER
    bench.elapsed = clock.elapsed
    store.renew(THEIRS, store.now() + LEASE, {})
    bench.rescuer.rescue_expired()
    assert bench.now(record).holder == THEIRS

    clock.elapsed += LONGER
    bench.elapsed = clock.elapsed
    bench.rescuer.rescue_expired()
    assert bench.now(record).status is Status.WAITING


def test_neither_lead_nor_seat_is_taken_from_a_node_that_lives_after_the_clock_was_set_forward(
    store: Store, clock: SetClock
) -> None:
    def renew() -> None:
        for name in (LEAD, "seat:web-1"):
            store.acquire(Lease(name=name, holder=OURS, since=store.now(), until=store.now() + LEASE), store.now())

    renew()
    standby = leases_of(Holder(seat="web-1", incarnation="second"), store, clock)
    other = leases_of(THEIRS, store, clock)
    assert not standby.acquire_seat()
    other.renew_lead()

    clock.set_by(600)
    assert not standby.acquire_seat()
    assert other.renew_lead() is None
    assert not other.leads
    assert {lease.holder for lease in store.leases()} == {OURS}

    clock.elapsed += LONGER
    renew()
    assert not standby.acquire_seat()
    clock.elapsed += LONGER
    assert standby.acquire_seat()
    other.renew_lead()
    assert other.leads


@pytest.mark.parametrize("ahead", [-7200, 0, 7200])
def test_a_node_publishes_by_how_much_its_clock_is_ahead_of_the_store(
    store: Store, clock: SetClock, ahead: float
) -> None:
    clock.set_by((host_time() - clock.now()).total_seconds() - ahead)
    node = leases_of(OURS, store, clock)

    assert node.acquire_seat()
    assert node.renew_seat()

    [seat] = store.leases()
    assert seat.about["skew"] == pytest.approx(ahead, abs=600)
