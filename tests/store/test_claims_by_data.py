"""Claims that are bounded by the bytes of their data as well as by the number of records."""

from __future__ import annotations

from typing import Any

from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Options, Record, Status
from taskqueue.store import Claim, ClaimRequest, Store
from tests.store.records import LEASE, MINUTE, NOON, SECOND, WEB_1, a_record, ids, kept, postponed

KIB = 1024


def sized(kilobytes: int, **fields: Any) -> Record:
    """Return a record with about so many kilobytes of data."""
    return a_record(data=f'"{"x" * (kilobytes * KIB - 2)}"', **fields)


def claim(store: Store, kilobytes: int | None, **wanted: Any) -> Claim:
    """Claim up to 200 records with at most so many kilobytes; records weigh a little more than their data."""
    data = None if kilobytes is None else kilobytes * KIB + KIB * 40
    return store.claim(WEB_1, ClaimRequest(**{"pooled": 200, "data": data, **wanted}), NOON, NOON + LEASE)


def test_a_claim_ends_before_the_record_that_goes_beyond_its_bytes(store: Store) -> None:
    records = [sized(100) for _ in range(6)]
    store.add(records)

    taken = claim(store, 400)

    assert (ids(taken.records), taken.has_more) == (ids(records[:4]), True)
    assert kept(store, records[4].id).status is Status.WAITING
    assert ids(claim(store, 400).records) == ids(records[4:])


def test_a_claim_without_a_bound_or_within_it_takes_everything(store: Store) -> None:
    store.add([sized(100) for _ in range(12)])

    bounded, unbounded = claim(store, 600), claim(store, None)

    assert (len(bounded.records), bounded.has_more) == (6, True)
    assert (len(unbounded.records), unbounded.has_more) == (6, False)
    assert not claim(store, 100).has_more


def test_the_free_slots_are_filled_however_much_data_there_is(store: Store) -> None:
    records = [sized(1000) for _ in range(5)]
    store.add(records)

    taken = claim(store, 100, free=3)

    assert (ids(taken.records), taken.has_more) == (ids(records[:3]), True)
    assert ids(claim(store, 0, free=1).records) == [records[3].id]


def test_small_records_before_large_ones_do_not_bring_those(store: Store) -> None:
    small = [a_record() for _ in range(100)]
    store.add([*small, *(sized(200) for _ in range(20))])

    taken = claim(store, 400)

    assert taken.has_more
    assert ids(taken.records)[:100] == ids(small)
    assert 100 < len(taken.records) <= 102


def test_no_small_record_passes_a_large_one(store: Store) -> None:
    first, large, small = sized(100), sized(500), a_record()
    store.add([first, large, small])

    assert ids(claim(store, 300).records) == [first.id]
    assert ids(claim(store, 300, free=1).records) == [large.id]
    assert ids(claim(store, 300).records) == [small.id]


def test_records_with_a_worker_of_their_own_are_not_counted(store: Store) -> None:
    small = sized(100)
    own = [sized(500, options=Options(force_spawn=True)) for _ in range(2)]
    store.add([small, *own, sized(400)])

    taken = claim(store, 200, forced=9)

    assert sorted(ids(taken.records)) == sorted(ids([small, *own]))
    assert taken.has_more


def test_chosen_queues_and_lanes_share_the_bytes(store: Store) -> None:
    limited = {"job": "app:Mail", "lane": lane([Limit(9)], "app:Mail", None)}
    store.add(
        [sized(100, queue=queue, **(limited if number % 2 else {})) for queue in ("a", "b") for number in range(6)]
    )

    taken = claim(store, 300, queues={"a": None, "b": None})

    assert (len(taken.records), taken.has_more) == (3, True)
    assert len(claim(store, None).records) == 9


def test_what_is_taken_ahead_of_its_time_is_bounded_too(store: Store) -> None:
    due_by = NOON + store.early_by
    records = [postponed(due_by, data=sized(100).data) for _ in range(5)]
    store.add(records)

    taken = claim(store, 300, due_by=due_by)

    assert (len(taken.records), taken.has_more) == (3, True)
    assert len(store.claim(WEB_1, ClaimRequest(pooled=9), due_by, due_by + MINUTE).records) == 2


def test_after_large_records_small_ones_are_taken_by_number_again(store: Store) -> None:
    store.add([sized(200) for _ in range(4)])
    assert claim(store, 300).has_more
    small = [a_record(ready_at=NOON - SECOND) for _ in range(90)]
    store.add(small)

    taken = 0
    for _ in range(10):
        claimed = claim(store, 1000)
        taken += len(claimed.records)
        if not claimed.has_more:
            break

    assert taken == 93
