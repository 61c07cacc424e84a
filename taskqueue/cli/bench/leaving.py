"""W7: how long a node takes to stop while long jobs run, which it interrupts and hands back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from taskqueue.cli.bench.beacons import beacons
from taskqueue.cli.bench.figures import Sample
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.jobs import Beacon
from taskqueue.cli.bench.node import MeasurementFailed, node
from taskqueue.cli.bench.scale import Scale
from taskqueue.model.record import Status
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store.open import open_store

JOBS = 4


def measure(ground: Ground, scale: Scale) -> Iterator[Sample]:
    """Stop a node that gives running jobs no time to end by themselves."""
    with ground.fresh() as url:
        with beacons() as heard, Scheduler(url) as scheduler, node(url, ground.folder, JOBS) as running:
            scheduler.add_jobs([(Beacon, heard.data)] * JOBS)
            for _ in range(JOBS):
                heard.heed()
            seconds = running.stop()
        with closing(open_store(url)) as store:
            waiting = store.tally().get(("default", Status.WAITING), 0)
    if waiting != JOBS:
        raise MeasurementFailed(f"{waiting} of {JOBS} interrupted jobs are WAITING again")
    yield Sample(name="stop with 4 long jobs, --finish 0", unit="ms", value=seconds * 1000)
