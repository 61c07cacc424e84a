"""Jobs that are parts of others (X-25): a tree is canceled with its root, and a parent waits without a worker."""

from __future__ import annotations

from itertools import permutations

import pytest
from bson import ObjectId

from taskqueue.model.ids import JobId, occurrence_id
from taskqueue.model.lifecycle.outcomes import Awaiting, Canceled, Done, GivenUp, Outcome, TimedOut
from taskqueue.model.query import parse
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.schedules import Every
from taskqueue.model.schedules.origin import Series
from taskqueue.store import Store
from taskqueue.store.bell import STOPS
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    a_record,
    behind,
    claim,
    finished,
    ids,
    kept,
    now_cursor,
    postponed,
    rings,
    running,
    settle,
    settlement,
    told,
)


def a_child(parent: JobId, **fields: object) -> Record:
    """Return a record that is a part of another."""
    return a_record(parent=parent, **fields)


def test_a_parent_is_kept_and_found(store: Store) -> None:
    parent = a_record()
    child = a_child(parent.id)
    store.add([parent, child])

    assert kept(store, child.id) == child
    assert store.find(parse({"parent": parent.id})) == [child]
    assert store.find(parse({"parent": {"$exists": False}})) == [parent]


def test_a_canceled_parent_cancels_its_whole_tree(store: Store) -> None:
    parent, stranger = a_record(), a_record()
    child = a_child(parent.id, status=Status.POSTPONED, ready_at=NOON + HOUR)
    grandchild = a_child(child.id)
    dependent = behind(child.id)
    store.add([parent, stranger, child, grandchild, dependent])

    store.cancel(parent.id, "enough", NOON)

    for id, above in ((child.id, parent.id), (grandchild.id, child.id)):
        after = kept(store, id)
        assert (after.status, after.cause) == (Status.CANCELED, Cause.CANCELED)
        assert after.error is not None
        assert after.error.message == f"its parent {above} ended as CANCELED"
    assert kept(store, stranger.id).status is Status.WAITING
    assert kept(store, dependent.id).status is Status.WAITING
    assert store.repair(NOON + HOUR) == 0


def test_a_running_child_is_asked_to_end_and_its_own_children_end_with_it(opener: Opener) -> None:
    store, listening = opener(), opener()
    parent = running(store, a_record())
    child = running(store, a_child(parent.id))
    grandchild = a_child(child.id)
    store.add([grandchild])
    bell = listening.bell(STOPS)

    store.cancel(parent.id, "enough", NOON)
    assert kept(store, child.id).cancel is None
    settle(store, parent, Canceled())

    wish = kept(store, child.id).cancel
    assert wish is not None
    assert wish.reason == f"its parent {parent.id} ended as CANCELED"
    assert rings(bell)
    bell.close()
    assert kept(store, grandchild.id).status is Status.WAITING
    settle(store, child, Canceled())
    assert kept(store, grandchild.id).status is Status.CANCELED


def test_a_timeout_of_the_parent_is_the_end_of_the_tree_and_a_failure_is_not(store: Store) -> None:
    slow, broken = running(store, a_record()), running(store, a_record())
    of_slow, of_broken = a_child(slow.id), a_child(broken.id)
    store.add([of_slow, of_broken])

    settle(store, slow, TimedOut(failure=BROKEN))
    settle(store, broken, GivenUp(failure=BROKEN))

    assert (kept(store, of_slow.id).status, kept(store, of_broken.id).status) == (Status.CANCELED, Status.WAITING)


def test_a_child_that_comes_after_the_end_of_its_parent_is_canceled(store: Store) -> None:
    canceled, done = finished(store, a_record(), Canceled()), finished(store, a_record())

    late, fine, orphan = store.add([a_child(canceled.id), a_child(done.id), a_child(ObjectId())])

    assert (late.status, fine.status, orphan.status) == (Status.CANCELED, Status.WAITING, Status.WAITING)
    assert kept(store, late.id) == late


