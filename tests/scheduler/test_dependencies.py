"""What an application sees of jobs that depend on others (LZQ-7, X-24)."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from bson import ObjectId

from taskqueue import Scheduler
from taskqueue.errors import InvalidOption
from taskqueue.model.record import Cause, Status
from tests.scheduler.jobs import Broken, Collecting, Echo, Lucky


def test_a_job_whose_key_may_be_taken_is_not_depended_on_in_the_same_call(scheduler: Scheduler) -> None:
    id = ObjectId()
    for option in ("depends_on", "parent"):
        with pytest.raises(InvalidOption, match=f"{option}={id}: that job is added by the same call with unique='k'"):
            scheduler.add_jobs([(Echo, 1, {"id": id, "unique": "k"}), (Echo, 2, {option: id})])  # type: ignore[misc]

    kept = scheduler.add_job(Echo, 1, unique="k")
    again = scheduler.add_job(Echo, 2, unique="k")
    behind = scheduler.add_job(Echo, 3, depends_on=again)

    assert behind.depends_on == (kept.id,)


def test_a_dependent_finds_the_results_of_what_it_depends_on(scheduler: Scheduler) -> None:
    first, second = scheduler.add_job(Echo, 1), scheduler.add_job(Echo, {"a": 2})
    last = scheduler.add_job(Collecting, depends_on=[first, str(second.id)])
    assert (last.status, last.cause, last.waiting_for) == (Status.POSTPONED, Cause.BEHIND, (first.id, second.id))

    scheduler.run_pending()

    assert last.refresh().result == [1, {"a": 2}]
    assert last.dependencies == {first.id: 1, second.id: {"a": 2}}
    assert (last.depends_on, last.waiting_for) == ((first.id, second.id), ())


def test_a_dependent_finds_the_result_of_the_copy_of_a_recovered_job(scheduler: Scheduler) -> None:
    failing = scheduler.add_job(Lucky, 2)
    last = scheduler.add_job(Collecting, depends_on=[failing], on_dependency_failure="wait")
    receiving = scheduler.add_job(
        Echo, depends_on=[failing], on_dependency_failure="wait", receives={"attempt": "result"}
    )
    scheduler.run_pending()
    scheduler.recover_job(scheduler.recover_job(failing.id).cancel().id, data=1)

    scheduler.run_pending()

    assert last.refresh().result == [1]
    assert last.dependencies == {failing.id: 1}
    assert receiving.refresh().result == {"attempt": 1}


def test_a_failed_dependency_cancels_and_why_says_so(scheduler: Scheduler) -> None:
    failing = scheduler.add_job(Broken)
    first = scheduler.add_job(Echo, depends_on=failing)
    second = scheduler.add_job(Echo, depends_on=first)
    assert f"It waits until these have ended: {failing.id} (tests.scheduler.jobs:Broken, WAITING)." in first.why()

    scheduler.run_pending()

    assert (first.refresh().status, first.cause) == (Status.CANCELED, Cause.DEPENDENCY)
    assert f"it was canceled: it depends on job {failing.id}, which ended as FAILED" in first.why()
    assert f"it depends on job {first.id}, which ended as CANCELED" in second.why()


def test_each_dependency_can_have_a_policy_of_its_own(scheduler: Scheduler) -> None:
    failing, fine = scheduler.add_job(Broken), scheduler.add_job(Echo, 5)
    ignoring = scheduler.add_job(Collecting, depends_on={failing: "ignore", fine: "cancel"})
    waiting = scheduler.add_job(Echo, depends_on=[failing], on_dependency_failure="wait")

    scheduler.run_pending()

    assert ignoring.refresh().result == [None, 5]
    assert waiting.refresh().status is Status.POSTPONED
    assert f"Job {failing.id} has ended as FAILED, and on_dependency_failure='wait'" in waiting.why()
    assert waiting.options["depends_on"] == {str(failing.id): "wait"}


def test_a_dependency_that_is_gone_is_said_so(scheduler: Scheduler, url: str) -> None:
    failing = scheduler.add_job(Broken)
    waiting = scheduler.add_job(Echo, depends_on=failing, on_dependency_failure="wait")
    scheduler.run_pending()
    path = url.removeprefix("sqlite://").partition("?")[0]
    with contextlib.closing(sqlite3.connect(path)) as by_hand, by_hand:  # retention keeps it
        by_hand.execute("DELETE FROM jobs WHERE id = ?", (str(failing.id),))

    assert f"Job {failing.id} is gone, so this one waits until it is canceled." in waiting.why()


def test_an_unknown_dependency_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="there is no such job"):
        scheduler.add_job(Echo, depends_on=ObjectId())
    with pytest.raises(InvalidOption, match="there is no such job"):
        scheduler.add_job_once(Echo, depends_on=ObjectId())
    assert list(scheduler.get_jobs()) == []


def test_jobs_that_are_added_together_may_depend_on_each_other_but_not_in_a_cycle(scheduler: Scheduler) -> None:
    a, b, c = ObjectId(), ObjectId(), ObjectId()
    scheduler.add_jobs(
        [
            (Echo, 3, {"id": c, "depends_on": [a, b]}),
            (Echo, 2, {"id": b, "depends_on": [a]}),
            (Echo, 1, {"id": a}),
        ]
    )
    assert [process.result for process in scheduler.run_pending()] == [1, 2, 3]

    for cycle in ({a: [a]}, {a: [b], b: [a]}, {a: [b], b: [c], c: [a]}, {c: [a], a: [b], b: [a]}):
        with pytest.raises(InvalidOption, match=f"makes a cycle.* {a} -> "):
            scheduler.add_jobs([(Echo, 1, {"id": id, "depends_on": others}) for id, others in cycle.items()])


def test_the_same_job_with_another_dependency_takes_its_place(scheduler: Scheduler) -> None:
    one, other = scheduler.add_job(Echo, 1), scheduler.add_job(Echo, 2)
    first = scheduler.add_job_once(Echo, 3, depends_on=one)

    assert scheduler.add_job_once(Echo, 3, depends_on=[one]).id == first.id
    assert scheduler.add_job_once(Echo, 3, depends_on=[one], on_dependency_failure="cancel").id == first.id
    again = scheduler.add_job_once(Echo, 3, depends_on=[one, other])

    assert again.id != first.id
    assert (first.refresh().cause, again.waiting_for) == (Cause.REPLACED, (one.id, other.id))
