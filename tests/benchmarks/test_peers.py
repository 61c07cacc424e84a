"""The adapter for ourselves works: what is compared with others is measured as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.peers.page import page
from tests.benchmarks.peers.systems import PEERS
from tests.benchmarks.peers.workloads import NEVER, WORKLOADS

FIGURES = {
    "adding": ["one by one, jobs/s", "bulk, jobs/s"],
    "drain": ["jobs/s", "run twice"],
    "killed": ["runs again after, ms"],
}


@pytest.mark.parametrize("workload", FIGURES)
def test_a_workload_of_our_own_gives_figures(workload: str) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.peers.measure", "taskqueue-normal", workload, "--jobs", "60"]

    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), check=True)

    figures = json.loads(done.stdout)
    assert list(figures) == FIGURES[workload]
    assert figures.get("run twice", 0) == 0
    assert all(value > 0 for name, value in figures.items() if name != "run twice")


def test_the_page_lists_the_best_first() -> None:
    values = {
        "drain, 2 workers: jobs/s": {"rq": [177.0, 180.0, 150.0], "taskqueue": [6000.0]},
        "killed: runs again after, ms": {"huey-redis": [NEVER], "taskqueue": [10.0]},
    }
    machine = {"processor": "EPYC", "cores": 2, "kernel": "6.1", "python": "3.11", "load": 0.5}

    text = page({"hardware": machine, "rounds": 3, "jobs": 100, "values": values})

    assert "| taskqueue | 6,000 | 6,000 |\n| rq | 177 | 177, 180, 150 |" in text
    assert "| huey-redis | never | never |\n" in text
    assert "| huey-redis | what is in the last snapshot | nothing |" in text


def test_every_system_is_described_once() -> None:
    assert all(name == peer.name for name, peer in PEERS.items())
    assert set(FIGURES) < set(WORKLOADS)
