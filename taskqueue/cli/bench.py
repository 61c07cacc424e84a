"""``taskqueue bench``: measure adds, a drain and single jobs, on an empty store beside the given one."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

import click

from taskqueue.cli import output, terminal
from taskqueue.errors import StoreUnavailable, TaskqueueError, WaitTimeout
from taskqueue.insight.control_socket import VARIABLE
from taskqueue.model.job import Job
from taskqueue.model.query import EVERYTHING, PENDING, And, Query, parse
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store import Store
from taskqueue.store.open import MONGODB_SCHEMES, SERVER_SCHEMES, address_of, open_store
from taskqueue.store.sqlite.url import SqliteUrl, location

BATCH = 1000
"""How many jobs one call of ``add_jobs`` adds."""
WORKERS = 2
WARM_UP = 20
"""How many round trips are made before the measured ones."""
STUCK_AFTER = 120.0
"""Seconds without progress after which a measurement is abandoned."""
LEAVES_WITHIN = 30.0
"""Seconds after which a node that was asked to leave is killed."""
LOOK_EVERY = 0.05
"""Seconds between two checks of a drain: more frequent checks would slow it down."""
COUNT_EVERY = 5.0
"""Seconds between two counts of the remaining jobs."""
LEAST = 0.001
"""The shortest time of a drain in seconds: stored times are whole milliseconds."""

_OTHERS = ("TASKQUEUE_", "NOTIFY_SOCKET", "WATCHDOG_", "STATE_DIRECTORY")
"""Prefixes of environment variables that would change the settings of the node."""


class Empty(Job):
    """Does nothing."""

    def start(self) -> None:
        """Return at once."""


class MeasurementFailed(TaskqueueError):
    """The node exited, or there was no more progress."""


class Figure(NamedTuple):
    """One measured number."""

    name: str
    value: float
    unit: str


class Node:
    """A real node as a child of the measurement, started as operators start it."""

    def __init__(self, url: str, folder: Path, workers: int, options: tuple[str, ...]) -> None:
        self._log = folder / f"node-{secrets.token_hex(4)}.log"
        command = [sys.executable, "-m", "taskqueue.cli.node", "--name", "bench", "--log-level", "warning"]
        command += ["--pm", "static", "--min-children", str(workers), "--finish", "0", *options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=node_environment(url),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the measurement, which then stops the node
            )

    @property
    def pid(self) -> int:
        """The process id of the node itself."""
        return self._process.pid

    def wait(self, process: Process) -> Process:
        """Wait until the job has ended as DONE, and return it. Raises ``MeasurementFailed``."""
        ends_at = time.monotonic() + STUCK_AFTER
        while True:
            try:
                process.wait(timeout=1.0)
                break
            except WaitTimeout:
                self.check(ends_at, process)
        if not process.is_done:
            raise MeasurementFailed(f"job {process.id} ended as {process.status.name}: {process.why()}")
        return process

    def drain(self, store: Store) -> None:
        """Wait until no job is pending. Raises ``MeasurementFailed``."""
        before, ends_at = -1, 0.0
        while pending := store.count(PENDING):
            if pending != before:
                before, ends_at = pending, time.monotonic() + STUCK_AFTER
            self._await_newest(store, ends_at)

    def check(self, ends_at: float, process: Process | None = None) -> None:
        """Raise ``MeasurementFailed`` if the node has exited, or after the monotonic time, saying why the job waits."""
        code = self._process.poll()
        if code is not None:
            raise MeasurementFailed(f"the node exited with code {code}: {self._last_words()}")
        if time.monotonic() > ends_at:
            why = "" if process is None else process.why()
            raise MeasurementFailed(f"no progress for {STUCK_AFTER:g} s: {self._last_words()} {why}".rstrip())

    def stop(self) -> float:
        """Stop it with SIGTERM, and return how many seconds it took to leave."""
        began = time.monotonic()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(LEAVES_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its manager and workers do not outlive it
            self._process.wait()
        return time.monotonic() - began

    def _await_newest(self, store: Store, ends_at: float) -> None:
        """Wait until the newest pending job (one of the last) has ended, or the next count is due."""
        counts_at = time.monotonic() + COUNT_EVERY
        watched: Query = PENDING
        while (newest := store.find(watched, order="-id", limit=1)) and time.monotonic() < counts_at:
            self.check(ends_at)
            watched = And((PENDING, parse({"id": str(newest[0].id)})))
            time.sleep(LOOK_EVERY)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return " ".join(lines[-3:]) or "its log is empty"


@click.command("bench")
@click.option(
    "--jobs", type=click.IntRange(min=10), default=10_000, show_default=True, metavar="N",
    help="Drain N jobs; the other numbers scale with it.",
)  # fmt: skip
@output.json_option("one JSON object")
@click.pass_context
def bench_command(ctx: click.Context, jobs: int, as_json: bool) -> None:
    """Measure how fast this machine adds and runs jobs.

    Empty stores are created next to the store that --url names, on the same disk or in the same database, and removed
    afterwards; the jobs of that store are not touched. It takes less than a minute.
    """
    with terminated_as_interrupted(), scratch_stores(ctx.find_root().obj) as stores:
        with stores.fresh() as url, closing(open_store(url)) as store:
            guarantee = store.guarantee
        figures = [*measure_adds(stores, jobs), *measure_drain(stores, jobs), *measure_single_jobs(stores, jobs)]
    if as_json:
        rounded = [{**figure._asdict(), "value": round(figure.value, 6)} for figure in figures]
        output.write({"guarantee": guarantee, "jobs": jobs, "figures": rounded})
        return
    terminal.facts([("guarantee", guarantee), ("jobs", f"{jobs:,}")])
    columns = [
        terminal.Column(head="figure", cut="end"),
        terminal.Column(head="value", side="right"),
        terminal.Column(head="unit"),
    ]
    terminal.table(columns, [[figure.name, f"{figure.value:,.4g}", figure.unit] for figure in figures])


def measure_adds(stores: ScratchStores, jobs: int) -> Iterator[Figure]:
    """Add jobs one by one and in bulk while no node runs."""
    with stores.fresh() as url, Scheduler(url) as scheduler:
        singles = max(jobs // 5, 10)
        began = time.perf_counter()
        for _ in range(singles):
            scheduler.add_job(Empty)
        yield Figure("add jobs one by one", singles / (time.perf_counter() - began), "jobs/s")
        began = time.perf_counter()
        add_in_bulk(scheduler, jobs)
        yield Figure("add jobs in bulk", jobs / (time.perf_counter() - began), "jobs/s")


def measure_drain(stores: ScratchStores, jobs: int) -> Iterator[Figure]:
    """Drain a backlog, from the first start to the last end."""
    with stores.fresh() as url:
        with Scheduler(url) as scheduler:
            add_in_bulk(scheduler, jobs)
        with closing(open_store(url)) as store, node(url, stores.folder, WORKERS) as running:
            running.drain(store)
            yield Figure(f"drain with {WORKERS} workers", jobs / drained_within(store), "jobs/s")


def measure_single_jobs(stores: ScratchStores, jobs: int) -> Iterator[Figure]:
    """Add single jobs to an idle node and wait for each."""
    with stores.fresh() as url, Scheduler(url) as scheduler, node(url, stores.folder, WORKERS) as running:
        trips = []
        for _ in range(WARM_UP + max(jobs // 50, 10)):
            began = time.perf_counter()
            running.wait(scheduler.add_job(Empty))
            trips.append((time.perf_counter() - began) * 1000)
    shares = statistics.quantiles(trips[WARM_UP:], n=100, method="inclusive")
    yield Figure("add_job to result, p50", shares[49], "ms")
    yield Figure("add_job to result, p99", shares[98], "ms")


@contextmanager
def node(url: str, folder: Path, workers: int, *options: str) -> Iterator[Node]:
    """Start a node, and stop it at the end of the block."""
    started = Node(url, folder, workers, options)
    try:
        yield started
    finally:
        started.stop()


def node_environment(url: str) -> dict[str, str]:
    """Return the environment of a node on this store: this process's own, without any settings of nodes.

    The address is not an argument, because it may hold a password.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS) or name == VARIABLE}
    return {**own, "TASKQUEUE_URL": url}


