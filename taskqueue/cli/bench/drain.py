"""W2: how many empty jobs a second a node runs from a backlog, from the first start to the last end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from taskqueue.cli.bench import enqueue, footprint
from taskqueue.cli.bench.figures import Sample
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.node import LOOK_EVERY, STUCK_AFTER, MeasurementFailed, Node, node
from taskqueue.cli.bench.scale import Scale
from taskqueue.model.query import EVERYTHING, PENDING
from taskqueue.model.record import Status
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store import Store
from taskqueue.store.open import open_store

WORKERS = (2, 4)

LEAST = 0.001
"""Seconds that are counted at least: stored times are whole milliseconds."""


def measure(ground: Ground, scale: Scale) -> Iterator[Sample]:
    """Drain the same backlog with few and with more workers."""
    for workers in WORKERS:
        with ground.fresh() as url:
            with Scheduler(url) as scheduler:
                enqueue.add(scheduler, scale.jobs)
            with closing(open_store(url)) as store, node(url, ground.folder, workers) as running:
                left, before = _begun(running, store, scale.jobs)
                running.drain(store)
                used = footprint.processor_time(running.pid) - before
                seconds = took(store)
                _check(store, scale.jobs)
        yield Sample(name=f"drain with {workers} workers", unit="jobs/s", value=scale.jobs / seconds)
        if left:
            yield Sample(name=f"processor for a job, {workers} workers", unit="µs", value=used / left * 1e6)


def took(store: Store) -> float:
    """Return the seconds from the first start to the last end of all jobs of the store."""
    [first] = store.find(EVERYTHING, order="ended_at", limit=1)
    [last] = store.find(EVERYTHING, order="-ended_at", limit=1)
    if first.started_at is None or last.ended_at is None:
        raise MeasurementFailed("a job has ended that was never started")
    return max((last.ended_at - first.started_at).total_seconds(), LEAST)


def _begun(running: Node, store: Store, jobs: int) -> tuple[int, float]:
    """Wait for the first jobs to end; return how many are left, and the processor time of the node until then."""
    ends_at = time.monotonic() + STUCK_AFTER
    while (left := store.count(PENDING)) == jobs:
        running.check(ends_at)
        time.sleep(LOOK_EVERY)
    return left, footprint.processor_time(running.pid)


def _check(store: Store, jobs: int) -> None:
    """Count: what was not done was not drained."""
    done = store.tally().get(("default", Status.DONE), 0)
    if done != jobs:
        raise MeasurementFailed(f"{done} of {jobs} jobs are DONE")
