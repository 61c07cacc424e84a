"""W3: how long an idle system takes to start one job and to bring its result back, and a node to do its first one."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from taskqueue.cli.bench.figures import Sample, percentiles
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.jobs import Moment
from taskqueue.cli.bench.node import Node, node
from taskqueue.cli.bench.scale import Scale
from taskqueue.scheduler.scheduler import Scheduler

WORKERS = 2
WARM = 20
PAUSES = (0.005, 0.025)


@dataclass(frozen=True, kw_only=True)
class Trips:
    """What single jobs took, in seconds, from before ``add_job``."""

    to_start: list[float] = field(default_factory=list)
    to_result: list[float] = field(default_factory=list)


def measure(ground: Ground, scale: Scale) -> Iterator[Sample]:
    """Submit single jobs to a warm node and wait for each."""
    with ground.fresh() as url, Scheduler(url) as scheduler:
        began = time.monotonic()
        with node(url, ground.folder, WORKERS) as running:
            running.wait(scheduler.add_job(Moment))
            yield Sample(
                name="start of a node to its first job done", unit="ms", value=(time.monotonic() - began) * 1e3
            )
            warm(running, scheduler, scale)
            trips = travel(running, scheduler, scale.trips)
            rushed = travel(running, scheduler, scale.trips, pauses=(0.0, 0.0))
    yield from percentiles("add_job to start", trips.to_start)
    yield from percentiles("add_job to result", trips.to_result)
    yield from percentiles("one after the other, add_job to start", rushed.to_start)
    yield from percentiles("one after the other, add_job to result", rushed.to_result)


def warm(running: Node, scheduler: Scheduler, scale: Scale, queue: str = "default") -> None:
    """Have some jobs done, so that every connection is open and every worker has run one."""
    for process in [scheduler.add_job(Moment, queue=queue) for _ in range(WARM)]:
        running.wait(process)
    time.sleep(scale.rest)


def travel(
    running: Node,
    scheduler: Scheduler,
    count: int,
    queue: str = "default",
    pauses: tuple[float, float] = PAUSES,
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
