"""W6: how long after the SIGKILL of its worker a job runs again."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator

from taskqueue.cli.bench.beacons import beacons
from taskqueue.cli.bench.figures import Sample
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.jobs import Beacon
from taskqueue.cli.bench.node import node
from taskqueue.cli.bench.scale import Scale
from taskqueue.scheduler.scheduler import Scheduler

WORKERS = 2


def measure(ground: Ground, scale: Scale) -> Iterator[Sample]:
    """Kill one worker after the other, each while it runs a job."""
    taken = []
    with (
        ground.fresh() as url,
        beacons() as heard,
        Scheduler(url) as scheduler,
        node(url, ground.folder, WORKERS) as running,
    ):
        for _ in range(scale.deaths):
            process = scheduler.add_job(Beacon, heard.data)
            victim = heard.heed()
            killed_at = time.time()
            os.kill(victim.pid, signal.SIGKILL)
            taken.append(heard.heed().began_at - killed_at)
            running.wait(process)
    yield Sample(
        name="SIGKILL of a worker to its job running again, median", unit="ms", value=1e3 * statistics.median(taken)
    )
    yield Sample(name="SIGKILL of a worker to its job running again, longest", unit="ms", value=1e3 * max(taken))
