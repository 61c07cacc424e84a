"""How long the server takes for each page of the dashboard, in a store with a million ended jobs and many that wait.

``python -m tests.benchmarks.web_pages URL [--ended 1000000] [--waiting 100000] [--rounds 40]`` fills the store if it is
empty (it stays for the next measurement), and prints a table in Markdown: milliseconds of each page, and its size.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from starlette.testclient import TestClient

from taskqueue import Scheduler
from taskqueue.cli import output
from taskqueue.cli.bench.figures import written
from taskqueue.store import Store
from taskqueue.store.open import open_store
from taskqueue.web import app
from tests.benchmarks.overview import QUEUES, fill_ended
from tests.benchmarks.page import table
from tests.benchmarks.store_costs import records

CLASSES = [f"shop.jobs:Class{number}" for number in range(50)]


def fill(store: Store, number_ended: int, number_waiting: int) -> None:
    """Add jobs of many classes in some queues, and end the first of them, one of ten with an error."""
    fill_ended(store, number_ended, CLASSES)
    for batch in records(store, number_waiting):
        store.add([replace(record, queue=random.choice(QUEUES), job=random.choice(CLASSES)) for record in batch])


def pages(scheduler: Scheduler) -> Iterator[str]:
    """Yield the address of each page, those with filters among them."""
    yield from ("/", "/jobs", "/queues", "/schedules", "/nodes", "/failures?since=1h", "/failures?since=7d", "/audit")
    for status in ("waiting", "failed", "done"):
        yield f"/jobs?status={status}"
        [job] = scheduler.find_jobs({"status": status}, limit=1)
        yield f"/jobs/{job.id}"
    yield "/jobs?queue=mail&status=waiting"
    yield f"/jobs?status=failed&job={CLASSES[0]}&order=-ended_at"
    yield "/jobs?order=-ended_at&status=done"
    yield f"/jobs?job={CLASSES[0]}"
    yield "/jobs/batch?action=cancel&queue=mail"


def main() -> None:
    """Fill the store if it is empty, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--ended", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    with closing(open_store(chosen.url)) as store:
        if not store.tally():
            fill(store, chosen.ended, chosen.waiting)
    rows = []
    with Scheduler(chosen.url) as scheduler:
        client = ("127.0.0.1", 50_000)
        with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
            rows += [[page, *_measured(browser, page, chosen.rounds)] for page in pages(scheduler)]
    for line in table(["page", "median ms", "p95 ms", "longest ms", "kB"], rows):
        output.line(line)


def _measured(browser: TestClient, page: str, rounds: int) -> list[str]:
    taken, size = [], 0
    for _ in range(rounds):
        begin = time.perf_counter()
        answer = browser.get(page)
        taken.append(1000 * (time.perf_counter() - begin))
        assert answer.status_code == 200, (page, answer.status_code)
        size = len(answer.content)
    ranked = sorted(taken)
    return [
        *map(written, (statistics.median(taken), ranked[int(0.95 * (rounds - 1))], ranked[-1])),
        f"{size / 1000:.0f}",
    ]


if __name__ == "__main__":
    main()