def test_a_parent_that_waits_for_its_children_holds_no_claim_and_keeps_its_place(store: Store) -> None:
    parent = running(store, a_record())
    first, second = running(store, a_child(parent.id)), running(store, a_child(parent.id))
    cursor = now_cursor(store)

    settle(store, parent, Awaiting(ids=(first.id, second.id)))
    waiting = kept(store, parent.id)
    assert (waiting.status, waiting.cause, waiting.holder) == (Status.POSTPONED, Cause.CHILDREN, None)
    assert (waiting.ready_at, waiting.waiting_for) == (None, (first.id, second.id))
    assert claim(store, 9, now=NOON + HOUR).records == []

    settle(store, first, GivenUp(failure=BROKEN), NOON + HOUR)
    settle(store, second, Done(), NOON + HOUR)

    again = kept(store, parent.id)
    assert (again.status, again.cause, again.ready_at) == (Status.WAITING, Cause.CHILDREN, NOON)
    assert (again.failures, again.crashes, again.attempt) == (0, 0, 1)
    assert ids(claim(store, 9, now=NOON + HOUR).records) == [parent.id]
    assert [name for name in told(store, cursor) if name != "processing"] == ["postponed", "failed", "done", "waiting"]
    assert store.repair(NOON + 2 * HOUR) == 0


@pytest.mark.parametrize("ended_before", [1, 2])
def test_children_that_ended_while_the_parent_settled_are_seen(store: Store, ended_before: int) -> None:
    parent = running(store, a_record())
    children = [running(store, a_child(parent.id)) for _ in range(2)]
    for child in children[:ended_before]:
        settle(store, child)

    settle(store, parent, Awaiting(ids=(children[0].id, children[1].id)), NOON + MINUTE)

    after = kept(store, parent.id)
    assert after.waiting_for == tuple(child.id for child in children[ended_before:])
    assert after.status is (Status.WAITING if ended_before == 2 else Status.POSTPONED)


def test_a_parent_that_was_asked_to_end_does_not_wait(store: Store) -> None:
    parent = running(store, a_record())
    child = a_child(parent.id)
    store.add([child])
    store.cancel(parent.id, "enough", NOON)

    settle(store, parent, Awaiting(ids=(child.id,)))

    assert (kept(store, parent.id).status, kept(store, child.id).status) == (Status.CANCELED, Status.CANCELED)


def test_a_canceled_parent_that_waits_takes_its_children_along(store: Store) -> None:
    parent = running(store, a_record(expires_at=NOON + MINUTE))
    child = postponed(NOON + HOUR, parent=parent.id)
    store.add([child])
    settle(store, parent, Awaiting(ids=(child.id,)))
    assert claim(store, 9, now=NOON + MINUTE).records == []
    assert kept(store, parent.id).status is Status.POSTPONED  # it was started in time

    store.cancel(parent.id, "enough", NOON)

    assert (kept(store, parent.id).status, kept(store, child.id).status) == (Status.CANCELED, Status.CANCELED)


def a_series(parent: JobId, **fields: object) -> Record:
    """Return the first occurrence of a series that is a part of another job."""
    id = ObjectId()
    return a_child(parent, id=id, origin=Series(id=id, trigger=Every(60), **fields))  # type: ignore[arg-type]


def test_each_occurrence_of_a_child_is_a_child_and_a_canceled_parent_ends_the_series(store: Store) -> None:
    parent = a_record(status=Status.POSTPONED, ready_at=NOON + HOUR)
    store.add([parent])
    first = finished(store, a_series(parent.id))
    second = kept(store, occurrence_id(first.id, 2))
    assert (second.status, second.parent) == (Status.POSTPONED, parent.id)

    store.cancel(parent.id, "enough", NOON)

    assert kept(store, second.id).status is Status.CANCELED
    assert store.find(parse({"status": {"$lte": Status.PROCESSING}})) == []


@pytest.mark.parametrize("outcome", [Canceled(), Done()], ids=["canceled", "done all the same"])
def test_an_occurrence_that_runs_when_its_parent_is_canceled_is_the_last(store: Store, outcome: Outcome) -> None:
    parent = a_record(status=Status.POSTPONED, ready_at=NOON + HOUR)
    store.add([parent])
    run = running(store, a_series(parent.id))

    store.cancel(parent.id, "enough", NOON)
    assert kept(store, run.id).cancel is not None
    settle(store, run, outcome)

    assert kept(store, run.id).status.is_final
    assert store.find(parse({"status": {"$lte": Status.PROCESSING}})) == []


@pytest.mark.parametrize("order", list(permutations(("stranger", "parent", "child"))), ids="-".join)
def test_a_parent_whose_child_ends_in_the_same_batch_goes_on(store: Store, order: tuple[str, ...]) -> None:
    stranger, parent = running(store, a_record()), running(store, a_record())
    child = running(store, a_child(parent.id))
    batch = {
        "stranger": settlement(stranger),
        "parent": settlement(parent, Awaiting(ids=(child.id,))),
        "child": settlement(child),
    }

    store.settle([batch[name] for name in order], NOON + MINUTE)

    after = kept(store, parent.id)
    assert (after.status, after.waiting_for) == (Status.WAITING, ())
