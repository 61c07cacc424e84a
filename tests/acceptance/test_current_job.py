"""Tasks on real nodes know the job that they run for, also beside others, in threads and after a crash."""

from __future__ import annotations

from pathlib import Path

from taskqueue import Scheduler
from tests.acceptance import current
from tests.nodes import LIMIT, node

POOL = ("--name", "a", "--pm", "static", "--min-children", "1")


def test_tasks_know_their_job_in_a_worker(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path, *POOL):
        beside = [current.beside.add(scheduler) for _ in range(current.AT_ONCE)]
        threads, killed = current.in_threads.add(scheduler), current.killed_once.add(scheduler, 5)
        scheduler.wait_for([*beside, threads, killed], timeout=LIMIT, raise_on_error=True)

    assert [job.result for job in beside] == [[str(job.id)] * 3 for job in beside]
    assert threads.result == [str(threads.id)] * 2
    assert killed.result == [{"seen": [0, 1]}, [2, 3, 4], str(killed.id)]
    assert killed.progress_message == "is about to die"
