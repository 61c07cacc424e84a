"""How many system calls application, node, manager and worker make for one plain warm job.

``python -m tests.benchmarks.system_calls [--url URL] [--top 10]`` prints them, those of each process with the most
frequent first; without a URL in an SQLite file in the present folder. strace runs all processes from their start, so
that it needs no right to attach to others, and counts those of ``JOBS`` jobs one after the other.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from taskqueue import Scheduler
from taskqueue.cli.bench.environment import ScratchStores, scratch_stores
from taskqueue.cli.bench.jobs import Empty
from taskqueue.cli.bench.node import family, node
from tests.benchmarks.way_of_a_job import MANAGER, NODE, PATIENCE, ROLES, WORKER
from tests.counting import uncounted

JOBS = 20
CALL = re.compile(r"(?P<thread>\d+) +(?P<at>[\d.]+) (?P<name>\w+)\(")
""""1234  1790000000.123456 read(3, …": a call that is resumed, a signal and an exit look otherwise."""

Calls = Mapping[str, Mapping[str, float]]
"""By process, which call it makes how often for a job."""


def measure(url: str, jobs: int = JOBS) -> Calls:
    """Return the calls of each process for one of so many jobs."""
    if shutil.which("strace") is None:
        raise FileNotFoundError("install strace, Debian's package strace: bin/setup test does")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "calls")
        command = [sys.executable, "-m", "tests.benchmarks.system_calls", "--url", url, "--traced", str(jobs)]
        strace = ["strace", "-f", "-ttt", "-s", "0", "-e", "signal=none", "-o", str(file)]
        done = subprocess.run([*strace, *command], env=uncounted(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        return _counted(file, told["began"], told["ended"], told["threads"], jobs)


def _counted(file: Path, began: float, ended: float, threads: Mapping[str, Sequence[int]], jobs: int) -> Calls:
    role_of = {thread: role for role, all_of_it in threads.items() for thread in all_of_it}
    counts = {role: Counter[str]() for role in ROLES}
    with file.open() as lines:
        for found in map(CALL.match, lines):
            if found and began < float(found["at"]) < ended and int(found["thread"]) in role_of:
                counts[role_of[int(found["thread"])]][found["name"]] += 1
    return {role: {name: n / jobs for name, n in counted.most_common()} for role, counted in counts.items()}


def _traced(stores: ScratchStores, jobs: int) -> Mapping[str, object]:
    """Send jobs through a node, and return when that began and ended, and the threads of each process."""
    with stores.fresh() as url, Scheduler(url) as scheduler, node(url, stores.folder, 1) as running:

        def send() -> None:
            scheduler.add_job(Empty).wait(timeout=PATIENCE)

        for _ in range(jobs):
            send()
        began = time.time()
        for _ in range(jobs):
            send()
        ended = time.time()
        pids = {"application": "self", **dict(zip((NODE, MANAGER, WORKER), family(running.pid), strict=True))}
        threads = {role: [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()] for role, pid in pids.items()}
    return {"began": began, "ended": ended, "threads": threads}


def main() -> None:
    """Count and print; or be what is traced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="calls.db")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--traced", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.traced is not None:
        with scratch_stores(given.url, None) as stores:
            sys.stdout.write(json.dumps(_traced(stores, given.traced)))
        return
    for role, calls in measure(given.url).items():
        sys.stdout.write(f"\n{role}: {sum(calls.values()):.1f} system calls for a job\n")
        sys.stdout.writelines(f"  {count:6.2f} {name}\n" for name, count in list(calls.items())[: given.top])


if __name__ == "__main__":
    main()
