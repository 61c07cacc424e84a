"""Values of absurd types end the job that passes them, and harm nothing else."""

from __future__ import annotations

from pathlib import Path

from taskqueue import Scheduler
from tests.acceptance.absurd import CASES, Absurd
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
