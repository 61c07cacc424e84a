"""Retention removes what ended long enough ago, never a pending job, in bounded steps; a flush removes all."""

from __future__ import annotations

from taskqueue.model.outcomes import GivenUp
from taskqueue.model.record import Status
from taskqueue.store import Store
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    WEB_1,
    a_record,
    all_kept,
    behind,
    claim,
    finished,
    ids,
    postponed,
    running,
    settlement,
)


def test_what_ended_before_the_time_for_its_status_is_removed(store: Store) -> None:
    old, recent = finished(store, a_record(), now=NOON), finished(store, a_record(), now=NOON + HOUR)
    failed = finished(store, a_record(), GivenUp(failure=BROKEN), now=NOON)

    assert store.prune({Status.DONE: NOON + MINUTE}, NOON - HOUR, 100) == 1

    assert ids(all_kept(store)) == [recent.id, failed.id]
    assert old.id not in ids(all_kept(store))


def test_each_status_has_a_time_of_its_own(store: Store) -> None:
    finished(store, a_record())
    finished(store, a_record(), GivenUp(failure=BROKEN))

    assert store.prune({Status.DONE: NOON, Status.FAILED: NOON + HOUR}, NOON - HOUR, 100) == 1
    assert [record.status for record in all_kept(store)] == [Status.DONE]


def test_pending_jobs_are_never_removed(store: Store) -> None:
    running(store, a_record())
    store.add([a_record(), postponed(NOON + HOUR)])

    assert store.prune(dict.fromkeys(Status, NOON + 1000 * HOUR), NOON + 1000 * HOUR, 100) == 0
    assert len(all_kept(store)) == 3


def test_no_more_is_removed_than_the_limit(store: Store) -> None:
    store.add([a_record() for _ in range(7)])
    store.settle([settlement(run) for run in claim(store, 7).records], NOON)
    before = dict.fromkeys((Status.FAILED, Status.DONE), NOON + HOUR)

    assert [store.prune(before, NOON, 3) for _ in range(4)] == [3, 3, 1, 0]
    assert all_kept(store) == []


def test_the_tally_follows_what_is_removed(store: Store) -> None:
    finished(store, a_record(queue="a"))
    finished(store, a_record(queue="b"))
    store.add([a_record(queue="b")])

    store.prune({Status.DONE: NOON + HOUR}, NOON, 100)

    assert store.tally() == {("b", Status.WAITING): 1}


def test_a_flush_removes_all_jobs_and_says_how_many(store: Store) -> None:  # PTS-16
    run = running(store, a_record(unique="k"))
    finished(store, a_record())
    store.add([a_record(), postponed(NOON + HOUR), behind(run.id)])

    assert store.flush() == 5

    assert (all_kept(store), store.tally(), store.flush()) == ([], {}, 0)
    assert store.renew(WEB_1, NOON + LEASE, {}).holdings == {}
    assert store.settle([settlement(run)], NOON) == set()


def test_a_flushed_store_goes_on(store: Store) -> None:
    running(store, a_record(unique="k"))
    store.flush()

    record = a_record(unique="k")
    store.add([record])

    assert ids(claim(store).records) == [record.id]
    assert store.tally() == {("default", Status.PROCESSING): 1}
