"""How long the server takes for each page of the dashboard, in a store with a million ended jobs and many that wait.

``python -m benchmarks.web_pages URL [--ended 1000000] [--waiting 100000] [--rounds 40]`` fills the store if it is
empty (it stays for the next measurement), and prints a table in Markdown: milliseconds of each page, its size, and its
mean time of processor, which says more where others work beside it (``--server PID`` counts that of a database, too).
No page finds the overview that another one has read a moment ago.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psutil
from starlette.testclient import TestClient

from benchmarks.figures import written
from benchmarks.large_store import CLASSES, QUEUES, SCHEDULE, TAGS, fill
from benchmarks.page import table
from taskqueue import Scheduler
from taskqueue.cli import output
from taskqueue.model.query import EVERYTHING
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.dashboard import Dashboard

MOST = 5_000.0
"""Milliseconds after which a slow page is not asked for again."""


Processor = Callable[[], float]
"""Returns the seconds of processor that were used so far."""


def pages(scheduler: Scheduler) -> Iterator[str]:
    """Yield the address of each page, those with filters among them."""
    yield from ("/", "/jobs", "/queues", "/schedules", f"/schedules/{SCHEDULE}", "/nodes", "/audit")
    yield from (f"/failures?since={since}" for since in ("1h", "24h", "72h", "7d"))
    yield "/classes"
    for over in ("1h", "24h", "7d"):
        yield from (f"/classes/{CLASSES[0]}?over={over}", f"/queues/{QUEUES[0]}?over={over}")
    for status in ("waiting", "postponed", "failed", "done"):
        [job] = scheduler.find_jobs({"status": status}, limit=1)
        yield from (f"/jobs?status={status}", f"/jobs/{job.id}")
    queue, job_class = f"queue={QUEUES[0]}", f"job={CLASSES[0]}"
    for status in ("waiting", "running", "postponed", "failed", "done", "pending", "ended"):
        yield from (f"/jobs?status={status}&{queue}", f"/jobs?status={status}&{job_class}")
    for order in ("created_at", "-ended_at", "rank"):
        yield from (f"/jobs?order={order}", f"/jobs?order={order}&status=waiting", f"/jobs?order={order}&{queue}")
    yield from (f"/jobs?{queue}", f"/jobs?{job_class}", f"/jobs?tag={TAGS[0]}", f"/jobs?{queue}&{job_class}")
    yield from (f"/jobs/matching?action=cancel&{queue}", f"/jobs/matching?action=again&status=failed&{job_class}")


def main() -> None:
    """Fill the store if it is empty, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--ended", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="a part of the addresses that are measured")
    parser.add_argument("--server", type=int, help="the process of the database, whose time is counted, too")
    chosen = parser.parse_args()
    with closing(open_store(chosen.url)) as store:
        if not store.find(EVERYTHING, limit=1):
            fill(store, chosen.ended, chosen.waiting)
    server = psutil.Process(chosen.server) if chosen.server else None

    def processor() -> float:
        return time.process_time() + (sum(server.cpu_times()[:2]) if server else 0.0)

    for line in table(["page", "median ms", "p95 ms", "longest ms", "processor ms", "kB"], []):
        output.line(line)
    with Scheduler(chosen.url) as scheduler:
        client = ("127.0.0.1", 50_000)
        dashboard = app(scheduler, local=True)
        with TestClient(dashboard, base_url="http://127.0.0.1", client=client) as browser:
            for page in pages(scheduler):
                if chosen.only in page:
                    figures = _measured(browser, dashboard.state.dashboard, page, chosen.rounds, processor)
                    output.line(f"| {' | '.join([page, *figures])} |")


def _measured(browser: TestClient, dashboard: Dashboard, page: str, rounds: int, processor: Processor) -> list[str]:
    taken, used, size = [], [], 0
    for _ in range(rounds + 1):
        dashboard.overviews.forget()
        begin, busy = time.perf_counter(), processor()
        answer = browser.get(page)
        taken.append(1000 * (time.perf_counter() - begin))
        used.append(1000 * (processor() - busy))
        assert answer.status_code in (200, 503), (page, answer.status_code)
        size = len(answer.content)
        if len(taken) > 3 and sum(taken) > MOST:
            break
    ranked = sorted(taken[1:])
    return [
        *map(written, (statistics.median(ranked), ranked[int(0.95 * (len(ranked) - 1))], max(taken))),
        written(statistics.mean(used[1:])),
        f"{size / 1000:.0f}",
    ]


if __name__ == "__main__":
    main()
