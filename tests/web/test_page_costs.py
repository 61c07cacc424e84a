"""What a page costs the store does not grow with the jobs it keeps: the same with a thousand and with ten thousand."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from starlette.testclient import TestClient

from benchmarks.large_store import fill
from benchmarks.web_pages import pages
from taskqueue import Scheduler
from taskqueue.store.open import open_store
from taskqueue.web import app
from tests.servers import PATIENCE, emptied

SIZES = {"few": (1_000, 200), "many": (10_000, 800)}
"""How many jobs have ended, and how many are pending."""

MORE = {"sqlite": 40_000, "mongodb": 6_000}
"""What a page may cost more among many: less than a look at all of them."""

GROWING = (
    *("/jobs/matching?action=again", "/classes/", "/queues/", "/api/v1/jobs/count?queue="),
    *("/jobs?tag=", "/jobs?queue=mail&job=", "/jobs?status=done&job=", "/jobs?status=ended&job=", "/jobs?q="),
    "/jobs?job=",  # MongoDB chooses one of two indexes by a trial
)
"""A filter, and the question before an action on jobs of one class, look at up to 5,000 jobs.

The page of a class or queue passes 2,500 ended jobs, twice (``insight.work_reader.WALKED``), in a store that has them.
"""

Costs = Mapping[str, int]


@contextmanager
def steps(scheduler: Scheduler, url: str) -> Iterator[Callable[[], int]]:
    """Count the steps of SQLite's virtual machine, by hundreds."""
    raw = scheduler._connections.store._engine._raw  # type: ignore[attr-defined]
    taken = 0

    def step() -> None:
        nonlocal taken
        taken += 100

    raw.set_progress_handler(step, 100)
    yield lambda: taken
    raw.set_progress_handler(None, 0)


@contextmanager
def examined(scheduler: Scheduler, url: str) -> Iterator[Callable[[], int]]:
    """Count the keys and documents that the server looks at, by its profile."""
    with MongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        database.command("profile", 2)

        total, last = 0, datetime.fromtimestamp(0, timezone.utc)

        def seen() -> int:  # of those since the last look: the profile has room for few
            nonlocal total, last
            since = {"ns": f"{database.name}.taskqueue_jobs", "ts": {"$gt": last}}
            for one in database["system.profile"].find(since).sort("ts"):
                total, last = total + one.get("keysExamined", 0) + one.get("docsExamined", 0), one["ts"]
            return total

        yield seen
        database.command("profile", 0)
        database["system.profile"].drop()


COUNT = {"sqlite": steps, "mongodb": examined}


def costs(kind: str, url: str, ended: int, pending: int) -> Costs:
    """Return what each page costs a store with so many jobs, once what is kept is known."""
    with closing(open_store(url)) as store:
        fill(store, ended, pending)
    found = {}
    with Scheduler(url) as scheduler:
        made = app(scheduler, local=True)
        with TestClient(made, base_url="http://127.0.0.1", client=("127.0.0.1", 5000)) as browser:
            shown = [page for page in pages(scheduler) if not page.startswith(GROWING)]
            for page in shown:
                assert browser.get(page).status_code == 200, page
            with COUNT[kind](scheduler, url) as cost:
                for page in shown:
                    made.state.dashboard.overviews.forget()
                    before = cost()
                    assert browser.get(page).status_code == 200
                    found[_name(page)] = cost() - before
    return found


def _name(page: str) -> str:
    """Return the address without the ids of jobs."""
    return re.sub("[0-9a-f]{24}", "ID", page)


@pytest.mark.parametrize("kind", ["sqlite", "mongodb"])
def test_no_page_costs_more_among_ten_times_as_many_jobs(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    def url(size: str) -> str:
        if kind == "sqlite":
            return f"sqlite://{tmp_path}/{size}.db?synchronous=normal"
        emptied_one = emptied(request.getfixturevalue("mongo_set"), f"web_{size}_{os.getpid()}")
        return f"{emptied_one}&timeoutMS={PATIENCE * 1000:.0f}"

    few, many = (costs(kind, url(size), *numbers) for size, numbers in SIZES.items())

    assert few.keys() == many.keys()
    grown = {page: (few[page], cost) for page, cost in many.items() if cost > 2 * few[page] + MORE[kind]}
    assert grown == {}, "the page walks all jobs: bound its query, or find an index that has them in order"
