"""How much memory a worker has for itself while it shares 100 MB of preloaded objects with its manager.

``python -m benchmarks.worker_memory [--megabytes 100] [--rounds 3] [--json FILE]`` prints a table in Markdown:
the unique set size (USS), which is what ends with the process. Run it in the checkout, from where the node preloads
``benchmarks.ballast``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks import environment
from benchmarks.environment import at_level
from benchmarks.jobs import Empty
from benchmarks.node import Node, family, node
from benchmarks.page import table
from taskqueue import Job, Scheduler
from taskqueue.cli.bench import ScratchStores, scratch_stores
from tests.nodes import eventually

BALLAST = "benchmarks.ballast"
WORKERS = (1, 4)
MANY = 200
MEGABYTE = 1_000_000

Moments = dict[str, float]
"""Megabytes at each moment of a worker's life, the largest of the workers."""


def measure(stores: ScratchStores, megabytes: int, rounds: int) -> Mapping[str, Any]:
    """Return the megabytes of each round, for one worker and for several."""
    os.environ["BALLAST"] = str(megabytes * MEGABYTE)
    taken: dict[int, list[Moments]] = {workers: [] for workers in WORKERS}
    for _ in range(rounds):
        for workers, found in taken.items():
            found.append(_life(stores, workers))
    return {
        "hardware": environment.hardware(),
        "preloaded_mb": megabytes,
        "uss_mb": {
            str(workers): {moment: [round(one[moment], 2) for one in found] for moment in found[0]}
            for workers, found in taken.items()
        },
    }


def _life(stores: ScratchStores, workers: int) -> Moments:
    """Return what the workers of a node have for themselves from their fork on."""
    told = stores.folder / f"collected-{secrets.token_hex(4)}"
    os.environ["BALLAST_TOLD"] = str(told)
    moments = Moments()
    with (
        stores.fresh() as url,
        Scheduler(url) as scheduler,
        node(url, stores.folder, workers, "--preload", BALLAST) as up,
    ):
        pool = eventually(lambda: _idle(up, workers))
        moments["after the fork"] = _most(pool)
        _run(up, scheduler, [Empty] * workers)
        moments["after its first job"] = _most(pool)
        _run(up, scheduler, [Empty] * MANY)
        moments[f"after {MANY} jobs among all"] = _most(pool)
        _run(up, scheduler, [f"{BALLAST}:Collect"] * 4 * workers)
        moments["after it collected garbage"] = _most(pool)
        manager = psutil.Process(pool[0].ppid())
        manager.send_signal(signal.SIGUSR1)
        eventually(told.exists)
        moments["after its manager collected garbage"] = _most(pool)
        pool[0].kill()
        [new] = eventually(lambda: [each for each in _idle(up, workers) if each not in pool])
        moments["the next worker, after the fork"] = _most([new])
        _run(up, scheduler, [f"{BALLAST}:Read"])
        moments["one that has read all that was preloaded"] = _most(eventually(lambda: _idle(up, workers)))
    return moments


def _run(up: Node, scheduler: Scheduler, jobs: Sequence[type[Job] | str]) -> None:
    """Wait until all are done."""
    for process in scheduler.add_jobs([(job, None) for job in jobs]):
        up.wait(process)


def _idle(up: Node, workers: int) -> list[psutil.Process]:
    """Return the workers if all are there and wait for jobs, else nothing."""
    with suppress(OSError, psutil.NoSuchProcess):  # one has just gone
        pool = [psutil.Process(pid) for pid in family(up.pid)[2:]]  # behind the node and its manager
        if len(pool) == workers and all(each.cmdline()[:1] == ["taskqueue: worker idle"] for each in pool):
            return pool
    return []


def _most(pool: Sequence[psutil.Process]) -> float:
    return max(float(each.memory_full_info().uss) for each in pool) / MEGABYTE


def summary(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table in Markdown: medians of the rounds."""
    by_workers = found["uss_mb"]
    heads = [
        "megabytes of its own",
        *(f"{workers} workers" if workers != "1" else "1 worker" for workers in by_workers),
    ]
    moments = next(iter(by_workers.values()))
    yield from table(
        heads,
        [(moment, *(f"{statistics.median(found[moment]):.1f}" for found in by_workers.values())) for moment in moments],
    )


def main() -> None:
    """Measure, print, and write the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with scratch_stores(at_level("memory.db", "normal")) as stores:
        found = measure(stores, given.megabytes, given.rounds)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    sys.stdout.write("\n".join([*summary(found), ""]))


if __name__ == "__main__":
    main()
