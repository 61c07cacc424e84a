"""Jobs that are not ready, with real nodes: they are asked in workers, hold none, and harm nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskqueue import Check, Rate, Scheduler, Status
from taskqueue.exit_codes import Exit
from taskqueue.model.record import Cause
from tests.acceptance.checks import clings_to, is_there, kills, stands_at, tells_where
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Echo, Trace
from tests.nodes import LIMIT, eventually, node

ONE_WORKER = ("--pm", "static", "--min-children", "1")


def test_a_job_that_is_not_ready_leaves_its_worker_to_others(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    awaited = tmp_path / "awaited"
    check = Check(is_there, file=str(awaited))
    # A check takes no place under a rate: with one start in an hour the job could not be asked twice.
    job = scheduler.add_job(Trace, {"file": files.file}, ready=check, limits=Rate(1, per=3600))

    with node(url, tmp_path, *ONE_WORKER):
        files.heed(1)
        scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
        files.heed(2)
        eventually(lambda: job.refresh().is_postponed)
        assert job.cause is Cause.NOT_READY
        awaited.touch()
        scheduler.wait_for([job], timeout=LIMIT)

    assert (job.status, job.attempt, len(job.attempts)) == (Status.DONE, 1, 1)
    assert files.lines()[-1] == f"{job.id} 1"


def test_a_check_that_is_stopped_counts_nowhere(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    check = Check(stands_at, gate=files.gate())
    job = scheduler.add_job(Trace, {"file": files.file}, ready=check, on_crash="fail")

    with node(url, tmp_path, "--finish", "0", *ONE_WORKER) as running:
        files.heed(1)
        assert running.stop() == Exit.OK
    handed_back = job.refresh().snapshot
    with node(url, tmp_path, *ONE_WORKER):
        files.heed(2)
        files.open()
        scheduler.wait_for([job], timeout=LIMIT)

    assert (handed_back.status, handed_back.attempts, handed_back.crashes) == (Status.WAITING, (), 0)
    assert (job.status, job.attempt) == (Status.DONE, 1)


def test_a_job_is_canceled_while_it_is_asked(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    job = scheduler.add_job(Trace, {"file": files.file}, ready=Check(stands_at, gate=files.gate()))

    with node(url, tmp_path, *ONE_WORKER):
        files.heed(1)
        job.cancel()
        scheduler.wait_for([job], timeout=LIMIT)

    assert job.status is Status.CANCELED
    assert len(files.lines()) == 1


def test_a_predicate_is_asked_in_a_worker_while_the_node_goes_on(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:  # LW-4
    data = {"file": files.file}
    with node(url, tmp_path, "--pm", "static", "--min-children", "2") as running:
        slow = scheduler.add_job(Trace, data, ready=Check(stands_at, gate=files.gate()))
        files.heed(1)
        told = scheduler.add_job(Trace, data, ready=tells_where)
        other = scheduler.add_job(Echo, 1)
        scheduler.wait_for([told, other], timeout=LIMIT)
        workers = {str(worker.pid) for worker in running.workers()}
        assert slow.refresh().is_processing
        files.open()
        scheduler.wait_for([slow], timeout=LIMIT)

    [asked] = [line for line in files.lines() if line.startswith("asked in")]
    assert asked.split()[-1] in workers
    assert slow.status is Status.DONE


def test_a_predicate_that_kills_its_worker_fails_its_job_only(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    job = scheduler.add_job(Trace, {"file": files.file}, ready=kills, crash_retries=0)
    other = scheduler.add_job(Echo, 1)

    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for([job, other], timeout=LIMIT)

    assert (job.status, job.cause) == (Status.FAILED, Cause.CRASHED)
    assert other.status is Status.DONE, other.why()


def test_a_predicate_of_a_module_that_is_not_allowed_is_not_called(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    job = scheduler.add_job(Trace, {"file": files.file}, ready=kills)

    with node(url, tmp_path, "--allow", "tests.acceptance.work", "--unroutable-after", "0", *ONE_WORKER):
        scheduler.wait_for([job], timeout=LIMIT)

    assert (job.cause, files.lines()) == (Cause.UNLOADABLE, [])
    assert "this node runs jobs of tests.acceptance.work only" in job.why()


@pytest.fixture
def embedded(tmp_path: Path) -> str:
    """Return the URL of an embedded store: what follows takes ten seconds, and is the same on any."""
    return f"sqlite://{tmp_path}/jobs.db"


def test_a_check_that_takes_too_long_is_ended(embedded: str, files: JobFiles, tmp_path: Path) -> None:
    data: dict[str, Any] = {"file": files.file}
    with Scheduler(embedded) as scheduler, node(embedded, tmp_path, "--grace", "2"):
        obedient = scheduler.add_job(Trace, data, ready=Check(stands_at, gate=files.gate("a")), timeout=30)
        stubborn = scheduler.add_job(Trace, data, ready=Check(clings_to, gate=files.gate("b")))
        files.heed(2)
        for job in (obedient, stubborn):
            eventually(lambda job=job: job.refresh().cause is Cause.NOT_READY)  # type: ignore[misc]
        scheduler.cancel_job(obedient.id)
        scheduler.cancel_job(stubborn.id)

    assert (obedient.attempts, stubborn.attempts) == ((), ())
    assert obedient.snapshot.unready is not None
    assert obedient.snapshot.unready.reason == "the check failed: the check took longer than 10 s"
    assert stubborn.snapshot.unready is not None
    assert "did not end within the 2 s of grace" in stubborn.snapshot.unready.reason
