"""W1: how many jobs a second one application adds, one by one and in bulk, while no node runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

from taskqueue.cli.bench.figures import Sample
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.jobs import Empty
from taskqueue.cli.bench.scale import Scale
from taskqueue.scheduler.scheduler import Scheduler

BATCH = 1000
"""Jobs that one call of ``add_jobs`` adds."""

WARM = 20


def measure(ground: Ground, scale: Scale) -> Iterator[Sample]:
    """Add jobs one by one, then in bulk."""
    with ground.fresh() as url, Scheduler(url) as scheduler:
        for _ in range(WARM):
            scheduler.add_job(Empty)
        began = time.perf_counter()
        for _ in range(scale.singles):
            scheduler.add_job(Empty)
        rate = scale.singles / (time.perf_counter() - began)
        yield Sample(name="enqueue one by one", unit="jobs/s", value=rate)
        began = time.perf_counter()
        add(scheduler, scale.bulk)
        yield Sample(name="enqueue in bulk", unit="jobs/s", value=scale.bulk / (time.perf_counter() - began))


def add(scheduler: Scheduler, count: int, **options: object) -> None:
    """Add so many empty jobs, some at a time."""
    for first in range(0, count, BATCH):
        scheduler.add_jobs([(Empty, None, options)] * min(BATCH, count - first))
