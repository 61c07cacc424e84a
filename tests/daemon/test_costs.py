"""What a thousand empty jobs cost a node, counted in calls of its store and messages to its manager."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from typing_extensions import Unpack

from taskqueue import JobOptions, Scheduler
from tests import budgets
from tests.nodes import LIMIT

JOBS = 1_000
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, int]:
    """Have one node run the jobs, and return how often it called what.

    While a worker stands still, the runs behind its run are handed back, and cost twice; on a busy machine many runs
    take 5 ms, and each batch has fewer. Then another node is asked, four at most, and the calmest one counts.
    """
    measured = []
    for _ in range(5):
        counts = drained(tmp_path_factory.mktemp("counted"))
        measured.append(counts)
        if not counts["handed_back"] and counts["began"] <= JOBS / 100:
            break
    return min(measured, key=lambda counts: (counts["handed_back"], counts["calls"] / messages(counts)))


def drained(folder: Path, jobs: int = JOBS, **options: Unpack[JobOptions]) -> Mapping[str, int]:
    """Run a node until the jobs are done."""
    url = f"sqlite://{folder}/jobs.db"
    with Scheduler(url) as scheduler:
        scheduler.add_jobs([("benchmarks.jobs:Empty", None, options)] * jobs)
    done = subprocess.run(
        [sys.executable, "-m", "tests.daemon.counted", url, str(CHECKOUT)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stderr
    counts: Mapping[str, int] = json.loads(done.stdout)
    return counts


def test_a_thousand_jobs_are_claimed_and_settled_in_batches(counts: Mapping[str, int]) -> None:
    # As a rule 7 claims and 19 settles; a machine that stops for a while may cut a batch, but not all of them.
    assert counts["claim"] <= JOBS / 20
    assert counts["settle"] <= JOBS / 20
    assert counts["settled"] == JOBS + counts["handed_back"]
    assert counts.get("count", 0) == 0  # nothing is read again
    assert counts.get("find", 0) <= 1  # retention's look at the newest end, when the node begins


def test_a_job_is_one_message_to_the_manager_and_one_back_if_it_is_short(counts: Mapping[str, int]) -> None:
    assert counts["sent"] <= JOBS + counts["handed_back"] + 20
    assert counts["send"] <= counts["sent"]
    assert counts["received"] <= 1.1 * JOBS
    assert counts["receive"] <= JOBS / 10


def test_the_time_is_asked_once_for_each_job(counts: Mapping[str, int]) -> None:
    assert counts["now"] <= 1.3 * messages(counts)


def test_a_job_of_many_is_few_calls_of_functions_of_its_node(counts: Mapping[str, int]) -> None:
    # Less than one of them for each turn of the loop; more where a machine stops and batches are cut.
    budgets.keep("drain.node.calls", counts["calls"] / messages(counts))


def messages(counts: Mapping[str, int]) -> int:
    """Return how many messages there are of runs: one that takes 5 ms, as on a busy machine, has a second."""
    return JOBS + counts["began"] + 2 * counts["handed_back"]


def test_an_idle_node_asks_for_work_once_a_second(tmp_path: Path) -> None:
    began = time.monotonic()

    counts = drained(tmp_path, 1, at="+3 s")

    assert counts["settled"] == 1
    assert counts["claim"] <= time.monotonic() - began + 2
