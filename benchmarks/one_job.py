"""Where the time of one job goes on an idle system, from ``add_job`` to the result in the caller's hand.

``python -m benchmarks.one_job [--url URL] [--jobs 300]`` prints JSON; without a URL in an SQLite
file in the current folder. System calls are counted where strace is installed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

from benchmarks import hops, workloads
from benchmarks.jobs import Empty
from benchmarks.node import family, node
from benchmarks.scale import Scale
from benchmarks.store_costs import claimed, settled
from taskqueue import Scheduler
from taskqueue.cli.bench import ScratchStores, scratch_stores
from taskqueue.scheduler import new_jobs
from taskqueue.store import Store
from taskqueue.store.open import open_store

Result = TypeVar("Result")

PARTS = ("node", "manager", "worker")
TOTAL = re.compile(r"^\s*100\.00\s+\S+\s+(?:\S+\s+)?(?P<calls>\d+)\s+(?:\d+\s+)?total$", re.MULTILINE)


def in_the_store(store: Store, jobs: int) -> dict[str, float]:
    """Return the median microseconds of each call that one job needs, without any node."""
    taken: dict[str, list[float]] = {
        name: [] for name in ("make the record", "add", "claim", "settle", "read the events")
    }
    _, cursor = store.events(None)
    for _ in range(jobs):
        record = _timed(taken["make the record"], lambda: new_jobs.record_of(Empty, None, {}, {}, store.now()))
        _timed(taken["add"], lambda: store.add([record]))  # noqa: B023 - called at once
        runs = _timed(taken["claim"], lambda: claimed(store, 1))
        _timed(taken["settle"], lambda: settled(store, runs))  # noqa: B023
        _, cursor = _timed(taken["read the events"], lambda: store.events(cursor))  # noqa: B023
    return {name: _us(seconds) for name, seconds in taken.items()}


def journaled(stores: ScratchStores, jobs: int) -> float:
    """Return how many bytes the journal of SQLite gets for one job: at a level at which no room is made ahead."""
    with stores.fresh() as url, closing(open_store(url.replace("=full", "=normal"))) as store:
        journal = Path(f"{_path(url)}-wal")
        before = journal.stat().st_size
        for _ in range(jobs):
            store.add([new_jobs.record_of(Empty, None, {}, {}, store.now())])
            settled(store, claimed(store, 1))
        return (journal.stat().st_size - before) / jobs


def whole(stores: ScratchStores, jobs: int) -> dict[str, float]:
    """Return the median microseconds to the start and to the result, through a real node."""
    with stores.fresh() as url, Scheduler(url) as scheduler, node(url, stores.folder, 1) as running:
        workloads.warm(running, scheduler, Scale())
        trips = workloads.travel(running, scheduler, jobs)
    return {"to the start": _us(trips.to_start), "to the result": _us(trips.to_result)}


def system_calls(stores: ScratchStores, jobs: int) -> dict[str, float]:
    """Return how many system calls each process of a node makes for one job that comes alone."""
    if shutil.which("strace") is None:
        return {}
    with stores.fresh() as url, Scheduler(url) as scheduler, node(url, stores.folder, 1) as running:
        workloads.warm(running, scheduler, Scale())
        members = dict(zip(PARTS, family(running.pid), strict=True))
        with tempfile.TemporaryDirectory() as folder:
            with ExitStack() as traced:
                for name, pid in members.items():
                    traced.enter_context(_traced(pid, Path(folder, name)))
                workloads.travel(running, scheduler, jobs)
            return {name: round(_calls(Path(folder, name)) / jobs, 1) for name in PARTS}


def table(stores: ScratchStores, jobs: int) -> Mapping[str, object]:
    """Return everything."""
    with stores.fresh() as url, closing(open_store(url)) as store:
        calls = in_the_store(store, jobs)
        guarantee = store.guarantee
    journal = None if stores.file_store is None else round(journaled(stores, jobs))
    through = round(hops.latency(jobs) * 1e6)
    ends = whole(stores, jobs)
    known = sum(calls.values()) + through
    return {
        "guarantee": guarantee,
        "hops_us": {
            **calls,
            "node to worker and back": through,
            "wake-ups and the rest": ends["to the result"] - known,
        },
        "whole_us": ends,
        "journal_bytes": journal,
        "system_calls": system_calls(stores, jobs),
    }


@contextmanager
def _traced(pid: int, file: Path) -> Iterator[None]:
    """Count the system calls of a process while the block runs."""
    command = ["strace", "-f", "-c", "-o", str(file), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        tracer.stderr.readline()  # says that it is attached
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)


def _calls(file: Path) -> int:
    found = TOTAL.search(file.read_text())
    return int(found["calls"]) if found else 0


def _timed(taken: list[float], call: Callable[[], Result]) -> Result:
    began = time.perf_counter()
    result = call()
    taken.append(time.perf_counter() - began)
    return result


def _us(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e6)


def _path(url: str) -> str:
    return url.removeprefix("sqlite://").partition("?")[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="jobs.db")
    parser.add_argument("--jobs", type=int, default=300)
    given = parser.parse_args()
    with scratch_stores(given.url) as stores:
        sys.stdout.write(f"{json.dumps(table(stores, given.jobs), indent=2)}\n")


if __name__ == "__main__":
    main()
