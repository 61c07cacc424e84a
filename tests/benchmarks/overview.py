"""What the looks of ``taskqueue top`` cost in a store with a million jobs.

``python -m tests.benchmarks.overview FILE [--jobs 1000000] [--rounds 20]`` fills a new SQLite file (it stays for the
next measurement), or takes one that it has filled, and prints a table in Markdown: milliseconds of each look.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from taskqueue.cli import output
from taskqueue.cli.bench.figures import written
from taskqueue.model.lifecycle.outcomes import Done, Failed, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Cause, Failure
from taskqueue.scheduler.overview_reader import OverviewReader
from taskqueue.store import Settlement, Store
from taskqueue.store.open import open_store
from tests.benchmarks.page import table
from tests.benchmarks.store_costs import HOLDER, claimed, records, seconds

QUEUES = ("mail", "reports", "images", "imports", "default")
RUNNING = 100
ERROR = Failure(type="builtins.ConnectionError", message="no answer")


def fill(store: Store, jobs: int) -> None:
    """Add so many jobs: a third ended, each tenth of these failed; a third due later; a third waiting; some running."""
    for batch in records(store, jobs // 3):
        store.add([replace(record, queue=random.choice(QUEUES)) for record in batch])
        runs, now = claimed(store, len(batch)), store.now()
        run = Run(node=HOLDER.seat, started_at=now - timedelta(seconds=1))
        outcomes = [Failed(failure=ERROR) if number % 10 == 0 else Done() for number in range(len(runs))]
        settled = [ended(one, outcome, run, now) for one, outcome in zip(runs, outcomes, strict=True)]
        store.settle(
            [
                Settlement(claims=one.claims, holder=HOLDER, after=after)
                for one, after in zip(runs, settled, strict=True)
            ],
            now,
        )
    for batch in records(store, jobs // 3, timedelta(days=1)):
        store.add([replace(record, queue=random.choice(QUEUES), cause=Cause.RETRY) for record in batch])
    for batch in records(store, jobs // 3):
        store.add([replace(record, queue=random.choice(QUEUES)) for record in batch])
    claimed(store, RUNNING)


def looks(store: Store) -> Mapping[str, Callable[[], object]]:
    """Return what the screen reads."""
    reader = OverviewReader(store)
    return {
        "the first overview": lambda: OverviewReader(store).read(),
        "each further one": reader.read,
    }


def main() -> None:
    """Fill the file if it is new, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    is_new = not chosen.file.exists()
    with closing(open_store(f"sqlite://{chosen.file.resolve()}")) as store:
        if is_new:
            fill(store, chosen.jobs)
        rows = []
        for name, look in looks(store).items():
            taken = [1000 * seconds(look) for _ in range(chosen.rounds)]
            rows.append([name, written(statistics.median(taken)), written(max(taken))])
    for line in table(["milliseconds", "median", "longest"], rows):
        output.line(line)


if __name__ == "__main__":
    main()
