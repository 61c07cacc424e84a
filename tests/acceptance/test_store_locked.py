"""A job that leaves a write transaction open on the store's own file does not stop the others."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from taskqueue import Scheduler, Status
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Echo, OpenTransaction
from tests.nodes import LIMIT, eventually, node


def blamed(scheduler: Scheduler, cursor: str) -> list[str]:
    """Return the jobs that are the reason why workers have ended."""
    told = scheduler.events(cursor=cursor, timeout=0)
    return [event.about["job"] for event in told if event.name == "worker_ended" and "job" in event.about]


def test_a_worker_that_keeps_a_transaction_open_is_replaced_and_its_job_named(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    impatient = f"{url}?timeout=0.5"
    with closing(Scheduler(url)) as scheduler, node(impatient, tmp_path, "--max-children", "1") as running:
        cursor = scheduler.cursor()
        culprit = scheduler.add_job(OpenTransaction, {"file": f"{tmp_path}/jobs.db"})
        scheduler.wait_for([culprit], timeout=LIMIT)

        other = scheduler.add_job(Echo, {})
        [ended] = scheduler.wait_for([other], timeout=LIMIT)

        assert ended.status is Status.DONE
        assert f"job {culprit.id}" in running.log.read_text()
        assert eventually(lambda: str(culprit.id) in blamed(scheduler, cursor))
        assert "its worker was replaced: a write transaction was left open" in scheduler.why(culprit.id)


def test_an_idle_worker_that_locks_the_store_later_is_found_and_ended(tmp_path: Path, files: JobFiles) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    options = ("--max-children", "1", "--lease", "6")
    with closing(Scheduler(url)) as scheduler, node(f"{url}?timeout=0.5", tmp_path, *options) as running:
        cursor = scheduler.cursor()
        data = {"file": f"{tmp_path}/jobs.db", "gate": files.gate()}
        [culprit] = scheduler.wait_for([scheduler.add_job(OpenTransaction, data)], timeout=LIMIT)
        time.sleep(0.1)  # a worker that inspects itself later than that finds the lock itself
        files.open()  # the node finds the file locked when it renews its seat

        assert eventually(lambda: str(culprit.id) in blamed(scheduler, cursor))
        ends = ("kept other processes from writing to the store", "a write transaction was left open")
        assert any(end in running.log.read_text() for end in ends)
        [ended] = scheduler.wait_for([scheduler.add_job(Echo, {})], timeout=LIMIT)
        assert ended.status is Status.DONE
