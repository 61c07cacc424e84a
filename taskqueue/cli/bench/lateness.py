"""W4: how long after its time a job begins that is due at a time of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from taskqueue.cli.bench import round_trip
from taskqueue.cli.bench.figures import Sample, percentiles
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.jobs import Moment
from taskqueue.cli.bench.node import node
from taskqueue.cli.bench.scale import Scale
from taskqueue.model.timestamps import whole
from taskqueue.scheduler.scheduler import Scheduler

WORKERS = 2


def measure(ground: Ground, scale: Scale) -> Iterator[Sample]:
    """Add jobs due at random times and ask each when it began."""
    with ground.fresh() as url, Scheduler(url) as scheduler, node(url, ground.folder, WORKERS) as running:
        round_trip.warm(running, scheduler, scale)
        dues = _dues(scale)
        processes = scheduler.add_jobs([(Moment, None, {"at": due}) for due in dues])
        began = [float(running.wait(process).result) for process in processes]
    late = [started - due.timestamp() for started, due in zip(began, dues, strict=True)]
    yield from percentiles("start after the due time", late)
    yield Sample(name="started early", unit="jobs", value=sum(seconds < 0 for seconds in late))


def _dues(scale: Scale) -> list[datetime]:
    """Return random times in whole milliseconds, as they are stored; all jobs are added before the first of them."""
    first = datetime.now(timezone.utc) + timedelta(seconds=scale.rest)
    chance = random.Random(scale.trips)
    return [whole(first + timedelta(seconds=chance.uniform(0, scale.due_within))) for _ in range(scale.trips)]
