"""A job obeys its class however it was added, also where only workers can load the class."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskqueue import Scheduler, Status
from taskqueue.model.record import Cause
from tests.acceptance.conftest import JobFiles
from tests.nodes import LIMIT, Node, eventually, node

PLACE = "tests.acceptance.declaring"
TWICE = f"{PLACE}:Twice"


def test_a_job_that_was_added_by_its_path_is_retried_as_its_class_declares(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    job = scheduler.add_job(TWICE, {"file": files.file})
    function = scheduler.add_job(f"{PLACE}:stumble", {"file": f"{files.file}-too"})
    with working(url, tmp_path):
        scheduler.wait_for([job, function], timeout=LIMIT)

    assert (job.status, job.attempt, job.result) == (Status.DONE, 2, 2)
    assert files.lines() == ["1", "2"]
    assert [attempt.outcome for attempt in job.snapshot.attempts] == ["Failed", "Done"]
    assert (job.options["queue"], job.options["timeout"], job.options["retry"]) == ("mail", 90, 1)
    assert (function.status, function.attempt, function.options["priority"]) == (Status.DONE, 2, -1)


def test_what_the_call_passed_wins_over_the_class(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    job = scheduler.add_job(TWICE, {"file": files.file}, retry=0, queue="urgent")
    with working(url, tmp_path):
        scheduler.wait_for([job], timeout=LIMIT)

    assert (job.status, files.lines()) == (Status.FAILED, ["1"])
    assert (job.options["queue"], job.options["timeout"]) == ("urgent", 90)


def test_it_moves_to_the_queue_of_its_class_before_it_runs(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    job = scheduler.add_job(TWICE, {"file": files.file})
    with working(url, tmp_path, "--name", "a", "--work-on", "default"):
        assert eventually(lambda: job.refresh().options["queue"] == "mail")
        assert (job.status, job.cause) == (Status.WAITING, Cause.ADDED)
        scheduler.wait_for([scheduler.add_job(f"{PLACE}:Mailer.send", 1)], timeout=LIMIT)
        assert files.lines() == []
    with working(url, tmp_path, "--name", "b", "--work-on", "mail"):
        scheduler.wait_for([job], timeout=LIMIT)

    assert job.status is Status.DONE


def test_jobs_of_the_command_line_and_of_schedules_obey_their_class_too(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    data = ["--data", f'{{"file": "{files.file}"}}']
    id = command(url, "add", TWICE, *data)
    command(url, "schedule", "add", "twice", TWICE, *data, "--every", "1h")
    fired = command(url, "schedule", "trigger", "twice")
    with working(url, tmp_path):
        jobs = [scheduler.get_job(one) for one in (id, fired)]
        scheduler.wait_for(jobs, timeout=LIMIT)

    assert [(job.status, job.attempt, job.options["queue"]) for job in jobs] == [(Status.DONE, 2, "mail")] * 2


def test_of_two_whose_class_allows_one_the_second_ends(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    data = {"gate": files.gate()}
    with working(url, tmp_path, "--min-children", "2"):
        jobs = [scheduler.add_job(f"{PLACE}:Single", data) for _ in range(2)]
        [ended] = eventually(lambda: [job for job in jobs if job.refresh().status.is_final])
        files.open()
        scheduler.wait_for(jobs, timeout=LIMIT)

    assert sorted(job.status for job in jobs) == [Status.DONE, Status.CANCELED]
    assert ended.cause is Cause.REPLACED
    assert ended.error is not None
    assert "the unique key of its class, 'single', belongs to job" in ended.error.message


def test_a_class_whose_options_cannot_be_is_told_with_the_job(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    job = scheduler.add_job(f"{PLACE}_wrong:Confused")
    with working(url, tmp_path, "--unroutable-after", "0"):
        scheduler.wait_for([job], timeout=LIMIT)

    assert (job.status, job.cause) == (Status.FAILED, Cause.UNLOADABLE)
    assert job.error is not None
    assert "there is no option 'retries'" in job.error.message


@contextmanager
def working(url: str, folder: Path, *options: str) -> Iterator[Node]:
    """Start a node; no test has loaded the classes that it will load."""
    assert PLACE not in sys.modules
    with node(url, folder, *options) as started:
        yield started


def command(url: str, *words: str) -> str:
    """Run a command and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "taskqueue.cli.main", "--url", url, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
