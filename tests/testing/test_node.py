"""Real nodes and real crashes in a test."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from taskqueue import Scheduler, workflows
from taskqueue.errors import InvalidOption
from taskqueue.testing import Jobs, MovableClock, TestNode
from tests.scheduler.receiving import add as add_numbers
from tests.testing.work import Awaiting, Counting, Mail, Walking


@pytest.fixture
def taskqueue_url(tmp_path: Path) -> str:
    """Return the address of an empty embedded store: processes are alike on both."""
    return f"sqlite://{tmp_path}/jobs.db?synchronous=normal"


def test_a_node_runs_the_jobs_of_the_test(scheduler: Scheduler, node: TestNode) -> None:
    process = scheduler.add_job(Mail, {"to": "a"}).wait(timeout=60)

    assert process.result == {"to": "a"}
    assert process.attempts[0].pid != node.pid
    assert node.stop() == 0
    assert not node.is_running


def test_a_folder_for_temporary_files_may_have_a_long_path(tmp_path: Path, start_node: Callable[..., TestNode]) -> None:
    folder, before = tmp_path / ("long" * 30), tempfile.tempdir
    folder.mkdir()
    tempfile.tempdir = str(folder)  # what TMPDIR sets, which Python reads only once
    try:
        assert start_node().is_running
    finally:
        tempfile.tempdir = before


def test_workers_put_results_into_the_data_of_jobs(scheduler: Scheduler, node: TestNode) -> None:
    members = (Mail, {"to": "a"}), (Mail, {"first": workflows.RESULT}), (Mail, workflows.RESULTS)
    flow = workflows.chain(scheduler, *members)
    wrong = workflows.chain(scheduler, (Mail, "x"), (add_numbers, {"left": workflows.RESULT}))

    assert node.is_running
    assert flow.wait(timeout=60).results == [{"to": "a"}, {"first": {"to": "a"}}, [{"first": {"to": "a"}}]]
    error = wrong.wait(timeout=60).processes[1].error
    assert error is not None
    assert f"data['left']: 'x' is not an int; it is the result of job {wrong.id}" in error.message


def test_a_killed_node_leaves_its_jobs_to_be_run(
    scheduler: Scheduler, jobs: Jobs, node: TestNode, clock: MovableClock
) -> None:
    node.kill()
    process = scheduler.add_job(Mail, {"to": "a"})
    clock.move("1h")

    assert jobs.drain() == [process]


def test_a_job_goes_on_behind_the_checkpoint_at_which_its_worker_was_killed(scheduler: Scheduler, jobs: Jobs) -> None:
    process = jobs.crash(scheduler.add_job(Counting, 5), signal.SIGKILL, at="checkpoint 3")

    assert process.result == [3, 5]
    assert len(process.attempts) == 2


@pytest.mark.parametrize(("at", "walked"), [("start", 3), ("position 2", 1), ("progress 2", 2), ("end", 0)], ids=str)
def test_a_worker_is_killed_at_any_point(scheduler: Scheduler, jobs: Jobs, at: str, walked: int) -> None:
    process = jobs.crash(scheduler.add_job(Walking, [1, 2, 3]), at=at)

    assert process.result == walked
    assert len(process.attempts) == 2


def test_an_async_job_goes_on_behind_its_checkpoint(scheduler: Scheduler, jobs: Jobs) -> None:
    assert jobs.crash(scheduler.add_job(Awaiting), at="checkpoint 2").result == 2


def test_a_point_that_the_job_never_comes_to_is_named(scheduler: Scheduler, jobs: Jobs) -> None:
    with pytest.raises(AssertionError, match="never reached 'checkpoint 9'"):
        jobs.crash(scheduler.add_job(Counting, 2), at="checkpoint 9")


def test_a_point_that_does_not_exist_is_refused(scheduler: Scheduler, jobs: Jobs) -> None:
    with pytest.raises(InvalidOption, match="at='checkpoint': pass start"):
        jobs.crash(scheduler.add_job(Counting, 2), at="checkpoint")


def test_a_node_that_cannot_start_shows_its_log(start_node: Callable[..., TestNode]) -> None:
    with pytest.raises(AssertionError, match=r"(?s)the node left with code .*No such option"):
        start_node("--no-such-option")


def test_a_node_is_refused_where_the_clock_was_moved(start_node: Callable[..., TestNode], clock: MovableClock) -> None:
    clock.move("1s")

    with pytest.raises(AssertionError, match="moved its own"):
        start_node()
