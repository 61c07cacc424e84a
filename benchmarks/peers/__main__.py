"""Measure all systems side by side: ``python -m benchmarks.peers --rounds 5 > peers.json``.

Rounds go through all systems one after the other, so that what the machine does meanwhile meets all of them alike.
``--page FILE`` writes the medians as a page of the documentation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.environment import hardware
from benchmarks.peers.client import ROOT
from benchmarks.peers.environment import python
from benchmarks.peers.page import page
from benchmarks.peers.systems import PEERS
from benchmarks.peers.workloads import WORKLOADS

LIMIT = 300.0
"""Seconds that one run may take."""


def run(peer: str, workload: str, workers: int, jobs: int, interpreter: Path) -> dict[str, float]:
    """Measure in a process of its own; a system that fails is told of and left out."""
    command = [str(interpreter), "-m", "benchmarks.peers.measure", peer, workload]
    sizes = ["--jobs", str(jobs), "--workers", str(workers)]
    try:
        done = subprocess.run([*command, *sizes], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        print(f"{peer} {workload}: not done within {LIMIT:g} s", file=sys.stderr)
        return {}
    if done.returncode:
        print(f"{peer} {workload} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
        return {}
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    interpreter = python({PEERS[name].server for name in given.peers})
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(given.rounds):
        for workload in given.workloads:
            for workers in given.workers if workload == "drain" else given.workers[:1]:
                for peer in (name for name in given.peers if workload in PEERS[name].workloads):
                    print(f"round {number + 1}: {workload} with {workers} workers, {peer}", file=sys.stderr)
                    title = f"{workload}, {workers} workers" if workload == "drain" else workload
                    for name, value in run(peer, workload, workers, given.jobs, interpreter).items():
                        values[f"{title}: {name}"][peer].append(value)
    report = {"hardware": hardware(), "rounds": given.rounds, "jobs": given.jobs, "values": values}
    json.dump(report, sys.stdout, indent=1)
    print()
    if given.page is not None:
        given.page.write_text(page(report))


if __name__ == "__main__":
    main()
