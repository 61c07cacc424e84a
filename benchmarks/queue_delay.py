"""How long an invoice waits for its start beside 100,000 mails of another queue, on one node and on three.

``python -m benchmarks.queue_delay [--url URL] [--mails 100000] [--invoices 30]`` prints a table; without a URL the
store is an SQLite file in the current folder. A mail takes 100 ms, and each node has two workers.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.node import node
from benchmarks.queues import print_rows
from taskqueue import Job, Scheduler
from taskqueue.cli.bench import ScratchStores, scratch_stores

WORKERS = 2
RUN = 0.1
AT_ONCE = 1_000


class Mail(Job):
    """Takes its time, but no processor."""

    def start(self) -> None:
        time.sleep(RUN)


def delays(stores: ScratchStores, nodes: int, mails: int, invoices: int) -> list[float]:
    """Return how long after its addition each invoice starts, in seconds; they are added one after the other."""
    waited: list[float] = []
    with stores.fresh() as url, Scheduler(url) as scheduler, ExitStack() as running:
        for first in range(0, mails, AT_ONCE):
            count = min(AT_ONCE, mails - first)
            scheduler.add_jobs([("benchmarks.queue_delay:Mail", None, {"queue": "mail"})] * count)
        for number in range(nodes):
            running.enter_context(node(url, stores.folder, WORKERS, "--name", f"bench-{number}"))
        for warm in range(invoices + 3):
            time.sleep(random.uniform(RUN, 3 * RUN))
            added_at = time.time()
            invoice = scheduler.add_job("benchmarks.jobs:Moment", queue="invoice")
            started_at = float(invoice.wait(timeout=60).result)
            if warm >= 3:  # the first ones meet nodes that start, and do not know how long a mail takes
                waited.append(started_at - added_at)
    return waited


def rows(url: str | None, mails: int, invoices: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of nodes, without mails and with them."""
    with scratch_stores(url) as stores:
        for nodes in (1, 3):
            for waiting in (0, mails):
                waited = sorted(delays(stores, nodes, waiting, invoices))
                shown = (statistics.median(waited), waited[len(waited) * 9 // 10], waited[-1])
                yield f"{nodes}", f"{waiting:,}", *(f"{1000 * one:.0f}" for one in shown)


if __name__ == "__main__":
    HEADS = ("nodes", "mails", "median, ms", "90 %", "longest")
    print_rows("queue_delay", __doc__, HEADS, rows, mails=100_000, invoices=30)
