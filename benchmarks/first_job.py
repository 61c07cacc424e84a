"""How long a node takes from its start to its first job done, with a job that waits already.

``python -m benchmarks.first_job [--url URL] [--rounds 5] [--json FILE]`` prints a table in Markdown; without
a URL in SQLite files in the current folder. A bare interpreter, and one that imports what the node imports, are
started beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.figures import written
from benchmarks.jobs import Empty
from benchmarks.node import node
from benchmarks.page import table
from benchmarks.store_costs import seconds
from taskqueue import Scheduler
from taskqueue.cli.bench import ScratchStores, scratch_stores

IMPORTS = "import taskqueue.cli.node, taskqueue.daemon.node.node, taskqueue.store.sqlite"
WORKERS = 2


def measure(stores: ScratchStores, rounds: int) -> Mapping[str, Any]:
    """Return the milliseconds of each round."""
    taken: dict[str, list[float]] = {
        "a bare interpreter has run": [],
        "the node is imported": [],
        "the first job is done": [],
    }
    for _ in range(rounds):
        for name, code in zip(taken, ("", IMPORTS), strict=False):
            taken[name].append(seconds(partial(subprocess.run, [sys.executable, "-c", code], check=True)) * 1000)
        taken["the first job is done"].append(_first_job(stores) * 1000)
    return {
        "hardware": environment.hardware(),
        "ms": {name: [round(one, 1) for one in all] for name, all in taken.items()},
    }


def _first_job(stores: ScratchStores) -> float:
    """Start a node where one job waits, and return the seconds until that is done."""
    with stores.fresh() as url, Scheduler(url) as scheduler:
        process = scheduler.add_job(Empty)
        began = time.perf_counter()
        with node(url, stores.folder, WORKERS) as running:
            running.wait(process)
            return time.perf_counter() - began


def summary(found: Mapping[str, Any]) -> list[str]:
    """Return a table in Markdown: the median of each, and its rounds."""
    rows = [(name, written(statistics.median(ms)), " ".join(map(written, ms))) for name, ms in found["ms"].items()]
    return table(("milliseconds until", "median", "rounds"), rows)


def main() -> None:
    """Measure, print, and write the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with scratch_stores(given.url or "first.db") as stores:
        found = measure(stores, given.rounds)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    sys.stdout.write("\n".join([*summary(found), ""]))


if __name__ == "__main__":
    main()