def add_in_bulk(scheduler: Scheduler, count: int) -> None:
    """Add ``count`` empty jobs, a batch at a time."""
    for first in range(0, count, BATCH):
        scheduler.add_jobs([(Empty, None)] * min(BATCH, count - first))


def drained_within(store: Store) -> float:
    """Return the seconds from the first start to the last end of all jobs of the store."""
    [first] = store.find(EVERYTHING, order="ended_at", limit=1)
    [last] = store.find(EVERYTHING, order="-ended_at", limit=1)
    if first.ended_at is None or last.ended_at is None:
        raise MeasurementFailed(f"job {first.id} has not ended, but is {first.status.name}")
    if first.started_at is None:
        raise MeasurementFailed(f"job {first.id} ended without having started")
    return max((last.ended_at - first.started_at).total_seconds(), LEAST)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM do what Ctrl-C does: nodes are stopped and files removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_PREFIX = "taskqueue-bench-"


class ScratchStores:
    """Creates empty stores of one kind; a measurement writes only to ``folder`` and to these stores."""

    def __init__(self, folder: Path, beside: SqliteUrl | str) -> None:
        self.folder = folder
        self._beside = beside

    @property
    def file_store(self) -> SqliteUrl | None:
        """The address of the SQLite store beside which files are created; None for a server."""
        return self._beside if isinstance(self._beside, SqliteUrl) else None

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the address of an empty store, and remove it afterwards."""
        if isinstance(self._beside, SqliteUrl):
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            try:
                yield f"sqlite://{quote(str(folder / 'jobs.db'))}?synchronous={self._beside.synchronous}"
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
        name = f"bench_{secrets.token_hex(4)}"
        if self._beside.startswith(MONGODB_SCHEMES):
            from taskqueue.store.mongodb import remove

            url = _with_option(self._beside, "taskqueue.prefix", f"{name}_")
        else:
            from taskqueue.store.postgresql import remove

            url = _with_option(self._beside, "taskqueue.schema", name)
        try:
            yield url
        finally:
            remove(url)


@contextmanager
def scratch_stores(url: str | None) -> Iterator[ScratchStores]:
    """Yield a maker of stores beside the one that ``url`` names: on the same disk, or in the same database.

    Raises ``ConfigError`` and ``StoreUnavailable``.
    """
    address = address_of(url)
    if address.startswith(SERVER_SCHEMES):
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
            yield ScratchStores(Path(folder), address)
        return
    beside = location(address)
    parent = beside.path.parent
    try:
        if url is None:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent)
    except OSError as error:
        raise StoreUnavailable(
            str(parent), f"no folder can be created there ({error.strerror})", "name a file elsewhere with --url"
        ) from None
    with scratch as folder:
        yield ScratchStores(Path(folder), beside)


def _with_option(url: str, name: str, value: str) -> str:
    parts = urlsplit(url)
    others = [option for option in parts.query.split("&") if option and not option.startswith(f"{name}=")]
    return urlunsplit(parts._replace(path=parts.path or "/", query="&".join([*others, f"{name}={value}"])))
