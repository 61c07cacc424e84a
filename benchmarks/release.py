"""What it takes to add, release and cancel the members of large workflows.

``python -m benchmarks.release [--url URL] [--members 10000]`` prints JSON; without a URL in an SQLite file beside
the store of this user. "fan in" is a level of a thousand members that one waits for, settled by one call.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing, suppress

from benchmarks.store_costs import LEASE, claimed, seconds, settled
from taskqueue import Scheduler, workflows
from taskqueue.cli.bench import scratch_stores
from taskqueue.errors import StoreUnavailable
from taskqueue.model.query import parse
from taskqueue.model.record import Record
from taskqueue.store import Store
from taskqueue.store.open import open_store

BESIDE = 1000
JOB = "app:Mail"
WAITING = parse({"status": "WAITING"})


def fan_out(url: str, members: int) -> dict[str, float]:
    """Return how many members a second are added behind one, and released by its end."""
    with Scheduler(url) as scheduler, closing(open_store(url)) as store:
        added = seconds(lambda: workflows.chain(scheduler, JOB, [JOB] * members))
        first = claimed(store, 1)
        released = seconds(lambda: _release(store, first, members))
        flow = workflows.find(scheduler, first[0].id)
        canceled = seconds(lambda: flow.cancel("measured"))
        return {"added": members / added, "released": members / released, "canceled": members / canceled}


def fan_in(url: str, beside: int = BESIDE) -> dict[str, float]:
    """Return how many members a second end before one that waits for all of them."""
    with Scheduler(url) as scheduler, closing(open_store(url)) as store:
        workflows.group(scheduler, [JOB] * beside, then=JOB)
        runs = claimed(store, beside)
        ended = seconds(lambda: _release(store, runs, 1))
        return {"ended": beside / ended}


def _release(store: Store, runs: Sequence[Record], waiting: int) -> None:
    """Settle the runs, and finish what takes longer than one call may, as nodes do."""
    settled(store, runs)
    found = -1
    while (before := found) != waiting and (found := store.count(WAITING)) != waiting:
        if found == before:
            raise RuntimeError(f"{found:,} members were released instead of {waiting:,}")
        with suppress(StoreUnavailable):  # its time is over, and a part of it is done
            store.repair(store.now() + LEASE)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--members", type=int, default=10_000)
    asked = parser.parse_args(arguments)
    with scratch_stores(asked.url) as stores, stores.fresh() as wide, stores.fresh() as narrow:
        figures = {"fan out": fan_out(wide, asked.members), "fan in": fan_in(narrow)}
    rounded = {part: {name: round(value) for name, value in each.items()} for part, each in figures.items()}
    sys.stdout.write(f"{json.dumps(rounded, indent=2)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
