"""What an operator decides for the fleet holds inside the claim: pauses, drained nodes, changed limits (X-47)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from taskqueue.model.controls import EVERY_QUEUE, Control, Kind
from taskqueue.model.limits import Declared, Limit, Rate, family_of, lane
from taskqueue.model.record import Options, Record, Status
from taskqueue.store import Store
from taskqueue.store.bell import CONTROLS
from tests.store.conftest import Opener
from tests.store.records import (
    HOUR,
    MINUTE,
    NOON,
    WEB_1,
    WEB_2,
    a_record,
    claim,
    ids,
    kept,
    postponed,
    rings,
    running,
    settle,
)


def a_pause(queue: str = EVERY_QUEUE, **fields: Any) -> Control:
    return Control(**{"kind": Kind.PAUSE, "name": queue, "since": NOON, "by": "ann@web", **fields})


def a_drain(seat: str) -> Control:
    return a_pause(seat, kind=Kind.DRAIN)


def a_change(limit: Declared, job: str = "app:Mail") -> Control:
    return a_pause(family_of(limit, job), kind=Kind.LIMIT, count=limit.count)


def limited(*limits: Declared, data: object = None, **fields: object) -> Record:
    return a_record(lane=lane(limits, "app:Mail", data), **fields)


def test_decisions_are_kept_as_they_are(store: Store) -> None:
    decided = [a_drain("web-1"), a_change(Limit(3, by="a")), a_pause(), a_pause("mail", reason="the relay is down ✉")]
    assert store.controls().kept == ()
    for one in reversed(decided):
        store.set_control(one)

    assert store.controls().kept == tuple(decided)
    store.flush()
    assert store.controls().kept == tuple(decided)


def test_a_later_decision_takes_the_place_of_one_about_the_same(store: Store) -> None:
    store.set_control(a_pause("mail", reason="first"))
    store.set_control(later := a_pause("mail", reason="second"))

    assert store.controls().kept == (later,)
    assert store.clear_control(Kind.PAUSE, "mail")
    assert not store.clear_control(Kind.PAUSE, "mail")
    assert store.controls().kept == ()


def test_a_decision_and_its_end_ring(store: Store, opener: Opener) -> None:
    bell = opener().bell(CONTROLS)
    store.set_control(a_pause("mail"))
    assert rings(bell)
    store.clear_control(Kind.PAUSE, "mail")
    assert rings(bell)
    bell.close()


@pytest.mark.parametrize("queues", [{}, {"mail": None, "reports": None}, {"mail": 9, "reports": 9}])
def test_nothing_is_claimed_of_a_paused_queue(opener: Opener, queues: dict[str, int | None]) -> None:
    node, operator = opener(), opener()
    mail = [a_record(queue="mail", options=Options(force_spawn=number == 1)) for number in range(3)]
    reports = [a_record(queue="reports", options=Options(force_spawn=number == 1)) for number in range(3)]
    node.add([*mail, *reports, a_record(queue="mail", lane=lane([Limit(5)], "app:Mail", None))])
    assert claim(node, 0, queues=queues).records == []  # so that it knows what was decided before

    operator.set_control(a_pause("mail"))
    assert sorted(ids(claim(node, 9, forced=9, queues=queues).records)) == ids(reports)
    assert claim(node, 9, forced=9, queues=queues).records == []

    operator.clear_control(Kind.PAUSE, "mail")
    node.controls()  # as a node does when the bell rings
    assert len(claim(node, 9, forced=9, queues=queues).records) == 4


def test_a_pause_of_everything_is_apart_from_those_of_queues(opener: Opener) -> None:
    node, operator = opener(), opener()
    node.add([a_record(queue="mail"), a_record(queue="reports")])
    operator.set_control(a_pause("mail"))
    operator.set_control(a_pause())
    assert claim(node, 9).records == []

    assert operator.clear_control(Kind.PAUSE, EVERY_QUEUE)
    node.controls()
    [taken] = claim(node, 9).records
    assert taken.queue == "reports"


def test_jobs_of_a_paused_queue_become_due_and_expire_as_ever(store: Store) -> None:
    store.add([due := postponed(NOON + MINUTE), late := a_record(expires_at=NOON + MINUTE)])
    store.add([postponed(NOON + HOUR)])
    store.set_control(a_pause())

    found = claim(store, 9, now=NOON + MINUTE)

    assert found.records == []
    assert kept(store, due.id).status is Status.WAITING
    assert kept(store, late.id).status is Status.CANCELED
    assert claim(store, 9, now=NOON + MINUTE).next_at == NOON + HOUR


def test_what_runs_when_its_queue_is_paused_goes_on(store: Store) -> None:
    run = running(store, a_record(queue="mail"))
    store.set_control(a_pause("mail"))

    assert store.renew(WEB_1, NOON + HOUR, {}).claims[run.id].cancel_reason is None
    assert settle(store, run) == {run.id}


def test_a_drained_node_claims_nothing_and_the_others_go_on(opener: Opener) -> None:
    node, operator = opener(), opener()
    node.add([a_record(), a_record()])
    operator.set_control(a_drain("web-1"))

    assert claim(node, 1, holder=WEB_1).records == []
    assert len(claim(node, 1, holder=WEB_2).records) == 1

    operator.clear_control(Kind.DRAIN, "web-1")
    node.controls()
    assert len(claim(node, 1, holder=WEB_1).records) == 1


def test_a_limit_is_raised_and_lowered_for_jobs_that_wait_already(opener: Opener) -> None:
    node, operator = opener(), opener()
    node.add([limited(Limit(2, by="bucket"), data={"bucket": "a"}) for _ in range(6)])
    assert len(claim(node, 9).records) == 2

    operator.set_control(a_change(Limit(3, by="bucket")))
    [run] = claim(node, 9).records
    operator.set_control(a_change(Limit(1, by="bucket")))
    settle(node, run)
    assert claim(node, 9).records == []  # two still run

    operator.clear_control(Kind.LIMIT, family_of(Limit(1, by="bucket"), "app:Mail"))
    node.controls()
    assert claim(node, 9).records == []
    operator.set_control(a_change(Limit(9)))  # of the class, not of its buckets
    assert claim(node, 9).records == []


def test_a_rate_is_raised(opener: Opener) -> None:
    node, operator = opener(), opener()
    node.add([limited(Rate(2, per=60)) for _ in range(6)])
    assert len(claim(node, 9).records) == 2
    operator.set_control(a_change(Rate(5, per=60)))
    assert len(claim(node, 9).records) == 3

    full = claim(node, 9)
    assert (full.records, full.next_at is None) == ([], False)


def test_no_claim_that_begins_after_a_pause_takes_anything(opener: Opener) -> None:
    """X-47: claimers all the time, and none gets a job of the queue once the pause was acknowledged."""
    store = opener()
    store.add([a_record(queue="mail") for _ in range(300)])
    nodes = [opener() for _ in range(3)]
    acknowledged = float("inf")
    ends_at = time.monotonic() + 1.5

    def work(node: Store) -> list[float]:
        taken: list[float] = []
        while time.monotonic() < ends_at:
            began = time.monotonic()
            if claim(node, 1).records:
                taken.append(began)
        return taken

    with ThreadPoolExecutor(len(nodes)) as threads:
        claims = [threads.submit(work, node) for node in nodes]
        store.set_control(a_pause("mail"))
        acknowledged = time.monotonic()
        begun = [began for one in claims for began in one.result()]

    assert [began for began in begun if began > acknowledged] == []
