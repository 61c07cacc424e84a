"""Jobs that run in steps, step by step in the calling process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from taskqueue import Job, Process, Scheduler, Status
from taskqueue.model.lifecycle.outcomes import Crashed
from taskqueue.model.record import Cause, Failure
from taskqueue.store import Store
from tests.scheduler import stepping
from tests.scheduler.playing import begin, end, take
from tests.scheduler.stepping import Bare, Counting, Hooked, Paced, Shapeless


@pytest.fixture(autouse=True)
def done() -> Iterator[list[Any]]:
    """Return the list of what was done, empty."""
    stepping.done.clear()
    yield stepping.done
    stepping.done.clear()


def run(scheduler: Scheduler, job: type[Job] | str, data: Any = None, **options: Any) -> Process:
    """Run one job to its end."""
    process = scheduler.add_job(job, data, **options)
    scheduler.run_pending(ignore_time=True)
    return process.refresh()


def test_the_phases_follow_each_other(scheduler: Scheduler, done: list[Any]) -> None:  # JB-12
    process = run(scheduler, Counting, {"to": 3})

    assert done == ["initialize", 1, 2, 3, "complete"]
    assert (process.status, process.result) == (Status.DONE, 3)
    assert (process.phase, process.reports) == ("ending", {"counted": 3, "completed": True})
    assert [attempt.outcome for attempt in process.attempts] == ["Done"]
    assert process.snapshot.claims == 6


def test_a_job_of_another_kind_has_no_phase_and_no_reports(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Bare)

    assert (process.phase, process.reports) == (None, None)


def test_a_job_that_is_run_here_runs_to_its_end(scheduler: Scheduler, done: list[Any]) -> None:
    process = scheduler.run_job(Counting, {"to": 2}, reraise=True)

    assert (process.status, process.result) == (Status.DONE, 2)
    assert done == ["initialize", 1, 2, "complete"]


def test_a_job_that_is_run_here_cleans_up_here(scheduler: Scheduler, done: list[Any]) -> None:
    with pytest.raises(ValueError, match="no 2"):
        scheduler.run_job(Counting, {"to": 3, "fails": 2}, reraise=True)

    [process] = scheduler.get_jobs({"status": "FAILED"})
    assert (process.status, done[-1]) == (Status.FAILED, ("clean up", {"count": 1}, "no 2"))


def test_a_step_that_is_to_be_tried_again_is_left_to_the_nodes(scheduler: Scheduler, done: list[Any]) -> None:
    process = scheduler.run_job(Counting, {"to": 3, "fails": 2}, retry=1)

    assert (process.status, process.phase, done) == (Status.POSTPONED, "running", ["initialize", 1, 2, "failed"])


def test_only_iterate_need_be_defined(scheduler: Scheduler) -> None:
    process = run(scheduler, Bare)

    assert (process.status, process.result, process.reports) == (Status.DONE, None, {})


def test_without_iterate_a_job_fails_and_says_why(scheduler: Scheduler) -> None:  # never silent completion
    process = run(scheduler, f"{Shapeless.__module__}:{Shapeless.__name__}")

    assert process.is_failed
    assert process.error is not None
    assert "has no iterate(): define it" in process.error.message


def test_whether_there_is_more_must_be_said(scheduler: Scheduler) -> None:
    process = run(scheduler, Bare, "none")

    assert process.error is not None
    assert process.error.message.endswith("iterate() returned None: return True while there is more, else False")


def test_a_state_that_cannot_be_kept_fails_the_job(scheduler: Scheduler) -> None:
    process = run(scheduler, Bare, "unkeepable")

    assert process.is_failed
    assert process.error is not None
    assert "state" in process.error.message


def test_jobs_take_turns_step_by_step(scheduler: Scheduler, done: list[Any]) -> None:  # JB-7, X-31
    for name in "ab":
        scheduler.add_job(Counting, {"to": 3, "name": name})
    scheduler.run_pending()

    steps = [what for what in done if isinstance(what, tuple)]
    assert steps == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3)]


def test_a_failed_step_begins_again_as_if_it_had_not_been(scheduler: Scheduler, done: list[Any]) -> None:
    process = run(scheduler, Counting, {"to": 3, "fails": 2, "times": 2}, retry=2)

    assert done == ["initialize", 1, 2, "failed", 2, "failed", 2, 3, "complete"]
    assert (process.status, process.attempt, process.error) == (Status.DONE, 3, None)


@pytest.mark.parametrize("fails", ["initialize", 2, "complete"])
@pytest.mark.parametrize("for_good", [False, True])
def test_before_it_fails_a_job_cleans_up(scheduler: Scheduler, done: list[Any], fails: Any, for_good: bool) -> None:
    process = run(scheduler, Counting, {"to": 3, "fails": fails, "for_good": for_good})

    state = {"initialize": {}, 2: {"count": 1}, "complete": {"count": 3}}[fails]
    assert done[-1] == ("clean up", state, f"no {fails}")
    assert (process.status, process.cause, process.phase) == (Status.FAILED, Cause.FAILED, "failing")
    assert process.error is not None
    assert process.error.message == f"no {fails}"
    assert process.error.traceback
    assert process.reports["cleaned"] is True


def test_a_canceled_job_cleans_up(scheduler: Scheduler, done: list[Any]) -> None:  # JB-6
    process = scheduler.add_job(Counting, {"to": 3})
    for _ in range(3):
        scheduler.run_pending(once=True)

    asked = process.cancel("enough")
    assert (asked.status, asked.cause, asked.phase) == (Status.WAITING, Cause.CLEAN_UP, "failing")
    assert "phase failing, to end as CANCELED, iterations done: 1" in process.why()
    scheduler.run_pending()

    assert done[-1] == ("clean up", {"count": 1}, "enough")
    assert (process.refresh().status, process.cause) == (Status.CANCELED, Cause.CANCELED)


def test_cleaning_up_that_fails_is_tried_again_and_given_up_in_the_end(scheduler: Scheduler, done: list[Any]) -> None:
    once = run(scheduler, Counting, {"to": 0, "fails": "clean up"})
    assert once.is_done

    class_data = {"to": 3, "fails": "clean up", "times": 99}
    process = scheduler.add_job(Counting, class_data)
    scheduler.run_pending(once=True)
    process.cancel()
    scheduler.run_pending(ignore_time=True)

    assert done.count("failed") == 5
    assert (process.refresh().status, process.cause) == (Status.FAILED, Cause.CLEAN_UP_FAILED)
    assert "its clean-up before the end failed again and again" in process.why()


def test_hooks_are_called_for_the_job_and_not_for_its_steps(scheduler: Scheduler, done: list[Any]) -> None:
    run(scheduler, Hooked, {"to": 2})
    assert done == ["initialize", 1, 2, "complete", "on_success", "finalize"]

    done.clear()
    run(scheduler, Hooked, {"to": 2, "fails": 2})
    assert done == ["initialize", 1, 2, "failed", "on_failure no 2", ("clean up", {"count": 1}, "no 2"), "finalize"]


def test_why_tells_phase_reports_and_pauses(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Counting, {"to": 3, "fails": "clean up", "times": 99})
    for _ in range(3):
        scheduler.run_pending(once=True)
    text = process.why()
    assert "it has finished a step, and other jobs of its priority take their turn before the next one" in text
    assert "It runs in steps: phase running, iterations done: 1." in text
    assert 'It reports: {"counted":1}' in text

    process.cancel()
    assert "it must clean up before it ends" in process.why()
    scheduler.run_pending(once=True)
    assert "clean_up() failed and is tried again with growing pauses" in process.why()


def test_loops_of_a_step_begin_anew_with_the_next_step(scheduler: Scheduler, done: list[Any]) -> None:
    process = run(scheduler, Paced)

    assert process.is_done, process.why()
    assert done == ["a", "b", "a", "a", "b"]


def test_a_step_that_crashes_too_often_leads_to_cleaning_up(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Counting, {"to": 3}, crash_retries=0)
    for _ in range(3):
        scheduler.run_pending(once=True)
    [record] = take(store)
    gone = Failure(type="taskqueue.WorkerCrashed", message="gone")
    end(store, begin(store, record), Crashed(failure=gone))

    scheduler.run_pending()

    assert (process.refresh().status, process.cause, process.error) == (Status.FAILED, Cause.CRASHED, gone)
    assert process.reports == {"counted": 1, "cleaned": True}
