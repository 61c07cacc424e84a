"""What a store takes for claims and settles by size of batch.

``python -m benchmarks.store_costs [--url URL] [--jobs 20000]`` prints JSON; without a URL in an SQLite file in
the current folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta

from bson import ObjectId

from taskqueue.cli.bench import scratch_stores
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Holder, Record, Status
from taskqueue.store import ClaimRequest, Settlement, Store
from taskqueue.store.open import open_store

HOLDER = Holder(seat="costs", incarnation="1")
LEASE = timedelta(hours=1)
BATCHES = (1, 8, 64, 256)
AT_ONCE = 1000


def records(store: Store, count: int, due_in: timedelta = timedelta(0)) -> Iterable[list[Record]]:
    """Yield so many records in lists, WAITING or due later."""
    now = store.now()
    status = Status.POSTPONED if due_in else Status.WAITING
    for first in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - first)
        given = {"job": "app:Mail", "created_at": now, "ready_at": now + due_in, "status": status}
        yield [Record(id=ObjectId(), **given).at_rank() for _ in range(size)]  # type: ignore[arg-type]


def claimed(store: Store, count: int) -> Sequence[Record]:
    """Claim up to so many."""
    now = store.now()
    return store.claim(HOLDER, ClaimRequest(pooled=count), now, now + LEASE).records


def settled(store: Store, runs: Sequence[Record]) -> None:
    """Settle all of them as DONE."""
    now = store.now()
    run = Run(node=HOLDER.seat, started_at=now)
    store.settle([Settlement(claims=r.claims, holder=HOLDER, after=ended(r, Done(), run, now)) for r in runs], now)


def seconds(call: Callable[[], object]) -> float:
    """Return how long the call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def by_batch(store: Store, jobs: int) -> Iterable[Mapping[str, float]]:
    """Yield how many jobs a second are claimed and settled in batches of each size."""
    for batch in BATCHES:
        count = min(jobs, batch * 2_000)
        for some in records(store, count):
            store.add(some)
        began = time.perf_counter()
        done = 0
        while runs := claimed(store, batch):
            settled(store, runs)
            done += len(runs)
        yield {"batch": batch, "jobs_per_second": round(done / (time.perf_counter() - began))}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="costs.db")
    parser.add_argument("--jobs", type=int, default=20_000)
    given = parser.parse_args()
    with scratch_stores(given.url) as stores, stores.fresh() as url, closing(open_store(url)) as store:
        figures = {"guarantee": store.guarantee, "batches": list(by_batch(store, given.jobs))}
    sys.stdout.write(f"{json.dumps(figures, indent=2)}\n")


if __name__ == "__main__":
    main()
