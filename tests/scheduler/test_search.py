"""A search for what few jobs have looks at a bounded number of jobs at a time, and at all of them in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.model.lifecycle.outcomes import GivenUp
from taskqueue.model.record import Status
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.search import search
from taskqueue.store.open import open_store
from tests.store.records import BROKEN, NOON, a_record, finished

JOBS, AT_ONCE = 25, 10
WITH_TAG = (3, 4, 24)
"""The numbers of the jobs that are looked for, in the order in which they were added."""


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    """Open a store with jobs of every second, some with a tag; an ended one has failed at the same time."""
    url = f"sqlite://{tmp_path}/jobs.db?synchronous=normal"
    with closing(open_store(url)) as store:
        for number in range(JOBS):
            at = NOON + timedelta(seconds=number)
            tags = ("rare",) if number in WITH_TAG else ()
            record = replace(a_record(tags=tags), created_at=at, ready_at=at).at_rank()
            finished(store, record, GivenUp(failure=BROKEN), at)
    with Scheduler(url) as opened:
        yield opened


@pytest.mark.parametrize(
    ("order", "pages"),
    [
        ("-created_at", [[24], [4, 3], []]),
        ("created_at", [[3, 4], [], [24]]),
        ("-ended_at", [[24], [4, 3], []]),
    ],
)
def test_each_page_looks_at_a_bounded_number_of_jobs(scheduler: Scheduler, order: str, pages: list[list[int]]) -> None:
    query: dict[str, Any] = {"tags": "rare"}
    numbers: list[list[int]] = []
    after: Process | None = None
    while True:
        found = search(scheduler, query, order, 50, after, looks_at=AT_ONCE)
        numbers.append([round((job.created_at - NOON).total_seconds()) for job in found.processes])
        after = found.last
        if after is None:
            break

    assert numbers == pages


def test_a_page_that_is_full_ends_at_its_last_job(scheduler: Scheduler) -> None:
    found = search(scheduler, {"tags": "rare"}, "created_at", 2, looks_at=AT_ONCE)

    assert (len(found.processes), found.last) == (2, None)


def test_few_jobs_are_all_looked_at(scheduler: Scheduler) -> None:
    for number in range(3):
        scheduler.add_job("shop:Mail", {"to": number}, tags=["rare"])

    query = {"tags": "rare", "status": "WAITING"}
    found = search(scheduler, query, "-created_at", 50, statuses=[Status.WAITING], looks_at=AT_ONCE)

    assert (len(found.processes), found.last) == (3, None)
