"""What each process takes of the processor for a job, and where one node, one file or one server ends on many cores.

``python -m benchmarks.saturation [--url URL] [--jobs 20000] [--json FILE]`` prints tables in Markdown; without
a URL in SQLite files in the current folder, ``--mongodb`` starts a server like that of the tests. The processes are
real and their processor time is measured; only ``bounds`` computes, with a model of three lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil

from benchmarks import environment
from benchmarks.capacity_jobs import SPIN, ShortNap, ShortSpin, Spin
from benchmarks.jobs import Empty
from benchmarks.node import family, node
from benchmarks.page import table
from benchmarks.store_costs import claimed, records, settled
from taskqueue import Job, Scheduler
from taskqueue.cli.bench import ScratchStores, drained_within, scratch_stores
from taskqueue.store import Store
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.url import parse
from taskqueue.store.open import open_store
from tests.nodes import eventually
from tests.servers import Cluster, with_database

Costs = Mapping[str, float]
"""Microseconds of processor for one job, by process; ``jobs/s`` besides."""

CASES: Mapping[str, tuple[type[Job], float, int]] = {
    "empty": (Empty, 0.0, 1),
    "computes 1 ms": (ShortSpin, SPIN / 10, 10),
    "computes 10 ms": (Spin, SPIN, 100),
}
"""The class of jobs, the seconds that each computes, and of how many jobs one is run."""

WORKERS = 2
TOGETHER = ((1, 2), (2, 1), (1, 4), (2, 2))
"""Nodes on one store, and the workers of each."""

MANY = (8, 32, 64)
"""Workers of one node whose jobs wait."""

CORES = (2, 8, 32, 64)
ALONE = 300
BATCH = 64


def measure(stores: ScratchStores, jobs: int) -> Mapping[str, Any]:
    """Return all figures."""
    return {
        "hardware": environment.hardware(),
        "costs": {
            **{title: in_a_drain(stores, job, own, jobs // of) for title, (job, own, of) in CASES.items()},
            "one by one": one_by_one(stores, min(jobs, ALONE)),
        },
        "together": {f"{nodes} × {workers}": together(stores, nodes, workers, jobs) for nodes, workers in TOGETHER},
        "many workers": {f"{n} workers": of_many_workers(stores, n, n * jobs // 500) for n in MANY},
        "store": by_the_store(stores, jobs),
        "server": {} if stores.file_store else by_the_server(stores, jobs),
    }


def in_a_drain(stores: ScratchStores, job: type[Job], own: float, jobs: int) -> Costs:
    """Return what a job costs among many that wait; workers without the seconds that the job itself computes."""
    with ExitStack() as opened:
        site = Site(opened, stores, nodes=1, workers=WORKERS)
        costs = site.drain(job, jobs)
    return {**costs, "worker": costs["worker"] - own * 1e6}


def one_by_one(stores: ScratchStores, jobs: int) -> Costs:
    """Return what a job costs whose caller waits for it before it adds the next."""
    with ExitStack() as opened:
        site = Site(opened, stores, nodes=1, workers=1)
        site.scheduler.add_job(Empty).wait(timeout=60)
        before, began, cpu = site.processor(), time.perf_counter(), time.process_time()
        for _ in range(jobs):
            site.scheduler.add_job(Empty).wait(timeout=60)
        took, application = time.perf_counter() - began, time.process_time() - cpu
        return {
            "application": application / jobs * 1e6,
            **_each(before, site.processor(), jobs),
            "jobs/s": jobs / took,
        }


def together(stores: ScratchStores, nodes: int, workers: int, jobs: int) -> Costs:
    """Return what empty jobs cost that several nodes of this host take from one store."""
    with ExitStack() as opened:
        return Site(opened, stores, nodes, workers).drain(Empty, jobs)


def of_many_workers(stores: ScratchStores, workers: int, jobs: int) -> Costs:
    """Return what jobs of ``SPIN`` seconds cost that only wait, so that few cores carry many workers."""
    with ExitStack() as opened:
        return Site(opened, stores, 1, workers).drain(ShortNap, jobs)


def by_the_store(stores: ScratchStores, jobs: int) -> Mapping[str, float]:
    """Return how many jobs a second one process adds, claims and settles with nothing else in the way."""
    with stores.fresh() as url, closing(open_store(url)) as store:
        began = time.perf_counter()
        for some in records(store, jobs):
            store.add(some)
        added = time.perf_counter()
        while runs := claimed(store, BATCH):
            settled(store, runs)
        ended = time.perf_counter()
        return {
            "adds/s, 1,000 at once": jobs / (added - began),
            f"claims and settles/s, {BATCH} at once": jobs / (ended - added),
        }


class Site:
    """Nodes at work on a fresh store, whose processor time can be asked."""

    def __init__(
        self, opened: ExitStack, stores: ScratchStores, nodes: int, workers: int, url: str | None = None
    ) -> None:
        url = url or opened.enter_context(stores.fresh())
        self.store: Store = opened.enter_context(closing(open_store(url)))
        self.scheduler = opened.enter_context(Scheduler(url))
        self.server = _server(url)
        self.nodes = [
            opened.enter_context(node(url, stores.folder, workers, "--name", f"bench-{number}"))
            for number in range(nodes)
        ]
        eventually(lambda: sum(lease.name.startswith("seat:") for lease in self.store.leases()) == nodes)
        self.scheduler.add_jobs([(job, None) for job in (Empty, ShortNap, ShortSpin, Spin)] * nodes * workers * 2)
        self.nodes[0].drain(self.store)  # each worker has loaded the classes
        self.scheduler.flush()

    def drain(self, job: type[Job], jobs: int) -> Costs:
        """Add so many, wait until all of them have ended, and return what each cost."""
        before, began = self.processor(), time.process_time()
        self.scheduler.add_jobs([(job, None)] * jobs)
        application = (time.process_time() - began) / jobs * 1e6
        self.nodes[0].drain(self.store)
        costs = _each(before, self.processor(), jobs)
        return {"application": application, **costs, "jobs/s": jobs / drained_within(self.store)}

    def processor(self) -> Mapping[str, float]:
        """Return the seconds that each kind of process has had of the processor until now."""
        found = {"node": 0.0, "manager": 0.0, "worker": 0.0}
        for each in self.nodes:
            main, manager, *workers = family(each.pid)
            found["node"] += _seconds(main)
            found["manager"] += _seconds(manager)
            found["worker"] += sum(map(_seconds, workers))
        if self.server is None:
            return found
        times = psutil.Process(self.server).cpu_times()  # its threads come and go
        return {**found, "server": times.user + times.system}


def _seconds(pid: int) -> float:
    """Return the processor time of all threads, by the scheduler's own count: nanoseconds."""
    return sum(int((t / "schedstat").read_text().split()[0]) for t in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def _each(before: Mapping[str, float], after: Mapping[str, float], jobs: int) -> dict[str, float]:
    return {role: (after[role] - before[role]) / jobs * 1e6 for role in after}


def _server(url: str) -> int | None:
    """Return the process of the server if it runs on this host."""
    if not url.startswith("mongodb"):
        return None
    pid = int(_status(url)["pid"])
    return pid if psutil.pid_exists(pid) else None


def _status(url: str) -> Mapping[str, Any]:
    with closing(Connection(parse(url))) as connection:
        client = connection.collections.jobs.database.client
        status: Mapping[str, Any] = client.admin.command("serverStatus")
        oplog = client.local.command("collStats", "oplog.rs")
        return {**status, "oplog": oplog["size"]}


def by_the_server(stores: ScratchStores, jobs: int) -> Mapping[str, Mapping[str, float]]:
    """Return what a server has written for a job, by how jobs come, and the connections of each process."""
    with ExitStack() as opened:
        url = opened.enter_context(stores.fresh())
        site = Site(opened, stores, 1, WORKERS, url)

        def one_by_one() -> None:
            for _ in range(ALONE):
                site.scheduler.add_job(Empty).wait(timeout=60)

        drained = _written(site, url, lambda: site.drain(Empty, jobs), jobs)
        alone = _written(site, url, one_by_one, ALONE)
        main, manager, *workers = family(site.nodes[0].pid)
        connections = {
            "application, waiting for jobs": _connections(os.getpid()),
            "node": _connections(main),
            "manager and workers": _connections(manager, *workers),
        }
        return {"drain": drained, "one by one": alone, "connections": connections}


def _connections(*pids: int) -> int:
    return sum(each.pid in pids and each.status == "ESTABLISHED" for each in psutil.net_connections("tcp"))


def _written(site: Site, url: str, call: Callable[[], object], jobs: int) -> Mapping[str, float]:
    before = _status(url)
    call()
    site.store.events(None)  # events follow behind the calls
    after = _status(url)
    commands = {
        name: (after["metrics"]["commands"][name]["total"] - before["metrics"]["commands"][name]["total"]) / jobs
        for name in ("insert", "update", "findAndModify", "delete", "find", "distinct", "aggregate", "getMore")
    }
    journal = "log bytes written"
    return {
        **commands,
        "bytes of the oplog": (after["oplog"] - before["oplog"]) / jobs,
        "bytes of the journal": (after["wiredTiger"]["log"][journal] - before["wiredTiger"]["log"][journal]) / jobs,
    }


def bounds(costs: Costs, cores: int) -> tuple[float, str, float]:
    """Return how many empty jobs a second one node can do at most, what bounds it, and when all cores are busy.

    Node and manager each use one core at most, workers as many as there are: the slowest decides. All cores are busy
    with jobs that compute at least so many microseconds; with shorter ones the node is the bound.
    """
    total = costs["node"] + costs["manager"] + costs["worker"]
    slowest = max(("node", "manager"), key=lambda role: costs[role])
    by_process, by_cores = 1e6 / costs[slowest], cores * 1e6 / total
    shortest = max(cores * costs[slowest] - total, 0.0)
    return min(by_process, by_cores), slowest if by_process < by_cores else "cores", shortest


def summary(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield tables in Markdown."""
    machine = found["hardware"]
    yield f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, load {machine['load']}"
    roles = list(found["costs"]["empty"])
    yield ""
    yield from table(("µs of processor for a job", *roles), _rows(found["costs"], roles))
    roles = list(next(iter(found["together"].values())))
    yield ""
    yield from table(("nodes × workers", *roles), _rows(found["together"], roles))
    yield ""
    yield from table((f"jobs that wait {SPIN * 1000:g} ms", *roles), _rows(found["many workers"], roles))
    yield ""
    rows = []
    for cores in CORES:
        most, bound, shortest = bounds(found["costs"]["empty"], cores)
        rows.append((f"{cores}", f"{most:,.0f}", bound, f"{shortest / 1000:.2g} ms"))
    yield from table(("cores", "empty jobs/s of one node at most", "bound", "all cores busy from"), rows)
    yield ""
    yield from table(("the store alone", ""), [(name, f"{rate:,.0f}") for name, rate in found["store"].items()])
    for title, figures in found["server"].items():
        yield ""
        yield from table((f"the server for a job: {title}", ""), [(name, f"{n:,.3g}") for name, n in figures.items()])


def _rows(found: Mapping[str, Costs], roles: Sequence[str]) -> Iterator[Sequence[str]]:
    for title, costs in found.items():
        yield (title, *(f"{costs.get(role, 0):,.0f}" for role in roles))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="saturation.db")
    parser.add_argument("--mongodb", action="store_true")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    with ExitStack() as opened:
        if given.mongodb:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            given.url = with_database(opened.enter_context(Cluster(folder, size=1)).url, "bench")
        found = measure(opened.enter_context(scratch_stores(given.url)), given.jobs)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2))
    sys.stdout.write("\n".join([*summary(found), ""]))


if __name__ == "__main__":
    main()
