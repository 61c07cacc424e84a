"""Leaders that all believe to lead fire the same schedules at once, some are killed over it: one job for each slot.

``python -m tests.chaos.leaders [--firings 1000] [--leaders 2] [--kills 20]`` prints the figures of both stores.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from taskqueue import Every, Scheduler
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.schedules import ScheduleRunner
from taskqueue.model.query import parse
from taskqueue.model.schedules.origin import FromSchedule
from taskqueue.store.open import open_store
from tests.acceptance.work import Echo
from tests.servers import Cluster, prepared
from tests.store.children import Child

SCHEDULES = 10


@dataclass(frozen=True, kw_only=True)
class Count:
    """What there is when nothing is due any more."""

    jobs: int
    slots: int
    """Slots of schedules that have a job."""
    fired: int
    missed: int
    killed: int
    """Leaders that were killed."""
    repaired: int
    """Firings that those had left half done, and that were completed."""

    @property
    def complaints(self) -> list[str]:
        """Return what is not as it should be."""
        equal = self.jobs == self.slots == self.fired
        return ([] if equal else [f"not one job for each slot: {self}"]) + (
            [f"{self.missed} slots were missed"] if self.missed else []
        )

    def __str__(self) -> str:
        made = f"{self.fired} firings, {self.jobs} jobs of {self.slots} slots"
        return f"{made}, {self.killed} leaders killed, {self.repaired} firings completed for them"


def contest(url: str, *, firings: int, leaders: int, kills: int, seed: int) -> Count:
    """Have so many leaders fire what is due so often, kill and replace some meanwhile, and count."""
    with Scheduler(url) as scheduler:
        for place in range(SCHEDULES):
            every = Every("0.02 s", "start")
            most = firings // SCHEDULES
            scheduler.schedule(f"s{place}", Echo, place, every=every, overlap="allow", max_runs=most, grace="1 day")
    chance = random.Random(seed)
    running = [Child(lambda: lead(url)) for _ in range(leaders)]
    killed = 0
    while killed < kills:
        time.sleep(chance.uniform(0.05, 0.3))
        victim = running.pop(chance.randrange(leaders))
        os.kill(victim.pid, signal.SIGKILL)
        if not os.WIFSIGNALED(victim.wait()):
            break  # nothing is due any more
        killed += 1
        running.append(Child(lambda: lead(url)))
    for child in running:
        child.wait()
    return _counted(url, killed)


def lead(url: str) -> None:
    """Fire until nothing is due, as a node that was forced to lead."""
    with closing(open_store(url)) as store:
        agenda = ScheduleRunner(store, CircuitBreaker(lambda: None))
        while agenda.fire_due() is not None:
            pass


def _counted(url: str, killed: int) -> Count:
    with closing(open_store(url)) as store:
        repaired = store.repair(store.now() + timedelta(minutes=1))  # as every node does from time to time
        plans = store.schedules()
        jobs = store.find(parse({}), limit=1_000_000)
    slots = {(one.origin.schedule, one.origin.slot) for one in jobs if isinstance(one.origin, FromSchedule)}
    fired, missed = sum(plan.fired for plan in plans), sum(plan.missed for plan in plans)
    return Count(jobs=len(jobs), slots=len(slots), fired=fired, missed=missed, killed=killed, repaired=repaired)


def main(arguments: Sequence[str] | None = None) -> int:
    """Have leaders contend for both stores, and return whether a slot had no job, or two."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.leaders", description=__doc__)
    parser.add_argument("--firings", type=int, default=1000)
    parser.add_argument("--leaders", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args(arguments)
    complaints = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leaders-", ignore_cleanup_errors=True)))
        cluster = stack.enter_context(Cluster(folder / "set", size=1))
        for url in (f"sqlite://{folder}/jobs.db", prepared(cluster.url, "leaders")):
            count = contest(url, firings=given.firings, leaders=given.leaders, kills=given.kills, seed=given.seed)
            print(f"{url.partition(':')[0]}: {count}, seed {given.seed}", flush=True)
            complaints += count.complaints
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
