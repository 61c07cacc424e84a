"""W2: how many empty jobs a second a node runs from a backlog, from the first start to the last end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from taskqueue.cli.bench import enqueue
from taskqueue.cli.bench.figures import Sample
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.node import MeasurementFailed, node
from taskqueue.cli.bench.scale import Scale
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import Status
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store import Store
from taskqueue.store.opening import open_store

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
                running.drain(store)
                seconds = took(store)
                _check(store, scale.jobs)
        yield Sample(name=f"drain with {workers} workers", unit="jobs/s", value=scale.jobs / seconds)


def took(store: Store) -> float:
    """Return the seconds from the first start to the last end of all jobs of the store."""
    [first] = store.find(EVERYTHING, order="ended_at", limit=1)
    [last] = store.find(EVERYTHING, order="-ended_at", limit=1)
    if first.started_at is None or last.ended_at is None:
        raise MeasurementFailed("a job has ended that was never started")
    return max((last.ended_at - first.started_at).total_seconds(), LEAST)


def _check(store: Store, jobs: int) -> None:
    """Count: what was not done was not drained."""
    done = store.tally().get(("default", Status.DONE), 0)
    if done != jobs:
        raise MeasurementFailed(f"{done} of {jobs} jobs are DONE")
