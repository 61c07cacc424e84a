"""Rescuing claims of earlier holders of a seat."""

from __future__ import annotations

from datetime import timedelta

from taskqueue.model.record import Holder, Status
from taskqueue.store import ClaimRequest, Note
from tests.daemon.node.conftest import Bench


def test_what_earlier_holders_of_the_seat_left_is_taken_over_at_once(bench: Bench) -> None:
    dead = Holder(seat="web-1", incarnation="dead")
    unstarted, started = bench.add(), bench.add()
    now = bench.store.now()
    claim = bench.store.claim(dead, ClaimRequest(pooled=9), now, now + timedelta(hours=1))
    assert len(claim.records) == 2
    bench.store.note(dead, {started.id: Note(started_at=now)})

    assert bench.rescuer.rescue_own_seat() == 2

    assert (bench.now(unstarted).status, bench.now(unstarted).crashes) == (Status.WAITING, 0)
    assert (bench.now(started).status, bench.now(started).crashes) == (Status.WAITING, 1)
