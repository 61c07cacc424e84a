"""A storm: jobs run while what runs them is killed at random, and afterwards the books must balance.

``python -m tests.chaos.storm --jobs 1000 --kills 100`` prints the figures of one node on the embedded store.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from bson import ObjectId

from taskqueue import JobOptions, Process, Scheduler
from taskqueue.errors import StoreUnavailable
from taskqueue.store.open import open_store
from tests.chaos.async_application import AsyncApplication
from tests.chaos.books import Books
from tests.chaos.fleet import Fleet, Kind
from tests.chaos.observation import Observation
from tests.chaos.work import AsyncSlowJob, SlowJob
from tests.nodes import eventually

BATCH = 10
STUCK_AFTER = 120.0
"""Seconds without the end of any job after which a storm is given up."""

Strike = Callable[[], str | None]
"""Hits something and returns what, or None if there is nothing to be hit at the moment."""


@dataclass(frozen=True, kw_only=True)
class StormSettings:
    """The size of a storm; with the same seed it hits in the same order."""

    jobs: int
    kills: int
    seed: int
    seconds: float = 0.05
    """The most a job takes."""
    nodes: Sequence[str] = ("alone",)
    options: Sequence[str] = ("--pm", "static", "--min-children", "4", "--grace", "0.5", "--lease", "20")
    wrapper: Sequence[str] = ()
    """The command that starts the command of each node."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a storm went."""

    complaints: Sequence[str]
    figures: str


