"""Classes with ``concurrency`` on real nodes and stores: nothing is lost, and nothing settled twice, whatever dies."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from taskqueue import Process, Scheduler, Status
from tests.acceptance.concurrent import Limited, Shared
from tests.acceptance.conftest import JobFiles
from tests.nodes import LIMIT, node

POOL = ("--name", "a", "--pm", "static", "--min-children", "1", "--lease", "600")


def outcomes(job: Process) -> list[str]:
    """Return how the attempts of a job ended."""
    return [attempt.outcome.lower() for attempt in job.refresh().attempts]


def test_twenty_at_once_end_each_in_its_own_way(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    def added(do: str, gate: str = "", **options: object) -> Process:
        data = {"file": files.file, "do": do, "gate": str(files.folder / gate)}
        return scheduler.add_job(Shared, data, **options)  # type: ignore[arg-type]

    with node(url, tmp_path, *POOL):
        held = [added("hold", "end") for _ in range(14)]
        at_most_once = added("hold", "end", on_crash="fail")
        ended, retried = added("end"), added("fail once", retry=1)
        late, canceled = added("never", timeout=3), added("never")
        crashing = added("crash", "crash")
        files.heed(21)
        canceled.cancel()
        scheduler.wait_for([ended, retried, late, canceled], timeout=LIMIT)
        (files.folder / "crash").touch()
        scheduler.wait_for([crashing, at_most_once], timeout=LIMIT)
        (files.folder / "end").touch()
        scheduler.wait_for(held, timeout=LIMIT)

    assert (late.status, canceled.status, outcomes(retried)) == (Status.TIMEOUT, Status.CANCELED, ["failed", "done"])
    assert at_most_once.refresh().status is Status.FAILED
    for job in (*held, crashing):
        assert (job.refresh().status, outcomes(job), job.result) == (Status.DONE, ["crashed", "done"], 1)
    assert "16 jobs ran in it at once" in str(crashing.attempts[0].error)
    begun = Counter(line.split()[0] for line in files.lines())
    assert set(begun.values()) == {1, 2}
    assert begun[str(at_most_once.id)] == 1


@pytest.mark.parametrize("killed", ["worker", "manager", "node"])
def test_what_is_killed_beneath_them_loses_none(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, killed: str
) -> None:
    data = {"file": files.file, "do": "hold", "gate": str(files.folder / "end")}
    with node(url, tmp_path, *POOL) as first:
        jobs = scheduler.add_jobs([(Shared, data)] * 6)
        once = scheduler.add_job(Shared, data, on_crash="fail")
        pid = int(files.heed(7)[0].split()[-1])
        victims = {"worker": pid, "manager": first.manager().pid, "node": first.pid}
        os.kill(victims[killed], signal.SIGKILL)
        if killed != "worker":
            first.wait()
        with node(url, tmp_path, *POOL, "--name", "b"):
            scheduler.wait_for([once], timeout=LIMIT)
            (files.folder / "end").touch()
            scheduler.wait_for(jobs, timeout=LIMIT)

    assert {job.refresh().status for job in jobs} == {Status.DONE}
    ended = ["done"] if killed == "node" else ["crashed", "done"]  # a node may die before it has stored the starts
    assert [outcomes(job)[-len(ended) :] for job in jobs] == [ended] * 6
    begun = Counter(line.split()[0] for line in files.lines())
    assert [begun[str(job.id)] for job in jobs] == [2] * 6
    assert (once.refresh().status, begun[str(once.id)]) == (Status.FAILED, 1)


def test_a_stop_of_the_node_lets_them_finish(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    data = {"file": files.file, "do": "hold", "gate": str(files.folder / "end")}
    with node(url, tmp_path, *POOL, "--finish", "30") as first:
        jobs = scheduler.add_jobs([(Shared, data)] * 5)
        files.heed(5)
        first.process.send_signal(signal.SIGTERM)
        first.heed("is stopping")
        (files.folder / "end").touch()
        assert first.wait() == 0

    assert [(job.refresh().status, outcomes(job)) for job in jobs] == [(Status.DONE, ["done"])] * 5


def test_limits_hold_among_runs_of_one_worker(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path, *POOL):
        jobs = scheduler.add_jobs([(Limited, None)] * 12)
        scheduler.wait_for(jobs, timeout=LIMIT)

    assert {job.result for job in jobs} == {1, 2}
