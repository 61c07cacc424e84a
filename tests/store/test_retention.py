"""Retention removes what ended long enough ago, never a pending job, in bounded steps; a flush removes all."""

from __future__ import annotations

import pytest

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Done, GivenUp, Outcome
from taskqueue.model.lifecycle.recovered_copy import copy
from taskqueue.model.record import Cause, Dependency, OnFailure, Record, Status
from taskqueue.store import Store
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    a_record,
    all_kept,
    behind,
    claim,
    finished,
    ids,
    kept,
    postponed,
    running,
    settle,
    settlement,
)

ALL_OLD = dict.fromkeys((Status.DONE, Status.FAILED, Status.CANCELED, Status.TIMEOUT), NOON + 1000 * HOUR)


def dependent(*awaited: JobId, on_failure: OnFailure = OnFailure.CANCEL) -> Record:
    """Return a record that depends on jobs."""
    edges = tuple(Dependency(id=id, on_failure=on_failure) for id in awaited)
    return behind(*awaited, depends_on=edges, cause=Cause.BEHIND)


def prune(store: Store, limit: int = 100) -> int:
    """Remove whatever has ended."""
    return store.prune(ALL_OLD, NOON, limit)


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


@pytest.mark.parametrize("outcome", [Done(result='"sent"'), GivenUp(failure=BROKEN)], ids=["done", "failed"])
def test_what_has_ended_is_kept_with_its_outcome_under_its_id(store: Store, outcome: Outcome) -> None:
    job, waiting = a_record(), a_record(ready_at=NOON + HOUR)
    store.add([waiting])
    finished(store, job, outcome)

    assert store.prune(dict.fromkeys(Status, NOON), NOON, 100) == 0

    [after] = [one for one in all_kept(store) if one.id != waiting.id]
    assert (after.id, after.status.is_final, after.ended_at) == (job.id, True, NOON + SECOND)
    assert (after.result, after.error) == (getattr(outcome, "result", None), getattr(outcome, "failure", None))
    assert len(after.attempts) == 1


@pytest.mark.parametrize("outcome", [Done(), GivenUp(failure=BROKEN)], ids=["done", "failed"])
def test_a_child_is_kept_until_its_parent_has_ended(store: Store, outcome: Outcome) -> None:  # PW-20
    parent = a_record()
    store.add([parent])
    [taken] = claim(store).records
    child = finished(store, a_record(parent=parent.id), outcome)

    assert prune(store) == 0
    assert ids(all_kept(store)) == [parent.id, child.id]

    settle(store, taken)
    assert prune(store) == 2


def test_a_child_of_a_parent_that_waits_is_kept_too(store: Store) -> None:
    waiting, later = a_record(), postponed(NOON + HOUR)
    for parent in (waiting, later):
        finished(store, a_record(parent=parent.id))
    store.add([waiting, later])

    assert prune(store) == 0
    assert len(all_kept(store)) == 4


@pytest.mark.parametrize("outcome", [Done(), GivenUp(failure=BROKEN)], ids=["done", "failed"])
def test_what_a_job_depends_on_is_kept_until_that_has_ended(store: Store, outcome: Outcome) -> None:
    runs = [running(store, a_record()) for _ in range(2)]
    added = dependent(*[run.id for run in runs], on_failure=OnFailure.IGNORE)
    store.add([added])

    settle(store, runs[0], outcome)
    assert prune(store) == 0  # one is done, the other is waited for
    settle(store, runs[1], outcome)
    assert prune(store) == 0  # it is free to run
    [taken] = claim(store).records
    assert prune(store) == 0  # it runs, and reads their results

    settle(store, taken)
    assert prune(store) == 3


def test_what_had_ended_before_the_job_that_depends_on_it_was_added_is_kept(store: Store) -> None:
    ended = finished(store, a_record())
    added = dependent(ended.id)
    store.add([added])

    assert prune(store) == 0

    store.cancel(added.id, "enough", NOON)
    assert prune(store) == 2


def test_a_failed_job_that_is_waited_for_can_still_be_recovered(store: Store) -> None:
    ended = finished(store, a_record(), GivenUp(failure=BROKEN))
    added = dependent(ended.id, on_failure=OnFailure.WAIT)
    store.add([added])

    finished(store, copy(ended, JobId(), None, NOON), GivenUp(failure=BROKEN))
    assert prune(store) == 0
    finished(store, copy(ended, JobId(), None, NOON), Done())

    assert kept(store, added.id).status is Status.WAITING


def test_what_a_copy_depends_on_is_kept_until_that_has_ended(store: Store) -> None:
    needed = finished(store, a_record())
    added = dependent(needed.id)
    store.add([added])
    store.cancel(added.id, "enough", NOON)
    again = copy(kept(store, added.id), JobId(), None, NOON)
    store.add([again])

    assert prune(store) == 1  # the one that was copied
    store.cancel(again.id, "enough", NOON)
    assert prune(store) == 2


def test_copies_of_what_a_pending_job_depends_on_are_kept_for_their_results(store: Store) -> None:
    ended, other = (finished(store, a_record(), GivenUp(failure=BROKEN)) for _ in range(2))
    added = dependent(ended.id, other.id, on_failure=OnFailure.WAIT)
    store.add([added])
    between = finished(store, copy(ended, JobId(), None, NOON), GivenUp(failure=BROKEN))
    last = finished(store, copy(between, JobId(), None, NOON), Done(result='"at last"'))
    finished(store, copy(finished(store, a_record()), JobId(), None, NOON))

    assert prune(store) == 2  # the last copy, which nobody waits for, and its original
    assert set(ids(all_kept(store))) == {one.id for one in (ended, other, added, between, last)}

    store.cancel(added.id, "enough", NOON)
    assert prune(store) == 5


def test_what_is_kept_for_others_does_not_hinder_the_removal_of_what_ended_later(store: Store) -> None:
    parent = postponed(NOON + HOUR)
    store.add([parent])
    for _ in range(5):
        finished(store, a_record(parent=parent.id))
    free = [finished(store, a_record(), now=NOON + HOUR) for _ in range(3)]

    assert [prune(store, 2) for _ in range(3)] == [2, 1, 0]
    assert not {one.id for one in free} & set(ids(all_kept(store)))


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
    assert store.renew(WEB_1, NOON + LEASE, {}).claims == {}
    assert store.settle([settlement(run)], NOON) == set()


def test_a_flushed_store_goes_on(store: Store) -> None:
    running(store, a_record(unique="k"))
    store.flush()

    record = a_record(unique="k")
    store.add([record])

    assert ids(claim(store).records) == [record.id]
    assert store.tally() == {("default", Status.PROCESSING): 1}
