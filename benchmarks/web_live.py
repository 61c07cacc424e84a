"""What ten open pages of the dashboard take from a drain, and what the dashboard reads and uses meanwhile.

``python -m benchmarks.web_live [--url URL] [--jobs 20000] [--rounds 3] [--pages 10]`` prints tables in Markdown;
without a URL with SQLite files in the current folder. Each round drains the same backlog without and with pages, in
turns. A page is what a browser makes of it: a stream of changes, and a request for the page after each. Then the pages
stay open on the idle store for some seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any
from urllib.parse import quote

import psutil

from benchmarks.node import node
from benchmarks.page import table
from benchmarks.workloads import add_in_bulk
from taskqueue import Scheduler
from taskqueue.cli.bench import ScratchStores, drained_within, scratch_stores
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.server import Server, listen

PAGES = (
    "/", "/jobs", "/queues", "/failures?since=1h", "/nodes", "/jobs?status=done", "/jobs?status=waiting",
    "/schedules", "/jobs?queue=default", "/failures?since=7d",
)  # fmt: skip
IDLE = 10.0
WORKERS = 2
BEGINS = 2.0
"""Seconds before the drain in which pages open."""


def serve(url: str) -> None:
    """Serve a dashboard until the input ends; answer each line of it with what was read and used until then."""
    calls: Counter[str] = Counter()
    with Scheduler(url) as scheduler, closing(listen("127.0.0.1", 0)) as listening:
        store = scheduler._connections.store
        for name in ("events", "find", "count", "tally", "waiting_since", "history", "present", "leases", "controls"):
            setattr(type(store), name, _counted(calls, name, getattr(type(store), name)))
        server = Server(app(scheduler, local=True))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        print(listening.getsockname()[1], flush=True)
        for _ in sys.stdin:
            me = psutil.Process()
            used = {"calls": calls, "processor": time.process_time(), "pss": me.memory_full_info().pss}
            print(json.dumps(used), flush=True)
        server.should_exit = True
        thread.join()


def _counted(calls: Counter[str], name: str, method: Any) -> Any:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return method(*arguments, **named)

    return call


class Dashboard:
    """A process that serves one, and another one with open pages."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "benchmarks.web_live", "--serve", url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self._line())
        self._browsers: subprocess.Popen[str] | None = None

    def open(self, pages: int) -> None:
        """Open so many pages."""
        command = [sys.executable, "-m", "benchmarks.web_live", "--browse", str(self.port), "--pages", str(pages)]
        self._browsers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def used(self) -> Mapping[str, Any]:
        """Return what was used until now."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: Mapping[str, Any] = json.loads(self._line())
        return found

    def close(self) -> Mapping[str, Any]:
        """End both, and return what the pages got."""
        got: Mapping[str, Any] = {}
        if self._browsers is not None:
            out, _ = self._browsers.communicate("\n")
            got = json.loads(out)
        self._process.communicate("")
        return got

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


def browse(port: int, pages: int) -> None:
    """Keep so many pages open until the input has a line; print how many answers they got and what that took."""
    answers: Counter[str] = Counter()
    for number in range(pages):
        threading.Thread(target=_page, args=(port, PAGES[number % len(PAGES)], answers), daemon=True).start()
    sys.stdin.readline()
    print(json.dumps({"answers": answers.total(), "processor": time.process_time()}), flush=True)
    os._exit(0)


def _page(port: int, page: str, answers: Counter[str]) -> None:
    live = socket.create_connection(("127.0.0.1", port))
    live.sendall(f"GET /live?of={quote(page)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    while said := live.recv(65536):
        if b"event: changed" not in said:
            continue
        with socket.create_connection(("127.0.0.1", port)) as asked:
            head = f"GET {page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nx-part: content\r\nConnection: close\r\n\r\n"
            asked.sendall(head.encode())
            said = asked.recv(65536)
            assert b" 200 " in said.splitlines()[0], said
            while asked.recv(65536):
                pass
        answers[page] += 1


@contextmanager
def dashboard(url: str) -> Iterator[Dashboard]:
    """Serve a dashboard while the block runs."""
    made = Dashboard(url)
    try:
        yield made
    finally:
        made.close()


def drained(stores: ScratchStores, jobs: int, pages: int) -> tuple[float, dict[str, float]]:
    """Return the jobs a second of a drain beside so many pages, and what these took."""
    with stores.fresh() as url:
        with Scheduler(url) as scheduler:
            add_in_bulk(scheduler, jobs)
        with dashboard(url) as web, closing(open_store(url)) as store:
            if pages:
                web.open(pages)
                time.sleep(BEGINS)
            before, began = web.used(), time.monotonic()
            with node(url, stores.folder, WORKERS) as running:
                running.drain(store)
                took = time.monotonic() - began
                after = web.used()
            rate = jobs / drained_within(store)
            found = _between(before, after, took)
            if pages:
                before, began = web.used(), time.monotonic()
                time.sleep(IDLE)
                idle = _between(before, web.used(), time.monotonic() - began)
                found |= {f"idle {name}": value for name, value in idle.items()}
    return rate, found


def _between(before: Mapping[str, Any], after: Mapping[str, Any], took: float) -> dict[str, float]:
    calls = {name: number - before["calls"].get(name, 0) for name, number in after["calls"].items()}
    return {
        "ms of processor a second": 1000 * (after["processor"] - before["processor"]) / took,
        "store calls a second": sum(calls.values()) / took,
        "PSS, MB": after["pss"] / 1e6,
        **{f"{name} a second": number / took for name, number in calls.items()},
    }


def main() -> None:
    """Measure, or serve or browse for a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="web.db")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--serve", metavar="URL")
    parser.add_argument("--browse", type=int, metavar="PORT")
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
    elif given.browse:
        browse(given.browse, given.pages)
    else:
        measure(given.url, given.jobs, given.rounds, given.pages)


def measure(url: str, jobs: int, rounds: int, pages: int) -> None:
    """Measure and print."""
    rates: dict[int, list[float]] = {0: [], pages: []}
    used: list[dict[str, float]] = []
    with scratch_stores(url) as stores:
        for _ in range(rounds):
            for number, found in rates.items():
                rate, took = drained(stores, jobs, number)
                found.append(rate)
                if number:
                    used.append(took)
    without, beside = rates.values()
    ratios = [one / other for one, other in zip(beside, without, strict=True)]
    rows = [
        ["without pages, jobs/s", f"{statistics.median(without):,.0f}"],
        [f"beside {pages} pages, jobs/s", f"{statistics.median(beside):,.0f}"],
        ["ratio, median of the rounds", f"{statistics.median(ratios):.3f}"],
        *([name, f"{statistics.median(one.get(name, 0) for one in used):.1f}"] for name in used[0]),
    ]
    sys.stdout.write("\n".join([*table(["drain", ""], rows), ""]))


if __name__ == "__main__":
    main()
