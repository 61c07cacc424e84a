"""The limits of running and waiting jobs: who holds their places, how many wait, and which are used up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskqueue import Limit, Rate, Scheduler
from taskqueue.insight.limit_states import MOST_COUNTED_KEYS, limit_states, limit_uses
from taskqueue.model.history import MOST_CLASSES
from taskqueue.model.record import Holder
from taskqueue.store import ClaimRequest, Store
from tests.scheduler.jobs import Echo

on_both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


def claim(store: Store, number: int) -> None:
    """Let a node take so many jobs."""
    now = store.now()
    taken = store.claim(
        Holder(seat="web-1", incarnation="a1"), ClaimRequest(pooled=number), now, now + timedelta(minutes=1)
    )
    assert len(taken.records) == number


@on_both
def test_a_limit_names_who_holds_it_and_how_many_wait(blocking: Scheduler, store: Store) -> None:
    stripe, rate = Limit(2, name="stripe"), Rate(9, per=60, by="customer")
    added = blocking.add_jobs([(Echo, {"customer": "a"}, {"limits": [stripe, rate]}) for _ in range(4)])
    claim(store, 2)

    full, free = limit_states(store)

    assert (full.limit_key.key, full.used, full.waiting, full.is_full) == ("limit:name=stripe", 2, 2, True)
    assert [one.id for one in full.holders] == [process.id for process in added[:2]]
    assert (str(free.limit_key), free.used, free.waiting, free.is_full) == (
        f'at most 9 in 60 s of {added[0].job} by=customer "a"', 2, 2, False,
    )  # fmt: skip
    assert blocking.limits() == [full, free]


@on_both
def test_a_changed_number_is_the_one_in_force(blocking: Scheduler, store: Store) -> None:
    blocking.add_job(Echo, limits=["1"])
    claim(store, 1)
    blocking.set_limit(Echo, 5, by="ann")

    [only] = limit_states(store)

    assert (only.used, only.limit_key.count, only.is_full) == (1, 5, False)
    assert only.control is not None
    assert only.control.by == "ann"


def test_the_use_of_a_limit_by_keys_is_that_of_its_fullest_key(blocking: Scheduler, store: Store) -> None:
    by_customer, shared = Limit(2, by="customer"), Limit(9, name="stripe")
    for customer, number in (("a", 1), ("b", 4)):
        blocking.add_jobs([(Echo, {"customer": customer}, {"limits": [by_customer, shared]})] * number)
    claim(store, 3)

    assert limit_uses(store) == {
        "limit:tests.scheduler.jobs:Echo by=customer": (2, 2, 2),
        "limit:name=stripe": (3, 9, 2),
    }


def test_all_waiting_jobs_of_a_limit_count_and_other_limits_beside_its_many_keys(
    blocking: Scheduler, store: Store
) -> None:
    blocking.add_job(Echo, limits="1 name=api")
    claim(store, 1)
    number = MOST_COUNTED_KEYS + 50
    by_customer = Limit(2, by="customer")
    blocking.add_jobs((Echo, {"customer": customer}, {"limits": by_customer}) for customer in range(number))

    assert limit_uses(store) == {
        "limit:tests.scheduler.jobs:Echo by=customer": (0, 2, number),
        "limit:name=api": (1, 1, 0),
    }


def test_only_so_many_limits_are_named(blocking: Scheduler, store: Store) -> None:
    blocking.add_jobs((Echo, number, {"limits": f"1 name={number}"}) for number in range(MOST_CLASSES + 5))

    assert len(limit_uses(store)) == MOST_CLASSES


def test_jobs_without_limits_have_none(blocking: Scheduler, store: Store) -> None:
    blocking.add_job(Echo)

    assert limit_states(store) == []
