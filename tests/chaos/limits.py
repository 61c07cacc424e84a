"""Limits and rates under load on three nodes, measured by the jobs themselves; the suite does the same with fewer jobs.

``python -m tests.chaos.limits [--store sqlite] [--jobs 5000] [--starts 350]`` prints the figures, of both stores unless
one is named; MongoDB is a server like that of the tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from taskqueue import JobOptions, Limit, Rate, Scheduler
from taskqueue.cli.bench import scratch_stores
from taskqueue.model.limits import Declared
from taskqueue.model.query import PENDING
from taskqueue.store.open import open_store
from tests.acceptance.work import Crowd
from tests.nodes import node
from tests.servers import Cluster, prepared

STORES = ("sqlite", "mongodb")
NODES = ("a", "b", "c")
WORKERS = 8
AT_ONCE = 5
A_MINUTE = 60.0
BATCH = 500
PATIENCE = 1800.0
"""Seconds in which all jobs must have ended."""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One line of a job, in the order in which they were written: a moment of this host's clock, and who came or went.

    A job writes after it has begun and before it ends: more than the lines show have never been there at once.
    """

    at: float
    change: int
    key: str


class Place:
    """An empty store with nodes on it, and the file into which its jobs write."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.file = folder / "visits"
        self.file.touch()

    @contextmanager
    def nodes(self, names: Iterable[str] = NODES, workers: int = WORKERS) -> Iterator[None]:
        """Have nodes for as long as the block lasts."""
        with ExitStack() as running:
            for name in names:
                pool = ("--pm", "static", "--min-children", str(workers))
                running.enter_context(node(self.url, self.folder, "--name", name, *pool)).heed("works")
            yield

    def add(self, keys: Sequence[str], limit: Declared, seconds: float) -> None:
        """Add a job for each key."""
        data: Mapping[str, Any] = {"file": str(self.file), "seconds": seconds}
        options: JobOptions = {"limits": limit}
        jobs = [(Crowd, {**data, "key": key}, options) for key in keys]
        with Scheduler(self.url) as scheduler:
            for first in range(0, len(jobs), BATCH):
                scheduler.add_jobs(jobs[first : first + BATCH])

    def drained(self) -> float:
        """Wait until nothing is pending, and return how many seconds that took."""
        began = time.monotonic()
        with closing(open_store(self.url)) as store:
            while left := store.count(PENDING):
                if time.monotonic() - began > PATIENCE:
                    raise AssertionError(f"{left} jobs are still pending after {PATIENCE:g} s")
                time.sleep(0.1)
        return time.monotonic() - began

    def visits(self) -> list[Visit]:
        """Return what the jobs have written."""
        lines = (line.split() for line in self.file.read_text().splitlines())
        return [Visit(at=float(at), change=int(change), key=key) for at, change, key in lines]


def most_at_once(visits: Iterable[Visit]) -> Counter[str]:
    """Return for each key how many were there at once at most."""
    there: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for visit in visits:
        there[visit.key] += visit.change
        most[visit.key] = max(most[visit.key], there[visit.key])
    return most


def narrowest(visits: Iterable[Visit], count: int) -> float:
    """Return the seconds from a start to the one so many starts later, where they were closest; infinity if none is."""
    starts = sorted(visit.at for visit in visits if visit.change > 0)
    return min((later - sooner for sooner, later in zip(starts, starts[count:], strict=False)), default=float("inf"))


def never_six(place: Place, jobs: int) -> list[str]:
    """Run so many jobs under a limit of five."""
    with place.nodes():
        place.add(["all"] * jobs, Limit(AT_ONCE), 0)
        took = place.drained()
    visits = place.visits()
    starts, most = sum(visit.change > 0 for visit in visits), most_at_once(visits)["all"]
    print(f"  limit {AT_ONCE}: {starts} of {jobs} jobs in {took:.0f} s, {jobs / took:.0f}/s, {most} at once at most")
    wrong = [f"{most} at once"] if most > AT_ONCE else []
    return wrong + ([f"{starts} starts of {jobs} jobs"] if starts != jobs else [])


def never_faster(place: Place, starts: int, rate: Rate) -> list[str]:
    """Run so many jobs under a rate."""
    with place.nodes():
        place.add(["all"] * starts, rate, 0)
        took = place.drained()
    least = narrowest(place.visits(), rate.count)
    print(f"  rate {rate}: {starts} jobs in {took:.0f} s, {rate.count + 1} starts in {least:.3f} s at the closest")
    return [f"{rate.count + 1} starts within {least:.3f} s"] if least < float(rate.per) else []


def nobody_starves(place: Place, noise: int, quiet: int) -> list[str]:
    """Run a backlog of one key, add a job of another key now and then, and look how long each of those takes."""
    limit = Limit(AT_ONCE, by="key")
    added: dict[str, float] = {}
    with place.nodes():
        place.add(["noisy"] * noise, limit, 0.02)
        for number in range(quiet):
            key = f"quiet-{number}"
            added[key] = time.monotonic()
            place.add([key], limit, 0)
            began = time.monotonic()
            while f"+1 {key}\n" not in place.file.read_text():
                if time.monotonic() - began > PATIENCE:
                    return [f"{key} never began"]
                time.sleep(0.005)
        there = Counter(visit.key for visit in place.visits() if visit.change > 0)["noisy"]
        place.drained()
    began_at = {visit.key: visit.at for visit in place.visits() if visit.change > 0}
    waits = sorted(began_at[key] - at for key, at in added.items())
    middle, longest = waits[len(waits) // 2], waits[-1]
    print(
        f"  {quiet} quiet keys beside {noise} jobs of a noisy one ({there} of them run by the last): "
        f"began after {middle * 1000:.0f} ms in the middle, {longest * 1000:.0f} ms at the most"
    )
    most = most_at_once(place.visits())["noisy"]
    wrong = [f"{most} of the noisy key at once"] if most > AT_ONCE else []
    return wrong + ([f"a quiet key waited {longest:.1f} s"] if there < noise and longest > A_MINUTE else [])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything and return whether a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.limits", description=__doc__)
    parser.add_argument("--store", choices=STORES, help="go through this one alone")
    parser.add_argument("--jobs", type=int, default=5000, help="jobs under the limit")
    parser.add_argument("--starts", type=int, default=350, help="jobs under the rate of 100 a minute")
    parser.add_argument("--noise", type=int, default=2000, help="jobs of the noisy key")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="limits-", ignore_cleanup_errors=True)))
        kinds = [given.store] if given.store else STORES
        wrong = list(chain.from_iterable(_measured(_url(kind, stack, folder), folder, given) for kind in kinds))
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def _url(kind: str, stack: ExitStack, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite://{folder}/jobs.db"
    return prepared(stack.enter_context(Cluster(folder / "set", size=1)).url, "limits")


def _measured(url: str, folder: Path, given: argparse.Namespace) -> Iterator[str]:
    print(url.partition(":")[0])
    with scratch_stores(url) as made:
        for number, part in enumerate((_limit, _rate, _noise)):
            place = Path(tempfile.mkdtemp(dir=folder, prefix=f"{number}-"))
            with made.fresh() as fresh:
                yield from part(Place(fresh, place), given)


def _limit(place: Place, given: argparse.Namespace) -> list[str]:
    return never_six(place, given.jobs) if given.jobs else []


def _rate(place: Place, given: argparse.Namespace) -> list[str]:
    return never_faster(place, given.starts, Rate(100, per=A_MINUTE)) if given.starts else []


def _noise(place: Place, given: argparse.Namespace) -> list[str]:
    return nobody_starves(place, given.noise, 20) if given.noise else []


if __name__ == "__main__":
    sys.exit(main())
