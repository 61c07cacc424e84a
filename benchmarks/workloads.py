"""The workloads W1 to W7, and rounds of them: all of one round before the next, so that a slow minute slows all."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from typing_extensions import Unpack

from benchmarks.environment import single_writes
from benchmarks.figures import DURABILITY, Figure, Sample, over_rounds, percentiles
from benchmarks.jobs import Blocking, Empty, Moment
from benchmarks.node import Node, node, start_signals
from benchmarks.scale import Scale
from taskqueue.cli.bench import LOOK_EVERY, STUCK_AFTER, MeasurementFailed, ScratchStores, drained_within
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.options.table import JobOptions
from taskqueue.model.query import PENDING
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.timestamps import whole
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store import ClaimRequest, Settlement, Store
from taskqueue.store.open import open_store

WORKERS = 2
"""Workers of the node, except where a workload compares numbers of them."""

DRAINING = (2, 4)
"""Workers that drain the same backlog, in turns."""

BATCH = 1000
"""Jobs that one call of ``add_jobs`` adds."""

AT_ONCE = 8
"""Jobs that one claim takes and one settle ends."""

LONG_JOBS = 4
"""Jobs that run, one in each worker, when their node is stopped."""

WARM = 20
"""Round trips before those that count."""

PAUSES = (0.005, 0.025)
"""The shortest and the longest pause before a round trip, in seconds."""

LEAST = 0.001
"""Seconds that are counted at least: stored times are whole milliseconds."""

_HOLDER = Holder(seat="bench", incarnation="claims")
_LEASE = timedelta(minutes=10)

Result = TypeVar("Result")
Tell = Callable[[int, int, str], None]
"""Takes the number of workloads done, the number of all, and the title of the present one."""


@dataclass(frozen=True, kw_only=True)
class Trips:
    """The seconds that single jobs took, from before ``add_job``."""

    to_start: list[float] = field(default_factory=list)
    to_result: list[float] = field(default_factory=list)


def run(stores: ScratchStores, names: Sequence[str], scale: Scale, repeat: int, tell: Tell) -> list[Figure]:
    """Return the figures of all rounds; the first ones are those of single writes."""
    found: list[tuple[str, Sample]] = []
    done, total = 0, repeat * len(names)
    for _ in range(repeat):
        found += [(DURABILITY, sample) for sample in single_writes(stores)]
        for name in names:
            tell(done, total, f"{name} {TITLES[name]}")
            found += [(name, sample) for sample in WORKLOADS[name](stores, scale)]
            done += 1
    return over_rounds(found)


def enqueue(stores: ScratchStores, scale: Scale) -> Iterator[Sample]:
    """W1: add jobs one by one, then in bulk, while no node runs."""
    with stores.fresh() as url, Scheduler(url) as scheduler:
        for _ in range(WARM):
            scheduler.add_job(Empty)
        seconds, _ = _seconds(lambda: [scheduler.add_job(Empty) for _ in range(scale.singles)])
        yield Sample(name="enqueue one by one", unit="jobs/s", value=scale.singles / seconds)
        bulk = 2 * scale.jobs
        seconds, _ = _seconds(lambda: add_in_bulk(scheduler, bulk))
        yield Sample(name="enqueue in bulk", unit="jobs/s", value=bulk / seconds)


def drain(stores: ScratchStores, scale: Scale) -> Iterator[Sample]:
    """W2: drain the same backlog with few and with more workers, from the first start to the last end."""
    for workers in DRAINING:
        with stores.fresh() as url:
            with Scheduler(url) as scheduler:
                add_in_bulk(scheduler, scale.jobs)
            with closing(open_store(url)) as store, node(url, stores.folder, workers) as running:
                left, before = _begun(running, store, scale.jobs)
                running.drain(store)
                used = running.processor_time() - before
                seconds = drained_within(store)
                done = store.tally().get(("default", Status.DONE), 0)
                if done != scale.jobs:
                    raise MeasurementFailed(f"{done} of {scale.jobs} jobs are DONE")
        yield Sample(name=f"drain with {workers} workers", unit="jobs/s", value=scale.jobs / seconds)
        if left:
            yield Sample(name=f"processor for a job, {workers} workers", unit="µs", value=used / left * 1e6)


def round_trip(stores: ScratchStores, scale: Scale) -> Iterator[Sample]:
    """W3: add single jobs to an idle node and wait for each; also the first job of a node."""
    with stores.fresh() as url, Scheduler(url) as scheduler:
        began = time.monotonic()
        with node(url, stores.folder, WORKERS) as running:
            running.wait(scheduler.add_job(Moment))
            first = (time.monotonic() - began) * 1e3
            yield Sample(name="start of a node to its first job done", unit="ms", value=first)
            warm(running, scheduler, scale)
            trips = travel(running, scheduler, scale.trips)
            rushed = travel(running, scheduler, scale.trips, pauses=(0.0, 0.0))
    yield from percentiles("add_job to start", trips.to_start)
    yield from percentiles("add_job to result", trips.to_result)
    yield from percentiles("one after the other, add_job to start", rushed.to_start)
    yield from percentiles("one after the other, add_job to result", rushed.to_result)


def lateness(stores: ScratchStores, scale: Scale) -> Iterator[Sample]:
    """W4: add jobs due at random times and compare each time with that of the start."""
    with stores.fresh() as url, Scheduler(url) as scheduler, node(url, stores.folder, WORKERS) as running:
        warm(running, scheduler, scale)
        dues = _dues(scale)
        processes = scheduler.add_jobs([(Moment, None, {"at": due}) for due in dues])
        began = [float(running.wait(process).result) for process in processes]
    late = [started - due.timestamp() for started, due in zip(began, dues, strict=True)]
    yield from percentiles("start after the due time", late)
    yield Sample(name="started early", unit="jobs", value=sum(seconds < 0 for seconds in late))


def backlog(stores: ScratchStores, scale: Scale) -> Iterator[Sample]:
    """W5: measure an idle node, then the same calls on an empty store and behind a backlog."""
    yield from _idle(stores, scale)
    with stores.fresh() as url, Scheduler(url) as scheduler, closing(open_store(url)) as store:
        yield from _calls("empty", scheduler, store, scale)
        yield from _trips("empty", url, stores, scheduler, scale)
        add_in_bulk(scheduler, scale.backlog)
        add_in_bulk(scheduler, scale.backlog, at=store.now() + timedelta(days=1))
        yield from _calls("backlog", scheduler, store, scale)
        yield from _trips("backlog", url, stores, scheduler, scale)


def killed_workers(stores: ScratchStores, scale: Scale) -> Iterator[Sample]:
    """W6: kill one worker after the other, each while it runs a job, until that job runs again."""
    taken = []
    with (
        stores.fresh() as url,
        start_signals() as starts,
        Scheduler(url) as scheduler,
        node(url, stores.folder, WORKERS) as running,
    ):
        for _ in range(scale.deaths):
            process = scheduler.add_job(Blocking, starts.data)
            first = starts.receive()
            killed_at = time.time()
            os.kill(first.pid, signal.SIGKILL)
            taken.append((starts.receive().at - killed_at) * 1000)
            running.wait(process)
    name = "SIGKILL of a worker to its job running again"
    yield Sample(name=f"{name}, median", unit="ms", value=statistics.median(taken))
    yield Sample(name=f"{name}, longest", unit="ms", value=max(taken))


def stop(stores: ScratchStores, scale: Scale) -> Iterator[Sample]:
    """W7: stop a node that gives running jobs no time to end by themselves; it interrupts and hands them back."""
    with stores.fresh() as url:
        with start_signals() as starts, Scheduler(url) as scheduler, node(url, stores.folder, LONG_JOBS) as running:
            scheduler.add_jobs([(Blocking, starts.data)] * LONG_JOBS)
            for _ in range(LONG_JOBS):
                starts.receive()
            seconds = running.stop()
        with closing(open_store(url)) as store:
            waiting = store.tally().get(("default", Status.WAITING), 0)
    if waiting != LONG_JOBS:
        raise MeasurementFailed(f"{waiting} of {LONG_JOBS} interrupted jobs are WAITING again")
    yield Sample(name=f"stop with {LONG_JOBS} long jobs, --finish 0", unit="ms", value=seconds * 1000)


WORKLOADS: Mapping[str, Callable[[ScratchStores, Scale], Iterable[Sample]]] = {
    "W1": enqueue,
    "W2": drain,
    "W3": round_trip,
    "W4": lateness,
    "W5": backlog,
    "W6": killed_workers,
    "W7": stop,
}

TITLES: Mapping[str, str] = {
    "W1": "adding jobs",
    "W2": "draining a backlog",
    "W3": "single jobs on an idle system",
    "W4": "jobs due at a time",
    "W5": "a backlog, and an idle node",
    "W6": "killed workers",
    "W7": "stopping",
}


def add_in_bulk(scheduler: Scheduler, count: int, **options: Unpack[JobOptions]) -> None:
    """Add so many empty jobs, a batch at a time."""
    for first in range(0, count, BATCH):
        scheduler.add_jobs([(Empty, None, options)] * min(BATCH, count - first))


def warm(running: Node, scheduler: Scheduler, scale: Scale, queue: str = "default") -> None:
    """Have some jobs done, so that every connection is open and every worker has run one."""
    for process in [scheduler.add_job(Moment, queue=queue) for _ in range(WARM)]:
        running.wait(process)
    time.sleep(scale.rest)


def travel(
    running: Node, scheduler: Scheduler, count: int, queue: str = "default", pauses: tuple[float, float] = PAUSES
) -> Trips:
    """Add a job and wait for it, again and again with pauses between the two bounds, in seconds."""
    trips = Trips()
    chance = random.Random(count)
    for _ in range(count):
        time.sleep(chance.uniform(*pauses))
        added_at, began = time.time(), time.perf_counter()
        process = running.wait(scheduler.add_job(Moment, queue=queue))
        trips.to_result.append(time.perf_counter() - began)
        trips.to_start.append(process.result - added_at)
    return trips


def _begun(running: Node, store: Store, jobs: int) -> tuple[int, float]:
    """Wait for the first jobs to end; return how many are left, and the processor time of the node until then."""
    ends_at = time.monotonic() + STUCK_AFTER
    while (left := store.count(PENDING)) == jobs:
        running.check(ends_at)
        time.sleep(LOOK_EVERY)
    return left, running.processor_time()


def _dues(scale: Scale) -> list[datetime]:
    """Return random times in whole milliseconds, as they are stored; all jobs are added before the first of them."""
    first = datetime.now(timezone.utc) + timedelta(seconds=scale.rest)
    chance = random.Random(scale.trips)
    return [whole(first + timedelta(seconds=chance.uniform(0, scale.due_within))) for _ in range(scale.trips)]


def _idle(stores: ScratchStores, scale: Scale) -> Iterator[Sample]:
    """Watch a node, its manager and one worker that has run a job."""
    with stores.fresh() as url, Scheduler(url) as scheduler, node(url, stores.folder, 1) as running:
        running.wait(scheduler.add_job(Empty))
        time.sleep(scale.rest)
        before = running.processor_time()
        time.sleep(scale.idle_for)
        used = running.processor_time() - before
        yield Sample(name="memory of an idle node (PSS)", unit="MiB", value=running.memory() / 1024**2)
        yield Sample(name="processor of an idle node", unit="% of a core", value=100 * used / scale.idle_for)


def _calls(where: str, scheduler: Scheduler, store: Store, scale: Scale) -> Iterator[Sample]:
    """Time adds of one job, and claims and settles of some."""
    adds = [_seconds(lambda: scheduler.add_job(Empty))[0] for _ in range(scale.trips)]
    claims, settles = [], []
    for _ in range(max(scale.trips // AT_ONCE, 1)):
        seconds, records = _seconds(lambda: _claim(store))
        claims.append(seconds)
        settlements = [_done(record, store) for record in records]
        settles.append(_seconds(lambda: store.settle(settlements, store.now()))[0])  # noqa: B023 - called at once
    calls = {"add_job": adds, f"claim of {AT_ONCE}": claims, f"settle of {AT_ONCE}": settles}
    for name, taken in calls.items():
        yield Sample(name=f"{name}, {where}", unit="ms", value=statistics.median(taken) * 1000)


def _trips(where: str, url: str, stores: ScratchStores, scheduler: Scheduler, scale: Scale) -> Iterator[Sample]:
    """Send jobs through a node that works on another queue than that of the backlog."""
    with node(url, stores.folder, WORKERS, "--work-on", "quick") as running:
        warm(running, scheduler, scale, "quick")
        trips = travel(running, scheduler, scale.trips, "quick")
    yield from percentiles(f"add_job to start, {where}", trips.to_start, (50,))
    yield from percentiles(f"add_job to result, {where}", trips.to_result, (50,))


def _claim(store: Store) -> list[Record]:
    now = store.now()
    return list(store.claim(_HOLDER, ClaimRequest(pooled=AT_ONCE), now, now + _LEASE).records)


def _done(record: Record, store: Store) -> Settlement:
    now = store.now()
    after = ended(record, Done(), Run(node=_HOLDER.seat, started_at=now), now)
    return Settlement(claims=record.claims, holder=_HOLDER, after=after)


def _seconds(call: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result
