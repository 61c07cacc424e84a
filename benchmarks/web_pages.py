"""What each page of the dashboard costs, in a store with a million ended jobs and many that wait.

``python -m benchmarks.web_pages URL [--ended 1000000] [--waiting 100000] [--rounds 40] [--server PID]`` fills the store
if it is empty (it stays for the next measurement), and prints a table in Markdown: milliseconds of processor that each
page takes in this process and in that of a database, and its size. Then come the calls of the programs ``top`` and
``doctor``, and of the metrics of a node. No page finds the overview that another one has read a moment ago.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from starlette.testclient import TestClient

from benchmarks.figures import written
from benchmarks.large_store import CLASSES, QUEUES, SCHEDULE, TAGS, fill
from benchmarks.page import table
from taskqueue import Scheduler
from taskqueue.cli import output
from taskqueue.daemon.node import health
from taskqueue.daemon.runtime import child_process
from taskqueue.insight import diagnosis
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.query import EVERYTHING
from taskqueue.scheduler.workflows import recent
from taskqueue.store import Store
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.dashboard import Dashboard

MOST = 5_000.0
"""Milliseconds after which a slow page is not asked for again."""


IDLE_FOR = 5.0
"""Seconds for which an idle server is watched: what it takes for itself does not count."""

SLOW = 100.0
"""Milliseconds of processor that a page may take, in 95 of 100 cases."""


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
    yield from (f"/jobs?status={status}" for status in ("blocked", "scheduled", "retrying", "timeout", "canceled"))
    for order in ("created_at", "-ended_at", "rank"):
        yield from (f"/jobs?order={order}", f"/jobs?order={order}&status=waiting", f"/jobs?order={order}&{queue}")
    yield from (f"/jobs?{queue}", f"/jobs?{job_class}", f"/jobs?tag={TAGS[0]}", f"/jobs?{queue}&{job_class}")
    yield from (f"/jobs?q={quote(written)}" for written in (*FILTERS, *RARE))
    yield from (f"/jobs/matching?action=cancel&{queue}", f"/jobs/matching?action=again&status=failed&{job_class}")
    yield from ("/jobs/suggestions?q=class%3ACl", "/workflows")
    for workflow in recent(scheduler, 1):
        yield from (f"/workflows/{workflow.id}", f"/workflows?after={workflow.id}", f"/jobs?q=workflow%3A{workflow.id}")
    answers = (
        *("stats", "metrics", "queues", "nodes"),
        *("jobs?limit=500", "workflows", f"jobs/{job.id}/why"),
    )
    yield from (f"/api/v1/{answer}" for answer in answers)
    yield from (f"/api/v1/jobs/count?{selection}" for selection in ("status=FAILED", queue, f"status=WAITING&{queue}"))


FILTERS = (
    *("since:2d", "before:5d", "error:Quota", "status:failed error:Quota", "status:failed since:1h", "slow:2s"),
    "late:1m",
)
RARE = ("error:nothing", "tag:no-such-customer", "class:NoSuchClass", "node:no-such-node", "status:done tag:customer-7")
"""Filters that match few jobs, or none."""


def calls(store: Store) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the calls of other programs by their names."""
    reader = OverviewReader(store)

    def top() -> None:
        overview = reader.read()
        reader.day(overview)
        reader.upcoming(overview.at)

    yield "`top`", top
    yield "overview", lambda: OverviewReader(store).read()
    yield "`doctor`, without the check of the file", lambda: diagnosis.diagnose(store)
    yield "metrics of a node", lambda: health.read(store)


class Processor:
    """The time of processor of this process, and of a database."""

    def __init__(self, server: int | None) -> None:
        self._server = server
        self._idle = 0.0
        begun, at = self._of_server(), time.monotonic()
        time.sleep(0 if server is None else IDLE_FOR)
        self._idle = (self._of_server() - begun) / max(time.monotonic() - at, 1.0)
        """What the server takes in a second without calls."""

    def took(self, call: Callable[[], object]) -> float:
        """Return the milliseconds that a call takes in both."""
        begun, at, own = self._of_server(), time.monotonic(), time.process_time()
        call()
        own, passed = time.process_time() - own, time.monotonic() - at
        return 1000 * (own + max(0.0, self._of_server() - begun - self._idle * passed))

    def _of_server(self) -> float:
        """Return the seconds of the server, of all its threads and of the processes of its connections."""
        if self._server is None:
            return 0.0
        processes = [self._server, *child_process.children(self._server)]
        taken = 0
        for process in processes:
            for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with suppress(OSError):  # a thread that has ended
                    taken += int(file.read_text().split()[0])
        return taken / 1e9


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
    processor = Processor(chosen.server)
    with closing(open_store(chosen.url)) as store:
        if not store.find(EVERYTHING, limit=1):
            fill(store, chosen.ended, chosen.waiting)
    for line in table(["page", "first", "median", "p95", "kB"], []):
        output.line(line)
    with Scheduler(chosen.url) as scheduler:
        made = app(scheduler, local=True)
        with TestClient(made, base_url="http://127.0.0.1", client=("127.0.0.1", 50_000)) as browser:
            gc.freeze()  # as the command does
            for page in pages(scheduler):
                if chosen.only in page:
                    _show(page, _measured(browser, made.state.dashboard, page, chosen.rounds, processor))
    with closing(open_store(chosen.url)) as store:
        for name, call in calls(store):
            if chosen.only in name:
                _show(name, ([processor.took(call) for _ in range(chosen.rounds + 1)], 0))


Measured = tuple[list[float], int]
"""The milliseconds of each round, and the size of the answer."""


def _measured(browser: TestClient, dashboard: Dashboard, page: str, rounds: int, processor: Processor) -> Measured:
    taken, answers = [], []
    for _ in range(rounds + 1):
        dashboard.overviews.forget()
        taken.append(processor.took(lambda: answers.append(browser.get(page))))
        assert answers[-1].status_code in (200, 503), (page, answers[-1].status_code)
        if len(taken) > 3 and sum(taken) > MOST:
            break
    return taken, len(answers[-1].content)


def _show(name: str, measured: Measured) -> None:
    taken, size = measured
    ranked = sorted(taken[1:])
    p95 = ranked[math.ceil(0.95 * len(ranked)) - 1]
    figures = [*map(written, (taken[0], statistics.median(ranked), p95)), f"{size / 1000:.0f}"]
    output.line(f"| {' | '.join([name, *figures])} |{' !' if p95 > SLOW else ''}")


if __name__ == "__main__":
    main()
