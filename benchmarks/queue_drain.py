"""What a store takes to claim and settle the jobs of one, of a hundred and of ten thousand queues, in either order.

``python -m benchmarks.queue_drain [--url URL] [--jobs 20000] [--rounds 5]`` drains in turns, and prints a table of
medians; without a URL in an SQLite file in the current folder.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from benchmarks.queues import print_rows
from benchmarks.store_costs import HOLDER, LEASE, records, settled
from taskqueue.cli.bench import scratch_stores
from taskqueue.store import ClaimRequest, Store
from taskqueue.store.bell import WORK
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.open import open_store
from taskqueue.store.queue_shares import STRICT, QueueShares

QUEUES = (1, 100, 10_000)
ORDERS = ("strict", "fair")
BATCH = 128


class Costs(NamedTuple):
    """What a job took: microseconds of the processor here and on a MongoDB server, and of the clock."""

    here: float
    server: float
    clock: float


def drained(store: Store, order: str, queues: int, jobs: int) -> Costs:
    """Add jobs to these queues, one after the other, and return what their claims and outcomes take."""
    numbers = itertools.count()
    for batch in records(store, jobs):
        store.add([replace(record, queue=f"queue-{next(numbers) % queues}") for record in batch])
    shares = QueueShares() if order == "fair" else STRICT
    demand = ClaimRequest(pooled=BATCH, shares=shares)
    done = 0
    with closing(store.bell(WORK)):  # with which a claim on MongoDB looks only where something has changed
        before = _now(store)
        while runs := store.claim(HOLDER, demand, now := store.now(), now + LEASE).records:
            settled(store, shares.count(runs, now))
            done += len(runs)
        after = _now(store)
    assert done == jobs
    return Costs(*((end - begin) / jobs * 1e6 for begin, end in zip(before, after, strict=True)))


def _now(store: Store) -> Costs:
    """Return the processor time of this process and of a MongoDB server, and the clock, in seconds."""
    server = 0.0
    if isinstance(store, MongoStore):
        usage = store._connection.database.client.admin.command("serverStatus")["extra_info"]
        server = (usage["user_time_us"] + usage["system_time_us"]) / 1e6
    return Costs(time.process_time(), server, time.perf_counter())


def in_turns(url: str | None, jobs: int, rounds: int) -> Iterable[tuple[str, ...]]:
    """Yield a row for each number of queues and each order."""
    for queues in QUEUES:
        costs: dict[str, list[Costs]] = {order: [] for order in ORDERS}
        for turn in range(rounds * len(ORDERS)):
            order = ORDERS[turn % len(ORDERS)]
            with scratch_stores(url) as stores, stores.fresh() as fresh, closing(open_store(fresh)) as store:
                costs[order].append(drained(store, order, queues, jobs))
        for order in ORDERS:
            medians = [statistics.median(one) for one in zip(*costs[order], strict=True)]
            yield f"{queues:,}", order, *(f"{one:.0f}" for one in medians)


if __name__ == "__main__":
    HEADS = ("queues", "order", "processor here, µs a job", "of the server", "clock")
    print_rows("queue_drain", __doc__, HEADS, in_turns, jobs=20_000, rounds=5)
