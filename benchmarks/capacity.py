"""What a host carries: memory of nodes and workers, bytes of jobs in the store, rates by workers, and retention.

``python -m benchmarks.capacity [--url URL] [--jobs 20000]`` prints tables in Markdown for one store; without a
URL it is the embedded one of this user. ``--json FILE`` writes the figures.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.capacity_jobs import LINES, Nap, NapTogether, Spin, Telling
from benchmarks.jobs import Empty
from benchmarks.node import Node, node
from benchmarks.page import table
from taskqueue import Job, Scheduler, Status
from taskqueue.cli.bench import ScratchStores, drained_within, scratch_stores
from taskqueue.model.wording import count
from taskqueue.store import Store
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.url import parse
from taskqueue.store.open import open_store
from taskqueue.store.sqlite.url import location
from tests.nodes import eventually

WORKERS = (1, 8, 32)
BATCH = 1000
Case = tuple[type[Job], int, int]
"""The class of jobs, how many workers there are, and how many times more jobs than others they get."""

RATES: Mapping[str, Case] = {
    "waits 50 ms, 1 worker": (Nap, 1, 1),
    "waits 50 ms, 8 workers": (Nap, 8, 8),
    "waits 50 ms, 32 workers": (Nap, 32, 32),
    "waits 50 ms, 1 concurrent worker of 100": (NapTogether, 1, 64),
    "computes 10 ms, 1 worker": (Spin, 1, 2),
    "computes 10 ms, 2 workers": (Spin, 2, 4),
    "computes 10 ms, 8 workers": (Spin, 8, 4),
    "does nothing, 2 workers": (Empty, 2, 200),
}
PARTS = {
    "memory_mb": ("memory (PSS) of", "MB"),
    "bytes": ("in the store", "bytes"),
    "rates": ("a job that", "jobs/s"),
    "retention": ("retention", ""),
}
MEGABYTE = 1_000_000
DATA = {"to": "someone@example.org", "order": 123456, "text": "x" * 40}
"""About 100 bytes of data, as a job that names what it is about has."""


def measure(
    stores: ScratchStores,
    jobs: int,
    rates: int,
    workers: Sequence[int] = WORKERS,
    cases: Mapping[str, Case] = RATES,
) -> Mapping[str, Any]:
    """Return all figures; ``rates`` jobs are run for each rate."""
    return {
        "hardware": environment.hardware(),
        "memory_mb": dict(_memory(stores, workers)),
        "bytes": dict(_bytes(stores, jobs)),
        "rates": dict(_rates(stores, rates, cases)),
        "retention": _retention(stores, jobs),
    }


def _memory(stores: ScratchStores, workers: Sequence[int]) -> Iterator[tuple[str, float]]:
    """Yield the proportional memory of a node with so many workers, each of which has run jobs."""
    for number in workers:
        with site(stores, number) as here:
            here.do([(Nap, None)] * number * 4)
            yield f"a node with {count(number, 'worker')}", round(here.node.memory() / MEGABYTE, 1)
    with site(stores, 1) as here:
        here.do([(NapTogether, None)] * 200)
        yield "a node with 1 worker and 1 concurrent worker", round(here.node.memory() / MEGABYTE, 1)


def _bytes(stores: ScratchStores, jobs: int) -> Iterator[tuple[str, int]]:
    """Yield how many bytes of the store a job takes, with its indexes and events, and a minute of the history."""
    for title, job in (("", Empty), (f", with {LINES} log lines", Telling)):
        with stores.fresh() as url, closing(open_store(url)) as store, Scheduler(url) as scheduler:
            empty = size(url)
            scheduler.add_jobs([(job, DATA)] * jobs)
            if not title:
                yield "a waiting job", (size(url) - empty) // jobs
            with node(url, stores.folder, 2) as running:
                running.drain(store)
            yield f"an ended job{title}", (size(url) - empty) // jobs


def _rates(stores: ScratchStores, jobs: int, cases: Mapping[str, Case]) -> Iterator[tuple[str, float]]:
    """Yield how many jobs a second so many workers do."""
    for title, (job, workers, times) in cases.items():
        with site(stores, workers) as here:
            here.do([(job, None)] * (4 * workers))  # each worker has loaded the class
            yield title, round(here.do([(job, None)] * (jobs * times)), 1)


def _retention(stores: ScratchStores, jobs: int) -> Mapping[str, float]:
    """Return what it takes to remove ended jobs, and what remains of the room that they had."""
    with site(stores, 2) as here:
        here.do([(Empty, DATA)] * jobs)
        here.node.stop()
        before, began = size(here.url), time.perf_counter()
        later = here.store.now() + timedelta(days=1)
        while here.store.prune({status: later for status in Status if status.is_final}, later, BATCH):
            pass
        took = time.perf_counter() - began
        return {"removed jobs/s": round(jobs / took), "room kept in use %": round(100 * size(here.url) / before, 1)}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A node at work on a fresh store, and the ways to both."""

    url: str
    node: Node
    scheduler: Scheduler
    store: Store

    def do(self, jobs: Sequence[tuple[type[Job], object]]) -> float:
        """Add the jobs, wait until all have ended, and return how many a second that were."""
        self.scheduler.flush()
        self.scheduler.add_jobs(jobs)
        self.node.drain(self.store)
        return len(jobs) / drained_within(self.store)


@contextmanager
def site(stores: ScratchStores, workers: int) -> Iterator[Site]:
    """Yield a node with so many workers that is at work."""
    with (
        stores.fresh() as url,
        closing(open_store(url)) as store,
        Scheduler(url) as scheduler,
        node(url, stores.folder, workers) as running,
    ):
        eventually(lambda: any(lease.name.startswith("seat:") for lease in store.leases()))
        yield Site(url=url, node=running, scheduler=scheduler, store=store)


def size(url: str) -> int:
    """Return the bytes in use, on disk: of the file's pages, or of collections and indexes as they are compressed."""
    if url.startswith("mongodb"):
        return _size_of_collections(url)
    with closing(sqlite3.connect(location(url).path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        [pages], [free], [page] = (raw.execute(f"PRAGMA {name}").fetchone() for name in _PAGES)
        return int((pages - free) * page)


_PAGES = ("page_count", "freelist_count", "page_size")


def _size_of_collections(url: str) -> int:
    total = 0
    with closing(Connection(parse(url))) as connection:
        jobs = connection.collections.jobs
        jobs.database.client.admin.command("fsync")
        for name in jobs.database.list_collection_names():
            if name.startswith(jobs.name.removesuffix("jobs")):
                stats = jobs.database.command("collStats", name)
                total += stats["storageSize"] + stats["totalIndexSize"]
    return total


def summary(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield tables in Markdown."""
    machine = found["hardware"]
    yield f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, load {machine['load']}"
    for title, (head, unit) in PARTS.items():
        yield ""
        yield from table((head, unit), [(name, f"{value:,}") for name, value in found[title].items()])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rates", type=int, default=100)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    with scratch_stores(given.url) as stores:
        found = measure(stores, given.jobs, given.rates)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2))
    sys.stdout.write("\n".join([*summary(found), ""]))


if __name__ == "__main__":
    main()
