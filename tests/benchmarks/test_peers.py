"""The adapters that need no other package work: what is compared with others is measured as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.page import page
from benchmarks.peers.systems import ALL, PEERS
from benchmarks.peers.workloads import NEVER, WORKLOADS

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-m", "benchmarks.peers.measure"]

FIGURES = {
    "adding": ["one by one, jobs/s", "bulk, jobs/s"],
    "drain": ["jobs/s", "run twice"],
    "round_trip": [f"{moment} p{place}, ms" for moment in ("start", "result") for place in (50, 95, 99)],
    "killed": ["runs again after, ms"],
}


@pytest.mark.parametrize(
    ("peer", "workload"),
    [
        ("taskqueue-normal", "adding"),
        ("taskqueue-normal", "drain"),
        ("taskqueue-normal", "killed"),
        ("taskqueue-postgresql", "adding"),
        ("taskqueue-postgresql-nodes", "drain"),
        ("skip-locked", "adding"),
        ("skip-locked", "drain"),
        ("process-pool", "drain"),
        ("process-pool", "round_trip"),
    ],
)
def test_a_workload_gives_figures(peer: str, workload: str) -> None:
    command = [*COMMAND, peer, workload, "--jobs", "100"]

    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), check=True)

    figures = json.loads(done.stdout)
    assert list(figures) == FIGURES[workload]
    assert figures.get("run twice", 0) == 0
    assert all(value > 0 for name, value in figures.items() if name != "run twice")


def test_a_workload_that_a_system_has_no_part_in_is_refused() -> None:
    done = subprocess.run(
        [*COMMAND, "persist-queue", "drain"], capture_output=True, text=True, cwd=Path.cwd(), check=False
    )

    assert done.returncode == 2
    assert "persist-queue takes part in adding only, not in drain" in done.stderr


def test_the_page_lists_the_best_first() -> None:
    values = {
        "adding: one by one, jobs/s": {"persist-queue": [2000.0]},
        "drain, 2 workers: jobs/s": {"rq": [177.0, 180.0, 150.0], "taskqueue": [6000.0]},
        "killed: runs again after, ms": {"huey-redis": [NEVER], "taskqueue": [10.0]},
    }
    machine = {"processor": "EPYC", "cores": 2, "kernel": "6.1", "python": "3.11", "load": 0.5}

    text = page({"hardware": machine, "rounds": 3, "jobs": 100, "values": values})

    assert "| taskqueue | 6,000 | 6,000 |\n| rq | 177 | 177, 180, 150 |" in text
    assert "| huey-redis | never | never |\n" in text
    assert "| huey-redis | what is in the last snapshot | nothing |" in text
    assert "| persist-queue | a power cut | it runs no jobs |" in text
    assert text.count("| persist-queue |") == 2


def test_every_system_is_described_once_and_takes_part_in_workloads_that_there_are() -> None:
    assert all(name == peer.name for name, peer in PEERS.items())
    assert tuple(WORKLOADS) == ALL
    assert all(peer.workloads and set(peer.workloads) <= set(ALL) for peer in PEERS.values())
