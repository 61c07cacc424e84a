"""What an application sees of parents and children (X-25)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from taskqueue import Job, Scheduler
from taskqueue.errors import InvalidOption
from taskqueue.model.record import Cause, Status
from taskqueue.store import Store
from tests.scheduler.jobs import Awaiting, Broken, Collecting, Dividing, Echo


def prune(store: Store) -> None:
    """Remove all that has ended, and that retention may remove."""
    later = store.now() + timedelta(days=100)
    store.prune(dict.fromkeys((Status.DONE, Status.FAILED), later), later, 100)


def test_a_parent_gets_the_results_of_its_children_when_they_have_ended(scheduler: Scheduler) -> None:
    parent = scheduler.add_job(Dividing, {"parts": [1, 2, 3]})

    began = scheduler.run_pending()

    assert parent.refresh().result == 6
    assert began[0] == parent
    assert {child.id for child in parent.children} == {process.id for process in began[1:]}
    assert {child.parent for child in parent.children} == {parent.id}
    assert [attempt.outcome for attempt in parent.attempts] == ["Awaiting", "Done"]
    assert parent.attempt == 1


@pytest.mark.parametrize(
    ("parts", "status", "result"), [([1, 2, 3], Status.DONE, 6), ([1, "broken", 3], Status.FAILED, None)]
)
def test_retention_takes_no_child_from_a_parent_that_waits(
    scheduler: Scheduler, store: Store, parts: list[object], status: Status, result: object
) -> None:  # PW-20
    parent = scheduler.add_job(Dividing, {"parts": parts})
    scheduler.run_pending(once=True)
    scheduler.update_job(parent.children[-1].id, at="+1 hour")

    scheduler.run_pending(ignore_time=False)
    prune(store)
    scheduler.run_pending()

    assert (parent.refresh().status, parent.result) == (status, result)


def test_retention_takes_no_result_from_a_job_that_depends_on_it(scheduler: Scheduler, store: Store) -> None:
    first, second = scheduler.add_job(Echo, 1), scheduler.add_job(Echo, 2, at="+1 hour")
    both = scheduler.add_job(Collecting, depends_on=[first, second])

    scheduler.run_pending(ignore_time=False)
    prune(store)
    scheduler.run_pending()

    assert both.refresh().result == [1, 2]


@pytest.mark.parametrize(("ends", "occurrences"), [({}, 1), ({"max_runs": 3}, 3)])
def test_a_child_that_recurs_for_ever_does_not_keep_its_parent_waiting(
    scheduler: Scheduler, ends: dict[str, Any], occurrences: int
) -> None:
    parent = scheduler.add_job(Awaiting)
    scheduler.add_job(Echo, 1, parent=parent, interval=60, **ends)

    for _ in range(4):
        scheduler.run_pending()

    assert parent.refresh().result == occurrences


def test_why_says_what_a_parent_waits_for(scheduler: Scheduler) -> None:
    parent = scheduler.add_job(Dividing, {"parts": [1]})
    scheduler.run_pending(once=True)
    [child] = parent.children

    assert (parent.refresh().status, parent.cause) == (Status.POSTPONED, Cause.CHILDREN)
    assert f"It waits until its children have ended: {child.id} (tests.scheduler.jobs:Echo, WAITING)." in parent.why()
    child.cancel()
    assert "the children that it waited for have ended" in parent.why()


def test_a_child_without_success_fails_its_parent_for_good_unless_ignored(scheduler: Scheduler) -> None:
    strict = scheduler.add_job(Dividing, {"parts": ["broken"]}, retry=5)
    easy = scheduler.add_job(Dividing, {"parts": ["broken"], "on_failure": "ignore"})

    scheduler.run_pending()

    [child] = strict.children
    assert strict.refresh().status is Status.FAILED
    assert strict.error is not None
    assert strict.error.message == f"child {child.id} ended as FAILED"
    assert easy.refresh().result == 0


def test_a_child_that_depends_on_its_parent_is_not_waited_for(scheduler: Scheduler) -> None:
    parent = scheduler.add_job(Dividing, {"parts": []})
    after = scheduler.add_job(Echo, 1, parent=parent, depends_on=parent)

    scheduler.run_pending()

    assert (parent.refresh().status, after.refresh().status) == (Status.DONE, Status.DONE)


def test_a_canceled_parent_takes_its_tree_along(scheduler: Scheduler) -> None:
    parent = scheduler.add_job(Echo)
    child = scheduler.add_job(Echo, parent=str(parent.id))
    grandchild = scheduler.add_job(Echo, parent=child)

    parent.cancel("enough")

    assert {process.refresh().status for process in (child, grandchild)} == {Status.CANCELED}
    assert f"its parent {parent.id} ended as CANCELED" in child.why()
    with pytest.raises(InvalidOption, match="has ended as CANCELED"):
        scheduler.add_job(Echo, parent=parent)


def test_an_unknown_parent_and_a_circle_of_parents_are_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match=r"parent=.* there is no such job"):
        scheduler.add_job(Echo, parent=ObjectId())
    a, b = ObjectId(), ObjectId()
    with pytest.raises(InvalidOption, match=f"parent makes a cycle: {a} -> {b} -> {a}"):
        scheduler.add_jobs([(Echo, 1, {"id": a, "parent": b}), (Echo, 2, {"id": b, "parent": a})])


def test_a_policy_that_there_is_not_is_refused_at_the_call() -> None:
    with pytest.raises(ValueError, match="pass 'fail' or 'ignore'"):
        Job().wait_children("cancel")  # type: ignore[arg-type]


def test_a_child_without_success_does_not_hinder_a_parent_that_does_not_wait(scheduler: Scheduler) -> None:
    parent = scheduler.add_job(Echo, 1)
    scheduler.add_job(Broken, parent=parent)

    scheduler.run_pending()

    assert parent.refresh().result == 1
