"""Jobs that wait for other jobs, with real nodes: results arrive, and a parent that waits holds no worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler, Status
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Dividing, Echo, Gate, Sum
from tests.nodes import LIMIT, eventually, node
from tests.scheduler.jobs import Awaiting

ONE_WORKER = ("--pm", "static", "--min-children", "1")


def test_a_dependent_finds_results_in_its_worker(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    first, second = scheduler.add_job(Echo, 3), scheduler.add_job(Echo, 4)
    total = scheduler.add_job(Sum, depends_on=[first, second])

    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for([total], timeout=LIMIT)

    assert (total.status, total.result) == (Status.DONE, 7)


def test_a_parent_waits_for_its_children_while_they_have_its_only_worker(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    parent = scheduler.add_job(Dividing, {"parts": [1, 2, 3]})

    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for([parent], timeout=LIMIT)

    assert (parent.status, parent.result, parent.attempt) == (Status.DONE, 6, 1)
    assert [attempt.outcome for attempt in parent.attempts] == ["Awaiting", "Done"]


@pytest.mark.parametrize(("ends", "occurrences"), [({"max_runs": 3}, 3), ({}, 1)], ids=["ends", "does not end"])
def test_a_parent_waits_for_a_child_that_recurs_as_long_as_that_ends(
    url: str, scheduler: Scheduler, tmp_path: Path, ends: dict[str, Any], occurrences: int
) -> None:
    parent = scheduler.add_job(Awaiting)
    interval = 0.1 if ends else 3600
    scheduler.add_job(Echo, 1, parent=parent, interval=interval, **ends)

    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for([parent], timeout=LIMIT)

    assert (parent.status, parent.result) == (Status.DONE, occurrences)
    assert [child.status for child in parent.children].count(Status.DONE) == occurrences


def test_a_canceled_parent_ends_a_child_that_runs(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    parent = scheduler.add_job(Echo, at="+1 hour")
    child = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()}, parent=parent)

    with node(url, tmp_path, *ONE_WORKER):
        files.heed(1)
        parent.cancel("enough")
        eventually(lambda: child.refresh().is_final)

    assert child.status is Status.CANCELED
    assert f"its parent {parent.id} ended as CANCELED" in child.why()
