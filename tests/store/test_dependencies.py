"""Jobs that others depend on (LZQ-7, X-24): how they end decides what becomes of those that wait for them."""

from __future__ import annotations

import pytest
from bson import ObjectId

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Canceled, Crashed, Done, Failed, GivenUp, Outcome, TimedOut
from taskqueue.model.lifecycle.recovered_copy import copy
from taskqueue.model.record import Cause, Dependency, OnFailure, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import Store
from tests.store.records import (
    BROKEN,
    HOUR,
    NOON,
    SECOND,
    a_record,
    all_kept,
    behind,
    claim,
    finished,
    kept,
    now_cursor,
    running,
    settle,
    told,
)

BADLY: list[Outcome] = [GivenUp(failure=BROKEN), TimedOut(failure=BROKEN), Canceled(), Crashed(failure=BROKEN)]


def dependent(*awaited: JobId, on_failure: OnFailure = OnFailure.CANCEL, **fields: object) -> Record:
    """Return a record that depends on jobs."""
    edges = tuple(Dependency(id=id, on_failure=on_failure) for id in awaited)
    return behind(*awaited, depends_on=edges, cause=Cause.BEHIND, **fields)


def test_what_a_job_depends_on_is_kept(store: Store) -> None:
    run = running(store, a_record())
    added = dependent(run.id, on_failure=OnFailure.WAIT)

    assert store.add([added]) == [added]
    assert kept(store, added.id) == added


def test_a_dependent_runs_when_all_it_depends_on_is_done(store: Store) -> None:
    first, second = running(store, a_record()), running(store, a_record())
    added = dependent(first.id, second.id)
    store.add([added])

    settle(store, first, Done())
    assert kept(store, added.id).waiting_for == (second.id,)

    settle(store, second, Done())
    assert (kept(store, added.id).status, kept(store, added.id).waiting_for) == (Status.WAITING, ())


@pytest.mark.parametrize("outcome", BADLY, ids=lambda outcome: type(outcome).__name__)
def test_a_dependency_that_ends_without_success_cancels_with_a_reason(store: Store, outcome: Outcome) -> None:
    run = running(store, a_record(options=Options(crash_retries=0)))
    added = dependent(run.id)
    store.add([added])

    settle(store, run, outcome)

    after = kept(store, added.id)
    assert (after.status, after.cause, after.waiting_for) == (Status.CANCELED, Cause.DEPENDENCY, ())
    assert after.error is not None
    assert after.error.message == f"it depends on job {run.id}, which ended as {kept(store, run.id).status.name}"


def test_a_canceled_or_expired_dependency_cancels_too(store: Store) -> None:
    canceled, late = a_record(), a_record(expires_at=NOON + SECOND)
    first, second = dependent(canceled.id), dependent(late.id)
    store.add([canceled, late, first, second])

    store.cancel(canceled.id, "", NOON)
    assert kept(store, first.id).cause is Cause.DEPENDENCY

    assert claim(store, now=NOON + HOUR).records == []
    assert kept(store, second.id).cause is Cause.DEPENDENCY


def test_a_dependency_that_is_retried_decides_nothing_yet(store: Store) -> None:
    run = running(store, a_record(options=Options(retry=FixedRetry(times=1))))
    added = dependent(run.id)
    store.add([added])

    settle(store, run, Failed(failure=BROKEN))

    assert kept(store, added.id) == added


def test_a_failure_cancels_a_chain_of_any_length(store: Store) -> None:
    run = running(store, a_record())
    chain = [dependent(run.id)]
    for _ in range(50):
        chain.append(dependent(chain[-1].id))
    store.add(chain)
    cursor = now_cursor(store)

    settle(store, run, GivenUp(failure=BROKEN))

    assert {record.cause for record in all_kept(store) if record.id != run.id} == {Cause.DEPENDENCY}
    assert sorted(told(store, cursor)) == ["canceled"] * 51 + ["failed"]
    assert store.repair(NOON + HOUR) == 0


def test_a_failure_can_be_ignored(store: Store) -> None:
    run = running(store, a_record())
    added = dependent(run.id, on_failure=OnFailure.IGNORE)
    store.add([added])

    settle(store, run, GivenUp(failure=BROKEN))

    assert kept(store, added.id).status is Status.WAITING


def test_a_failure_can_be_waited_out(store: Store) -> None:
    failing, fine = running(store, a_record()), running(store, a_record())
    added = dependent(failing.id, fine.id, on_failure=OnFailure.WAIT)
    other = dependent(failing.id)
    store.add([added, other])

    settle(store, failing, GivenUp(failure=BROKEN))
    settle(store, fine, Done())

    assert (kept(store, added.id).status, kept(store, added.id).waiting_for) == (Status.POSTPONED, (failing.id,))
    assert kept(store, other.id).status is Status.CANCELED
    store.cancel(added.id, "enough", NOON)
    assert kept(store, added.id).status is Status.CANCELED


@pytest.mark.parametrize(
    ("outcome", "policy", "status"),
    [
        (Done(), OnFailure.CANCEL, Status.WAITING),
        (GivenUp(failure=BROKEN), OnFailure.CANCEL, Status.CANCELED),
        (GivenUp(failure=BROKEN), OnFailure.IGNORE, Status.WAITING),
        (GivenUp(failure=BROKEN), OnFailure.WAIT, Status.POSTPONED),
    ],
)
def test_a_dependency_that_ended_before_is_seen_when_the_dependent_is_in(
    store: Store, outcome: Outcome, policy: OnFailure, status: Status
) -> None:
    ended = finished(store, a_record(), outcome)

    [added] = store.add([dependent(ended.id, on_failure=policy)])

    assert added.status is status
    assert kept(store, added.id) == added


def test_a_dependency_that_was_removed_in_between_has_not_succeeded(store: Store) -> None:
    gone = ObjectId()
    one, other, third = dependent(gone), dependent(gone, on_failure=OnFailure.IGNORE), behind(gone)

    added = store.add([one, other, third])

    assert [record.status for record in added] == [Status.CANCELED, Status.WAITING, Status.WAITING]
    assert added[0].error is not None
    assert added[0].error.message == f"it depends on job {gone}, which is gone"


def test_a_release_before_its_time_leaves_the_job_postponed(store: Store) -> None:
    run = running(store, a_record())
    added = dependent(run.id, ready_at=NOON + HOUR)
    store.add([added])

    settle(store, run, Done())

    after = kept(store, added.id)
    assert (after.status, after.cause, after.ready_at) == (Status.POSTPONED, Cause.SCHEDULED, NOON + HOUR)


def test_a_dependent_that_takes_the_place_of_another_looks_too(store: Store) -> None:
    ended = finished(store, a_record())
    old, new = a_record(unique="k"), dependent(ended.id, unique="k")
    store.add([old])

    placed = store.replace(new, old, None, NOON)

    assert placed is not None
    assert (placed.status, placed.waiting_for) == (Status.WAITING, ())


@pytest.mark.parametrize("copies", [1, 2])
def test_a_copy_that_succeeds_ends_the_wait_for_its_original(store: Store, copies: int) -> None:  # REC-33
    ended = finished(store, a_record(), GivenUp(failure=BROKEN))
    added, canceled = dependent(ended.id, on_failure=OnFailure.WAIT), dependent(ended.id)
    store.add([added, canceled])
    for number in range(1, copies + 1):
        ended = finished(store, copy(ended, ObjectId(), None, NOON), Done() if number == copies else Canceled())

    assert kept(store, added.id).status is Status.WAITING
    assert kept(store, canceled.id).status is Status.CANCELED
    assert store.repair(NOON + HOUR) == 0
