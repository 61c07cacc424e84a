"""A node on an SQLite file that keeps ten million jobs, one million of them waiting, beside one on an empty file.

``python -m benchmarks.ten_million FILE [--jobs 10000000] [--seconds 500]`` fills the file for so long; call it
again until it says that all are there. Then ``--measure`` prints round trips, a drain and the memory of a node on both
files, and ``python -m benchmarks.growth --kept FILE`` takes it beside smaller ones. Remove it yourself.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import workloads
from benchmarks.figures import written
from benchmarks.growth import url_of
from benchmarks.jobs import Empty
from benchmarks.node import node
from benchmarks.page import table
from benchmarks.scale import Scale
from benchmarks.store_costs import claimed, records, settled
from taskqueue import Scheduler
from taskqueue.cli.bench import ScratchStores, scratch_stores
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.store.open import open_store
from tests.nodes import eventually

QUEUE = "measured"
"""The queue of the node: the million that wait in the other one stay there."""

MEGABYTE = 1_000_000
TRIPS = 100


def fill(url: str, jobs: int, seconds: float) -> int:
    """Add jobs, nine of ten of which are DONE, until so many are there or the time is over; return how many are."""
    ends_at = time.monotonic() + seconds
    with closing(open_store(url)) as store:
        there = sum(store.tally().values())
        for batch in records(store, jobs - there):
            store.add(batch)
            settled(store, claimed(store, len(batch) * 9 // 10))
            there += len(batch)
            if time.monotonic() > ends_at:
                break
        return there


def measure(stores: ScratchStores, large: str, rounds: int, jobs: int) -> Mapping[str, Any]:
    """Return the medians of all rounds on both files, which take turns."""
    with closing(open_store(large)) as store:
        there = sum(store.tally().values())
    with stores.fresh() as empty:
        taken: dict[str, list[Mapping[str, float]]] = {"empty": [], "large": []}
        for _ in range(rounds):
            for name, url in (("empty", empty), ("large", large)):
                taken[name].append(_round(stores, url, jobs))
    figures = {name: {key: median(one[key] for one in found) for key in found[0]} for name, found in taken.items()}
    return {"jobs": there, "figures": figures}


def _round(stores: ScratchStores, url: str, jobs: int) -> Mapping[str, float]:
    """Start a node, and send jobs through it, one by one and together."""
    pending = parse({"queue": QUEUE, "status": {"$lt": int(Status.DONE)}})
    with ExitStack() as opened:
        store = opened.enter_context(closing(open_store(url)))
        scheduler = opened.enter_context(Scheduler(url))
        running = opened.enter_context(node(url, stores.folder, 1, "--work-on", QUEUE))
        eventually(lambda: any(lease.name.startswith("seat:") for lease in store.leases()))
        workloads.warm(running, scheduler, Scale(), QUEUE)
        started = running.memory()
        trips = workloads.travel(running, scheduler, min(jobs, TRIPS), QUEUE)
        began = time.perf_counter()
        scheduler.add_jobs([(Empty, None, {"queue": QUEUE})] * jobs)
        added = time.perf_counter()
        eventually(lambda: not store.count(pending))
        drained = time.perf_counter()
        memory = running.memory()
    return {
        "add_job to start, p50, ms": median(trips.to_start) * 1000,
        "add_job to result, p50, ms": median(trips.to_result) * 1000,
        f"add {jobs:,}, jobs/s": jobs / (added - began),
        f"drain {jobs:,}, jobs/s": jobs / (drained - began),
        "memory of the node and its worker at first, MB": started / MEGABYTE,
        "memory after these jobs, MB": memory / MEGABYTE,
    }


def summary(found: Mapping[str, Any]) -> Sequence[str]:
    """Return a table in Markdown."""
    empty, large = found["figures"]["empty"], found["figures"]["large"]
    rows = [(key, written(empty[key]), written(large[key]), f"{large[key] / empty[key]:.2f}") for key in empty]
    return table(("", "empty", f"{found['jobs']:,} jobs", "ratio"), rows)


def main() -> None:
    """Fill, or measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    url = url_of(given.file)
    if not given.measure:
        there = fill(url, given.jobs, given.seconds)
        sys.stdout.write(f"{there:,} of {given.jobs:,} jobs are there\n")
        return
    with scratch_stores(url) as stores:
        sys.stdout.write("\n".join([*summary(measure(stores, url, given.rounds, 2_000)), ""]))


if __name__ == "__main__":
    main()
