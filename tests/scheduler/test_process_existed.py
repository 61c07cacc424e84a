"""A handle says whether the call added the job or found it, on both stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bson import ObjectId

from taskqueue import Scheduler
from tests.scheduler.jobs import Echo
from tests.servers import PATIENCE, with_database


@pytest.fixture(params=["sqlite", "mongodb"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scheduler]:
    """Return a scheduler on an empty store."""
    if request.param == "sqlite":
        url = f"sqlite://{tmp_path}/jobs.db"
    else:
        made = with_database(request.getfixturevalue("mongo_set"), f"existed_{ObjectId()}")
        url = f"{made}&timeoutMS={PATIENCE * 1000:.0f}"
    with Scheduler(url) as scheduler:
        yield scheduler


def test_the_holder_of_a_unique_key_says_that_it_was_there(scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo, 1, unique="k")
    second = scheduler.add_job(Echo, 2, unique="k")

    assert (first.existed, second.existed) == (False, True)
    assert second == first
    assert not scheduler.add_job(Echo, 3).existed


def test_a_job_with_the_same_id_says_so_too(scheduler: Scheduler) -> None:
    id = ObjectId()
    first = scheduler.add_job(Echo, 1, id=id)
    scheduler.update_job(id, priority=3)

    assert not first.existed
    assert scheduler.add_job(Echo, 1, id=id).existed
    for _ in range(20):  # some of these calls come in the same millisecond
        id = ObjectId()
        processes = [scheduler.add_job_once(Echo, 2, id=id) for _ in range(2)]
        assert [one.existed for one in (*processes, scheduler.run_job(Echo, 2, id=id))] == [False, True, True]
        scheduler.cancel_job(id)


def test_of_many_each_says_so(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo, 1, unique="k")

    found = scheduler.add_jobs([(Echo, 1), (Echo, 2, {"unique": "k"}), (Echo, 3, {"unique": "l"})])

    assert [one.existed for one in found] == [False, True, False]


def test_add_job_once_says_what_it_did(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Echo, 1)
    again = scheduler.add_job_once(Echo, 1)
    replaced = scheduler.add_job_once(Echo, 1, priority=5)

    assert [one.existed for one in (first, again, replaced)] == [False, True, False]


def test_run_job_says_that_it_ran_nothing(scheduler: Scheduler) -> None:
    waiting = scheduler.add_job(Echo, 1, unique="k")

    assert scheduler.run_job(Echo, 2, unique="k").existed
    assert waiting.refresh().is_waiting
    assert not scheduler.run_job(Echo, 3).existed
