"""Random graphs of dependent jobs on real nodes whose workers are killed: they end as a small model predicts.

``python -m tests.chaos.graphs [--graphs 500] [--kills 200]`` plays them all at once, on one store after the other.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from taskqueue.model.ids import JobId
from taskqueue.model.query import PENDING, parse
from taskqueue.model.record import Options, Record, Status
from taskqueue.model.serializer import encode
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.chaos.fleet import Fleet, Kind
from tests.servers import Cluster, prepared
from tests.store.random_graphs import Graph, expected

JOB = "tests.chaos.work:CrashOnce"
TIMEOUT = 0.3
NODES = ("a", "b")
NODE = ("--pm", "static", "--min-children", "4", "--grace", "0.5")
QUIET_FOR = 3.0
"""Seconds without the end of any job after which it is looked whether what is left never ends."""

STUCK_AFTER = 120.0
"""Seconds without the end of any job after which those that are left are taken for what never ends."""


class Play:
    """Many graphs on one store, and what befalls them."""

    def __init__(self, store: Store, fleet: Fleet, folder: Path, seed: int, graphs: int) -> None:
        self._store = store
        self._fleet = fleet
        self._folder = folder
        self._chance = random.Random(seed)
        self._graphs = [Graph.drawn(seed + number) for number in range(graphs)]
        self._asked = {id for graph in self._graphs for id in graph.wishes}
        self.kills = 0

    def run(self, kills: int) -> None:
        """Add everything, then cancel and kill at random moments until nothing ends any more."""
        for graph in self._graphs:
            self._store.add([self._destined(one, graph) for one in graph.records])
        wishes = self._chance.sample(sorted(self._asked), len(self._asked))
        jobs = sum(len(graph.records) for graph in self._graphs)
        left, moved_at = jobs, time.monotonic()
        while time.monotonic() - moved_at < STUCK_AFTER:
            self._fleet.tend()
            progress = 1 - left / jobs
            while wishes and len(self._asked) - len(wishes) <= progress * len(self._asked):
                self._store.cancel(wishes.pop(), "not needed", self._store.now())
            if self.kills <= progress * kills:
                self._kill()
            time.sleep(0.05)
            now_left = self._store.count(PENDING)
            if now_left != left:
                left, moved_at = now_left, time.monotonic()
            elif time.monotonic() - moved_at > QUIET_FOR and not self._waiting():
                return

    def surprises(self) -> list[str]:
        """Return which jobs ended otherwise than predicted; a job that somebody asked to be canceled may be."""
        ends = self._ends()
        canceled = {id for id in self._asked if ends[id] is Status.CANCELED}
        return [
            f"{id} is {ends[id].name} instead of {status.name}"
            for graph in self._graphs
            for id, status in expected(graph, canceled).items()
            if ends[id] is not status
        ]

    def __str__(self) -> str:
        jobs = sum(len(graph.records) for graph in self._graphs)
        lost = sum(sum(graph.losses.values()) for graph in self._graphs)
        return (
            f"{len(self._graphs)} graphs of {jobs} jobs, {len(self._asked)} asked to be canceled, "
            f"{lost} that kill their worker, {self.kills} workers killed besides"
        )

    def _destined(self, one: Record, graph: Graph) -> Record:
        """Return the job as one that ends as the graph says."""
        end = graph.outcomes[one.id]
        crash = str(self._folder / str(one.id)) if graph.losses[one.id] else None
        timeout = TIMEOUT if end is Status.TIMEOUT else None
        options = Options(crash_retries=1000, timeout=timeout, retry_on_timeout=False)
        return replace(one, job=JOB, data=encode({"end": end.name, "crash": crash}), options=options)

    def _kill(self) -> None:
        worker = self._fleet.one(Kind.WORKER, self._chance)
        if worker is not None:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
                self.kills += 1

    def _waiting(self) -> set[JobId]:
        """Return the jobs that have not come to where the model sees them."""
        ends = self._ends()
        canceled = {id for id in self._asked if ends[id] is Status.CANCELED}
        predicted = {id: end for graph in self._graphs for id, end in expected(graph, canceled).items()}
        return {id for id, end in ends.items() if not end.is_final and end is not predicted[id]}

    def _ends(self) -> dict[JobId, Status]:
        return {one.id: one.status for one in self._store.find(parse({}), limit=1_000_000)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Play on both stores and return whether something ended otherwise, or had to be repaired."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.graphs", description=__doc__)
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args(arguments)
    failed = False
    for kind, url, folder, stack in _stores():
        with stack, closing(open_store(url)) as store, closing(Fleet(url, folder, NODES, NODE)) as fleet:
            play = Play(store, fleet, folder, given.seed, given.graphs)
            began = time.monotonic()
            play.run(given.kills)
            took = time.monotonic() - began
            logs = fleet.logs()
            surprises, repairs = play.surprises(), store.repair(store.now()) + logs.count("had left unfinished")
            failed |= bool(surprises or repairs)
            print(f"{kind}: {play}: {len(surprises)} surprises, {repairs} repairs, {took:.0f} s, seed {given.seed}")
            print(*surprises, sep="\n", end="\n" if surprises else "", flush=True)
    return 1 if failed else 0


def _stores() -> Iterator[tuple[str, str, Path, ExitStack]]:
    for kind in ("sqlite", "mongodb"):
        stack = ExitStack()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graphs-", ignore_cleanup_errors=True)))
        if kind == "sqlite":
            yield kind, f"sqlite://{folder}/jobs.db", folder, stack
        else:
            yield kind, prepared(stack.enter_context(Cluster(folder / "set", size=1)).url, "graphs"), folder, stack


if __name__ == "__main__":
    sys.exit(main())
