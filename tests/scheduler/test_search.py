"""A search for what few jobs have looks at a bounded number of jobs at a time, and at all of them in the end."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.model.lifecycle.outcomes import GivenUp
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import Status
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.search import preview, search
from taskqueue.store import Store
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


def add_failed(store: Store, number: int, at: datetime, tags: tuple[str, ...]) -> None:
    """Add jobs that were added, and have failed, at this time."""
    for _ in range(number):
        finished(store, replace(a_record(tags=tags), created_at=at, ready_at=at).at_rank(), GivenUp(failure=BROKEN), at)


@pytest.mark.parametrize("url", ["sqlite", "postgresql", "mongodb"], indirect=True)
@pytest.mark.parametrize("order", ["-created_at", "created_at", "-ended_at"])
def test_more_jobs_of_one_time_than_a_page_looks_at_are_passed(blocking: Scheduler, store: Store, order: str) -> None:
    for seconds, tags in ((0, ("rare",)), (1, ()), (2, ("rare",))):
        add_failed(store, 1 if tags else 3 * AT_ONCE, NOON + timedelta(seconds=seconds), tags)
    found: list[Process] = []
    after: Process | None = None

    for _ in range(6):
        page = search(blocking, {"tags": "rare"}, order, 50, after, looks_at=AT_ONCE)
        found += page.processes
        after = page.last
        if after is None:
            break

    assert (len(found), after) == (2, None)


@pytest.mark.parametrize("url", ["sqlite", "postgresql", "mongodb"], indirect=True)
@pytest.mark.parametrize("field", ["created_at", "ended_at"])
def test_a_search_until_a_time_does_not_count_later_jobs(blocking: Scheduler, store: Store, field: str) -> None:
    add_failed(store, 1, NOON, ("rare",))
    for seconds in range(2 * AT_ONCE):
        add_failed(store, 1, NOON + timedelta(seconds=1 + seconds), ())

    query = {"tags": "rare", field: {"$lte": NOON}}
    found = search(blocking, query, f"-{field}", 50, looks_at=AT_ONCE, until=NOON)

    assert (len(found.processes), found.last) == (1, None)


@pytest.mark.parametrize("order", ["-created_at", "created_at", "-ended_at"])
@pytest.mark.parametrize("removed", [1, AT_ONCE + 1])
def test_a_search_is_not_complete_because_jobs_were_removed_in_between(url: str, order: str, removed: int) -> None:
    class Removing(Scheduler):
        """Removes the last jobs that were looked at once they have been read."""

        def find_jobs(self, *args: Any, **options: Any) -> list[Process]:
            found = super().find_jobs(*args, **options)
            if numbers:
                ids = [record.id for record in store.find(EVERYTHING, order=order)]
                leaving = ids[AT_ONCE + 1 - numbers.pop() : AT_ONCE + 1]
                with closing(sqlite3.connect(url.removeprefix("sqlite://").partition("?")[0])) as database, database:
                    for id in leaving:
                        database.execute("DELETE FROM jobs WHERE id = ?", (str(id),))
            return found

    numbers: list[int] = []
    with closing(open_store(url)) as store, Removing(url) as scheduler:
        for number in range(JOBS):
            add_failed(store, 1, NOON + timedelta(seconds=number), ("rare",) if number in (0, JOBS - 1) else ())
        numbers.append(removed)
        found, after = set(), None
        while True:
            page = search(scheduler, {"tags": "rare"}, order, 50, after, looks_at=AT_ONCE)
            found |= {job.created_at for job in page.processes}
            after = page.last
            if after is None:
                break

        assert {job.created_at for job in scheduler.find_jobs({"tags": "rare"})} <= found


@pytest.mark.parametrize(
    ("query", "looks_at", "number", "is_complete"),
    [
        ({"tags": "rare", "status": "FAILED"}, AT_ONCE, 1, False),
        ({"tags": "rare", "status": "FAILED"}, None, 3, True),
        ({"tags": "rare"}, AT_ONCE, 1, False),
        ({"tags": "rare"}, JOBS, 3, True),
        ({"queue": "default", "status": "FAILED"}, AT_ONCE, JOBS, True),
    ],
)
def test_a_preview_looks_at_the_last_jobs_unless_an_index_has_them(
    scheduler: Scheduler, query: dict[str, Any], looks_at: int | None, number: int, is_complete: bool
) -> None:
    matching = preview(scheduler, query, 2, looks_at)

    assert (matching.number, matching.since is None, len(matching.sample)) == (number, is_complete, min(number, 2))
