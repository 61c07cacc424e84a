"""``find_jobs`` and ``count_jobs``: pages of jobs in an order, for lists that people turn over."""

from __future__ import annotations

import pytest

from taskqueue import Scheduler
from taskqueue.errors import InvalidQuery
from taskqueue.model.ids import JobId
from tests.scheduler.jobs import Echo


@pytest.fixture
def ids(scheduler: Scheduler) -> list[JobId]:
    added = scheduler.add_jobs([(Echo, {"n": number}, {"queue": "mail"}) for number in range(5)])
    scheduler.add_job(Echo, queue="other")
    return [process.id for process in added]


def test_pages_follow_each_other_newest_first(scheduler: Scheduler, ids: list[JobId]) -> None:
    first = scheduler.find_jobs({"queue": "mail"}, limit=3)
    second = scheduler.find_jobs({"queue": "mail"}, limit=3, after=first[-1])

    assert [process.id for process in (*first, *second)] == ids[::-1]


def test_a_page_is_in_the_order_that_was_asked_for(scheduler: Scheduler, ids: list[JobId]) -> None:
    first = scheduler.find_jobs({"queue": "mail"}, order="rank", limit=2)
    second = scheduler.find_jobs({"queue": "mail"}, order="rank", after=first[-1])

    assert [process.id for process in (*first, *second)] == ids


def test_without_a_query_all_jobs_are_found_and_counted(scheduler: Scheduler, ids: list[JobId]) -> None:
    assert len(scheduler.find_jobs()) == scheduler.count_jobs() == len(ids) + 1
    assert scheduler.count_jobs({"queue": "mail", "data.n": 3}) == 1


def test_an_order_that_does_not_exist_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidQuery, match="order='data'"):
        scheduler.find_jobs(order="data")
