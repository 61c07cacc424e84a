"""Values of absurd types end the job that passes them, and harm nothing else."""

from __future__ import annotations

from pathlib import Path

from taskqueue import Scheduler, retry
from tests.acceptance.absurd import CASES, Absurd, GivingUp, Raising
from tests.acceptance.work import Echo
from tests.nodes import LIMIT, node


def test_absurd_values_fail_their_job_with_the_way_out_and_harm_no_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Scheduler(url) as scheduler, node(url, tmp_path, "--max-children", "1") as running:
        cursor = scheduler.cursor()
        ended = scheduler.wait_for([scheduler.add_job(Absurd, case) for case in CASES], timeout=LIMIT)
        [other] = scheduler.wait_for([scheduler.add_job(Echo, {})], timeout=LIMIT)

        assert {job.data: job.cause for job in ended} == dict.fromkeys(CASES, "failed")
        wrong = {
            job.data: job.error for job in ended if job.error is None or CASES[job.data][1] not in job.error.message
        }
        assert not wrong
        assert other.is_done
        assert not [event for event in scheduler.events(cursor=cursor, timeout=0) if event.name == "worker_ended"]
        assert running.process.poll() is None


def test_words_of_modules_and_policies_are_cut_and_cleaned_before_they_are_stored(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    jobs = [
        scheduler.add_job("tests.acceptance.unspeakable:Lost"),
        scheduler.add_job(Absurd, "progress", retry=retry.custom(Raising)),
        scheduler.add_job(Absurd, "progress", retry=retry.custom(GivingUp)),
        scheduler.add_job(Absurd, "progress", retry=retry.custom("tests.acceptance.unspeakable:Policy")),
    ]
    with node(url, tmp_path, "--max-children", "1", "--unroutable-after", "0"):
        scheduler.wait_for(jobs, timeout=LIMIT)

    for job in jobs:
        assert job.error is not None
        assert r"half \ud800 and \x00 of mongodb://app:***@db/jobs xxx" in job.error.message
        assert len(job.error.message) < 30_000
        assert "hidden" not in job.error.traceback
        assert len(job.error.traceback) < 50_000
