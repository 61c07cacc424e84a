"""How much three nodes on one MongoDB do more than one, on jobs that sleep 20 ms.

``python -m benchmarks.three_nodes [--url URL] [--jobs 2000]`` prints JSON; without a URL it starts a server
like that of the tests. Jobs sleep, so that the processors of one machine are no bound for all nodes together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.node import node
from taskqueue import Job, Scheduler
from taskqueue.cli.bench import ScratchStores, drained_within, scratch_stores
from taskqueue.store.open import open_store
from tests.nodes import eventually
from tests.servers import Cluster, with_database

WORKERS = 4
SLEEP = 0.02


class Nap(Job):
    """Takes its time, but no processor."""

    def start(self) -> None:
        time.sleep(SLEEP)


def rate(stores: ScratchStores, nodes: int, jobs: int) -> float:
    """Return how many jobs a second so many nodes do together."""
    with stores.fresh() as url, closing(open_store(url)) as store, ExitStack() as running:
        started = [
            running.enter_context(node(url, stores.folder, WORKERS, "--name", f"bench-{number}"))
            for number in range(nodes)
        ]
        eventually(lambda: sum(lease.name.startswith("seat:") for lease in store.leases()) == nodes)
        with Scheduler(url) as scheduler:
            scheduler.add_jobs([("benchmarks.three_nodes:Nap", None)] * jobs)
        started[0].drain(store)
        return jobs / drained_within(store)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--jobs", type=int, default=2_000)
    given = parser.parse_args()
    with ExitStack() as started:
        if given.url is None:
            folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
            given.url = with_database(started.enter_context(Cluster(folder, size=1)).url, "bench")
        stores = started.enter_context(scratch_stores(given.url))
        one, three = (rate(stores, nodes, given.jobs) for nodes in (1, 3))
    figures = {
        "workers_per_node": WORKERS,
        "most_per_node": WORKERS / SLEEP,
        "one_node": round(one),
        "three_nodes": round(three),
        "ratio": round(three / one, 2),
    }
    sys.stdout.write(f"{json.dumps(figures)}\n")


if __name__ == "__main__":
    main()