class Storm:
    """One storm over one store; jobs are added by a blocking scheduler, or by an application in asyncio.

    With an observation, the nodes are asked all the while, and write JSON logs.
    """

    def __init__(
        self,
        settings: StormSettings,
        url: str,
        folder: Path,
        application: AsyncApplication | None = None,
        observation: Observation | None = None,
        output: int | None = None,
    ) -> None:
        self._settings = settings
        self._chance = random.Random(settings.seed)
        self._folder = folder
        self._scheduler = Scheduler(url)
        self._application = application
        self._books = Books(store=open_store(url), file=folder / "runs")
        self._observation = observation
        self._fleet = Fleet(url, folder, settings.nodes, settings.options, observation, output, settings.wrapper)
        self._hits: Counter[str] = Counter()
        self._next: Strike | None = None
        self.strikes: list[Strike] = [self._kill(kind) for kind in Kind]
        """What may happen, each as likely as the others; more may be added before the storm begins."""
        self.meanwhile: list[Callable[[], None]] = [self._fleet.tend]
        """What is looked after all the time."""
        self.afterwards: list[Callable[[], None]] = []
        """What is done when it is over, before the nodes are asked to leave."""

    def run(self) -> Report:
        """Let it rage until every job has ended, and report."""
        self._books.read_events()
        began_at = time.monotonic()
        self._rage()
        seconds = time.monotonic() - began_at
        for calm in self.afterwards:
            calm()
        if self._application is not None:
            self._application.hear()
        if self._observation is not None:
            self._observation.settle(self._fleet.tend)
            for process in self._fleet.processes():
                self._observation.look_at_memory(process)
        self._fleet.leave()
        left = [f"{process} is left over" for process in self._fleet.leftovers()]
        kept = self._kept()
        if self._application is not None:
            left += self._application.complaints(kept)
        if self._observation is not None:
            left += self._observation.complaints(len(self._books.ended))
        complaints = [*self._books.complaints(kept), *left]
        figures = self._figures(seconds)
        return Report(complaints=complaints, figures=f"{figures}\n{self._fleet.logs()}" if complaints else figures)

    def one(self, kind: Kind) -> psutil.Process | None:
        """Return a process of this kind to be hit, if there is one."""
        return self._fleet.one(kind, self._chance)

    def close(self) -> None:
        """End all that was started."""
        if self._observation is not None:
            self._observation.close()
        self._fleet.close()
        self._books.store.close()
        self._scheduler.close()

    def _rage(self) -> None:
        settings = self._settings
        ended, moved_at = 0, time.monotonic()
        while ended < settings.jobs:
            for look_after in self.meanwhile:
                look_after()
            now_ended = self._books.read_events()
            if now_ended > ended:
                ended, moved_at = now_ended, time.monotonic()
            elif time.monotonic() - moved_at > STUCK_AFTER:
                return
            self._add(ended)
            if ended * settings.kills >= self._hits.total() * settings.jobs and self._hits.total() < settings.kills:
                self._strike()
            time.sleep(0.005)

    def _strike(self) -> None:
        """Hit what is next, at a random moment; what is not there yet will be hit when it is."""
        if self._next is None:
            self._next = self._chance.choice(self.strikes)
            time.sleep(self._chance.uniform(0, self._settings.seconds))
        hit = self._next()
        if hit is not None:
            self._hits[hit] += 1
            self._next = None

    def _add(self, ended: int) -> None:
        """Keep a few dozen jobs pending, as long as the hits keep up; every tenth may run once at most."""
        added, settings = len(self._books.added), self._settings
        todo = min(settings.jobs - added, BATCH)
        due = (added - 3 * BATCH) * settings.kills / settings.jobs
        if todo <= 0 or added - ended > 3 * BATCH or self._hits.total() < due:
            return
        ids = [ObjectId() for _ in range(todo)]
        classes = (SlowJob, AsyncSlowJob)
        options: list[JobOptions] = [{"id": id, "crash_retries": 1000} for id in ids]
        once = ids[0]
        options[0]["on_crash"] = "fail"
        jobs = [(classes[n % 2], self._data(), each) for n, each in enumerate(options)]
        while True:  # the same ids mean the same jobs, however often they are added
            with suppress(StoreUnavailable):
                (self._application or self._scheduler).add_jobs(jobs)
                break
            for look_after in self.meanwhile:
                look_after()
        self._books.added += ids
        self._books.at_most_once.add(once)

    def _data(self) -> dict[str, object]:
        return {"file": str(self._books.file), "seconds": self._chance.uniform(0, self._settings.seconds)}

    def _kill(self, kind: Kind) -> Strike:
        def strike() -> str | None:
            process = self.one(kind)
            if process is None:
                return None
            with suppress(psutil.NoSuchProcess):
                process.kill()
            return f"{kind.value} killed"

        return strike

    def _kept(self) -> list[Process]:
        def read() -> list[list[Process]]:
            with suppress(StoreUnavailable):
                return [list(self._scheduler.get_jobs({}))]
            return []

        [kept] = eventually(read)
        return kept

    def _figures(self, seconds: float) -> str:
        kept = self._kept()
        runs = len(self._books.keys())
        statuses = Counter(process.status.name for process in kept)
        hits = ", ".join(f"{number} {name}" for name, number in sorted(self._hits.items()))
        return "\n".join(
            [
                f"{len(self._books.added)} jobs in {seconds:.1f} s, seed {self._settings.seed}",
                f"hits      {self._hits.total()}: {hits}",
                f"nodes     {self._fleet.starts} starts, exit codes {dict(self._fleet.exits)}",
                f"statuses  {dict(statuses)}, {len(self._books.at_most_once)} jobs at most once",
                f"runs      {runs}, that is {runs - len(self._books.added)} more than jobs",
                f"outcomes  {sum(map(len, self._books.ended.values()))} final events",
                *([] if self._application is None else [self._application.figures]),
                *([] if self._observation is None else [self._observation.figures]),
            ]
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Let a storm rage and print its figures; return 1 if the books do not balance."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.storm", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args(arguments)
    settings = StormSettings(jobs=given.jobs, kills=given.kills, seed=given.seed)
    with tempfile.TemporaryDirectory(prefix="storm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with closing(Storm(settings, f"sqlite://{folder}/jobs.db", folder)) as storm:
            report = storm.run()
    return tell(report)


def tell(report: Report) -> int:
    """Print a report and return 1 if the books do not balance."""
    print(report.figures)
    for complaint in report.complaints:
        print(complaint)
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
