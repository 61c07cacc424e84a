"""Loops and steps with real nodes, while workers and nodes are killed: nothing is skipped, next to nothing repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from taskqueue import Process, Scheduler, Status
from taskqueue.model.record import Cause
from tests.acceptance.conftest import JobFiles
from tests.acceptance.walks import Count, Walk, footprints, last_footprint
from tests.acceptance.work import Trace
from tests.chaos.interrupted_walk import NODE, RESTART, WORKER, InterruptedWalk, complaints
from tests.nodes import LIMIT, Node, eventually, node

ONE_WORKER = ("--pm", "static", "--min-children", "1")
ITEMS = 20_000


def test_a_walk_skips_nothing_when_its_processes_are_killed(url: str, tmp_path: Path) -> None:
    walk = InterruptedWalk(url, tmp_path, ITEMS, 0.00005)
    try:
        struck = walk.run([WORKER, RESTART, NODE, WORKER], random.Random(7))
    finally:
        walk.close()

    assert complaints(footprints(walk.file), ITEMS, struck) == []


def test_a_loop_over_an_iterator_is_resumed_by_skipping(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "steps"
    walk = scheduler.add_job(Walk, {"file": str(file), "items": 2000, "seconds": 0.0005, "kind": "iterator"})
    with node(url, tmp_path, *ONE_WORKER) as running:
        eventually(lambda: _beyond(file, 500))
        [worker] = running.workers()
        worker.kill()
        scheduler.wait_for([walk], timeout=LIMIT)

    items = [step.item for step in footprints(file)]
    assert sorted(set(items)) == list(range(2000))
    assert len(items) - 2000 <= 1
    assert [attempt.outcome for attempt in walk.attempts] == ["Crashed", "Done"]


def test_a_node_that_stops_ends_a_loop_between_two_items(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "steps"
    walk = scheduler.add_job(Walk, {"file": str(file), "items": 100_000, "seconds": 0.01})
    with node(url, tmp_path, *ONE_WORKER) as running:
        eventually(lambda: _beyond(file, 10))
        running.stop()

    steps = footprints(file)
    walk.refresh()
    assert (walk.status, walk.cause, walk.attempt) == (Status.WAITING, Cause.INTERRUPTED, 1)
    assert walk.snapshot.cursor == f'{{"":{len(steps)}}}'


def test_loops_of_one_worker_take_turns(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    walks = [scheduler.add_job(Walk, {"file": str(file), "items": 20, "turn": 0.000001}) for file in paths]
    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for(walks, timeout=LIMIT)

    first, second = (footprints(file) for file in paths)
    assert [step.item for step in first] == list(range(20))
    assert max(step.at for step in first) > min(step.at for step in second)
    assert max(step.at for step in second) > min(step.at for step in first)


def test_steps_of_several_jobs_share_a_worker_with_a_short_job(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    counts = [
        scheduler.add_job(
            Count, {"file": files.file, "to": 15, "name": name, "at": {"3": "wait"}, "gate": files.gate(name)}
        )
        for name in "ab"
    ]
    with node(url, tmp_path, *ONE_WORKER):
        eventually(lambda: "a iterate 3" in files.lines())
        short = scheduler.add_job(Trace, {"file": files.file})
        files.open("a")
        files.open("b")
        scheduler.wait_for([*counts, short], timeout=LIMIT)

    lines = files.lines()
    ran = lines.index(f"{short.id} 1")
    assert {"a iterate 15", "b iterate 15"} <= set(lines[ran:]), "it waited for neither"
    switches = sum(one[0] != other[0] for one, other in pairwise(lines))
    assert switches > 15
    assert [process.result for process in counts] == [15, 15]


def test_a_killed_step_begins_again(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    data = {"file": files.file, "to": 12, "at": {str(step): "die" for step in range(1, 10)}}
    count = scheduler.add_job(Count, data)  # more deaths than crash_retries, but one for each step
    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for([count], timeout=LIMIT)

    lines = files.lines()
    assert (count.status, count.result, count.reports) == (Status.DONE, 12, {"counted": 12, "complete": True})
    assert [lines.count(f"iterate {step}") for step in range(1, 13)] == [2] * 9 + [1] * 3
    assert lines[-1] == "complete"


def test_a_killed_step_fails_where_that_was_declared(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    data = {"file": files.file, "to": 3, "at": {"2": "die"}}
    count = scheduler.add_job(Count, data, on_crash="fail")
    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for([count], timeout=LIMIT)

    assert (count.status, count.cause, count.phase) == (Status.FAILED, Cause.CRASHED, "failing")
    assert files.lines()[-1].startswith("clean up 1: worker")
    assert count.reports == {"counted": 1, "cleaned": True}


def test_a_canceled_step_is_ended_and_cleaned_up(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    data = {"file": files.file, "to": 3, "at": {"2": "wait"}, "gate": files.gate()}
    count = scheduler.add_job(Count, data)
    with node(url, tmp_path, *ONE_WORKER):
        eventually(lambda: "iterate 2" in files.lines())
        count.cancel("enough")
        scheduler.wait_for([count], timeout=LIMIT)

    assert (count.status, count.cause) == (Status.CANCELED, Cause.CANCELED)
    assert files.lines()[-1] == "clean up 1: enough"


def test_cleaning_up_is_not_canceled_while_it_runs(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    data = {"file": files.file, "to": 3, "at": {"2": "raise", "clean up": "wait"}, "gate": files.gate()}
    count = scheduler.add_job(Count, data)
    with node(url, tmp_path, *ONE_WORKER):
        eventually(lambda: "clean up 1: no step 2" in files.lines())
        count.cancel("enough")
        files.open()
        scheduler.wait_for([count], timeout=LIMIT)

    assert (count.status, count.cause, count.reports) == (Status.FAILED, Cause.FAILED, {"counted": 1, "cleaned": True})


def test_a_timeout_is_for_one_step(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    data = {"file": files.file, "to": 3, "at": {"2": "wait"}, "gate": files.gate()}
    count = scheduler.add_job(Count, data, timeout=3)  # on a busy machine, a step that does nothing may take one
    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for([count], timeout=LIMIT)

    assert (count.status, count.cause) == (Status.TIMEOUT, Cause.TIMED_OUT)
    assert files.lines()[:3] == ["initialize", "iterate 1", "iterate 2"]
    assert files.lines()[-1].startswith("clean up 1: ")


@pytest.mark.parametrize("end", [Node.stop, Node.kill], ids=["stop", "kill"])
def test_a_job_in_steps_goes_on_after_its_node(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, end: Callable[[Node], object]
) -> None:
    data = {"file": files.file, "to": 4, "at": {"3": "wait"}, "gate": files.gate()}
    count = scheduler.add_job(Count, data)
    with node(url, tmp_path, *ONE_WORKER, "--finish", "0.1") as running:
        eventually(lambda: "iterate 3" in files.lines())
        end(running)
    with node(url, tmp_path, *ONE_WORKER):
        eventually(lambda: files.lines().count("iterate 3") == 2)
        files.open()
        scheduler.wait_for([count], timeout=LIMIT)

    assert (count.status, count.result) == (Status.DONE, 4)
    assert [files.lines().count(f"iterate {step}") for step in (1, 2, 3, 4)] == [1, 1, 2, 1]


def test_a_place_too_long_for_the_slate_survives_its_worker(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "steps"
    data = {"file": str(file), "items": 300, "seconds": 0.005, "kind": "cursor", "ballast": "x" * 10_000}
    walk: Process = scheduler.add_job(Walk, data)
    with node(url, tmp_path, *ONE_WORKER) as running:
        eventually(lambda: _beyond(file, 50))
        [worker] = running.workers()
        worker.kill()
        psutil.wait_procs([worker], timeout=LIMIT)
        scheduler.wait_for([walk], timeout=LIMIT)

    items = [step.item for step in footprints(file)]
    assert sorted(set(items)) == list(range(300))
    assert len(items) - 300 <= 1


def _beyond(file: Path, item: int) -> bool:
    step = last_footprint(file)
    return step is not None and step.item >= item
