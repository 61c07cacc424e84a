"""Which modules a node runs jobs of, and what becomes of the others."""

from __future__ import annotations

from pathlib import Path

from taskqueue import Scheduler, ShellJob, Status
from tests.acceptance.work import Echo
from tests.nodes import LIMIT, eventually, node


def test_a_job_of_a_module_that_is_not_allowed_is_handed_back_until_a_node_takes_it(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--name", "a", "--allow", "tests.acceptance.work,shop", "--allow", "tests.accept"):
        shell = scheduler.add_job(ShellJob, {"argv": ["true"]})
        [allowed] = scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
        eventually(lambda: scheduler.get_job(shell.id).error)
        said = scheduler.why(shell.id)
        assert scheduler.get_job(shell.id).status in (Status.POSTPONED, Status.WAITING)
    with node(url, tmp_path, "--name", "b", "--allow", "taskqueue"):
        scheduler.wait_for([shell], timeout=LIMIT)

    assert allowed.status is Status.DONE
    assert (shell.status, shell.attempt) == (Status.DONE, 1)
    assert "on node a" in said
    assert (
        "taskqueue.NotAllowed: this node runs jobs of tests.acceptance.work, shop, tests.accept only: "
        "start one with --allow taskqueue" in said
    )


def test_a_prefix_is_a_module_with_all_below_it_and_no_part_of_a_name(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--allow", "tests", "--unroutable-after", "0"):
        inside = scheduler.add_job(Echo, 1)
        outside = scheduler.add_job("testsuite:Job")
        scheduler.wait_for([inside, outside], timeout=LIMIT)

    assert (inside.status, outside.status) == (Status.DONE, Status.FAILED)
    assert outside.error is not None
    assert outside.error.type == "taskqueue.NotAllowed"
