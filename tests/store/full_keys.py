"""A key whose places are all taken, the jobs that wait for it, and claims of others beside them.

``python -m tests.store.full_keys [--jobs 100000]`` takes the time of such claims on both stores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path

from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Record
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.servers import Cluster, with_database
from tests.store.records import NOON, SECOND, a_record, claim

WANTED = 8
CLAIMS = 50
"""How many claims the middle one is taken from; all within the lease of the one that holds the place."""


class Backlog:
    """One job holds the only place of a key; others wait for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.grow(3)
        assert len(claim(store, WANTED).records) == 1

    def grow(self, count: int) -> None:
        """Let so many more jobs wait for the key."""
        for first in range(0, count, 1000):
            self._store.add([_limited() for _ in range(min(1000, count - first))])

    def claim(self, now: datetime) -> float:
        """Claim jobs without limits, and return how many seconds that took."""
        self._store.add([a_record() for _ in range(WANTED)])
        began = time.perf_counter()
        taken = claim(self._store, WANTED, now=now).records
        took = time.perf_counter() - began
        assert len(taken) == WANTED
        assert not any(one.lane for one in taken)
        return took


def compare(alone: Backlog, beside: Backlog) -> tuple[float, float]:
    """Return how many seconds the middle one of several claims takes in each, by turns: the machine may be busy."""
    moments = [NOON + number * SECOND / 2 for number in range(CLAIMS)]
    times = [(alone.claim(moment), beside.claim(moment)) for moment in moments]
    return statistics.median(time for time, _ in times), statistics.median(time for _, time in times)


def _limited() -> Record:
    return a_record(lane=lane([Limit(1)], "app:Mail", None))


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the times and return whether a claim takes more than twice as long beside the backlog."""
    parser = argparse.ArgumentParser(prog="python -m tests.store.full_keys", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    given = parser.parse_args(arguments)
    slower = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lanes-", ignore_cleanup_errors=True)))
        cluster = stack.enter_context(Cluster(folder / "set", size=1))
        for kind in ("sqlite", "mongodb"):
            urls = [
                f"sqlite://{folder}/{name}.db" if kind == "sqlite" else with_database(cluster.url, name)
                for name in ("alone", "beside")
            ]
            small, large = (Backlog(stack.enter_context(closing(open_store(url)))) for url in urls)
            large.grow(given.jobs)
            alone, beside = compare(small, large)
            slower += beside > 2 * alone
            print(
                f"{kind}: {alone * 1000:.2f} ms for a claim of {WANTED} jobs, "
                f"{beside * 1000:.2f} ms beside {given.jobs:,} of a full key: {beside / alone:.2f} times",
                flush=True,
            )
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
