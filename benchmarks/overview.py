"""What the looks of ``taskqueue top`` cost in a store with a million jobs.

``python -m benchmarks.overview FILE [--jobs 1000000] [--rounds 20]`` fills a new SQLite file (it stays for the
next measurement), or takes one that it has filled, and prints a table in Markdown: milliseconds of each look.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from benchmarks.figures import written
from benchmarks.page import table
from benchmarks.store_costs import HOLDER, claimed, records, seconds
from taskqueue.cli import output
from taskqueue.cli.top import screens, targets
from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.lifecycle.outcomes import Done, Failed, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.query import parse
from taskqueue.model.record import Cause, Failure, Status
from taskqueue.store import Settlement, Store
from taskqueue.store.open import open_store

QUEUES = ("mail", "reports", "images", "imports", "default")
RUNNING = 100
ERROR = Failure(type="builtins.ConnectionError", message="no answer")


def fill(store: Store, jobs: int) -> None:
    """Add so many jobs: a third ended, each tenth of these failed; a third due later; a third waiting; some running."""
    fill_ended(store, jobs // 3)
    for batch in records(store, jobs // 3, timedelta(days=1)):
        store.add([replace(record, queue=random.choice(QUEUES), cause=Cause.RETRY) for record in batch])
    for batch in records(store, jobs // 3):
        store.add([replace(record, queue=random.choice(QUEUES)) for record in batch])
    claimed(store, RUNNING)


def fill_ended(store: Store, number: int) -> None:
    """Add so many jobs in some queues, and end them, one of ten with an error."""
    for batch in records(store, number):
        store.add([replace(record, queue=random.choice(QUEUES)) for record in batch])
        runs, now = claimed(store, len(batch)), store.now()
        run = Run(node=HOLDER.seat, started_at=now - timedelta(seconds=1))
        outcomes = [Failed(failure=ERROR) if number % 10 == 0 else Done() for number in range(len(runs))]
        settled = [ended(one, outcome, run, now) for one, outcome in zip(runs, outcomes, strict=True)]
        store.settle(
            [
                Settlement(claims=one.claims, holder=HOLDER, after=after)
                for one, after in zip(runs, settled, strict=True)
            ],
            now,
        )


def looks(store: Store) -> Mapping[str, Callable[[], object]]:
    """Return what the screens read."""
    reader = OverviewReader(store)
    lists = {
        "a queue": a_queue("mail"),
        "an empty queue": a_queue("nothing"),
        "failures of a class": a_class("app:Mail"),
    }
    waiting = store.find(parse({"status": int(Status.WAITING)}), order="-created_at", limit=1)
    running = store.find(parse({"status": int(Status.PROCESSING)}), limit=1)
    return {
        "the first overview": lambda: OverviewReader(store).read(),
        "each further one": reader.read,
        **{f"the jobs of {name}": partial(listed, store, thing) for name, thing in lists.items()},
        "the last waiting job": lambda: screens.everything(store, waiting[0].id),
        "a running job": lambda: screens.everything(store, running[0].id),
        "its log": lambda: screens.log(store, running[0].id),
    }


def a_queue(name: str) -> Need:
    """Return something that names a queue."""
    return Need(subject=Subject.QUEUE, name=name, says="", do="")


def a_class(name: str) -> Need:
    """Return something that names a class that fails."""
    return Need(subject=Subject.CLASS, name=name, says="", do="")


def listed(store: Store, thing: Need) -> object:
    """Read the list behind it."""
    found = targets.listed(thing, store.now())
    assert found is not None
    return screens.read_listing(store, found)


def main() -> None:
    """Fill the file if it is new, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    is_new = not chosen.file.exists()
    with closing(open_store(f"sqlite://{chosen.file.resolve()}")) as store:
        if is_new:
            fill(store, chosen.jobs)
        rows = []
        for name, look in looks(store).items():
            taken = [1000 * seconds(look) for _ in range(chosen.rounds)]
            rows.append([name, written(statistics.median(taken)), written(max(taken))])
    for line in table(["milliseconds", "median", "longest"], rows):
        output.line(line)


if __name__ == "__main__":
    main()
