"""``find_jobs`` and ``count_jobs``: pages of jobs in an order, for lists that people turn over."""

from __future__ import annotations

from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.errors import InvalidQuery, JobNotFound
from taskqueue.insight.records import PAGE
from taskqueue.model.ids import JobId
from tests.scheduler.jobs import Echo

BOTH = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


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


@BOTH
@pytest.mark.parametrize("order", ["-created_at", "id", "-rank"])
def test_the_last_job_of_a_page_may_be_named_by_its_id(scheduler: Scheduler, ids: list[JobId], order: str) -> None:
    whole = [process.id for process in scheduler.find_jobs(order=order)]
    paged: list[JobId] = []
    last: JobId | str | None = None
    while page := scheduler.find_jobs(order=order, limit=2, after=last):
        paged += [process.id for process in page]
        last = str(paged[-1]) if len(paged) == 2 else paged[-1]

    assert paged == whole
    assert len(paged) == len(ids) + 1


def test_an_id_of_no_job_is_refused(scheduler: Scheduler, ids: list[JobId]) -> None:
    with pytest.raises(JobNotFound):
        scheduler.find_jobs(after=JobId())
    with pytest.raises(JobNotFound, match="'invoice': no job has this text as its id"):
        scheduler.find_jobs(after="invoice")
    with pytest.raises(InvalidQuery, match="after=7: pass the last job of the previous page, or its id"):
        scheduler.find_jobs(after=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", range(7))
def test_an_offset_leaves_out_as_many_jobs(scheduler: Scheduler, ids: list[JobId], offset: int) -> None:
    whole = scheduler.find_jobs()

    assert scheduler.find_jobs(offset=offset) == whole[offset:]
    assert scheduler.find_jobs(offset=offset, limit=1) == whole[offset : offset + 1]
    assert scheduler.find_jobs(after=whole[0], offset=offset) == whole[1 + offset :]


@BOTH
def test_an_offset_may_be_longer_than_what_is_read_at_once(scheduler: Scheduler) -> None:
    ids = [process.id for process in scheduler.add_jobs([(Echo, number) for number in range(PAGE + 20)])]

    assert [process.id for process in scheduler.find_jobs(order="id", offset=PAGE + 10)] == ids[PAGE + 10 :]
    assert scheduler.find_jobs(offset=2 * PAGE) == []


@pytest.mark.parametrize("offset", [-1, 10_001, 1.0, True, "5"])
def test_an_offset_that_would_read_too_much_names_the_way_that_does_not(scheduler: Scheduler, offset: Any) -> None:
    with pytest.raises(InvalidQuery) as refused:
        scheduler.find_jobs(offset=offset)

    assert f"offset={offset!r}: pass how many jobs to leave out, up to 10,000; beyond, pass the last" in str(
        refused.value
    )


def test_without_a_query_all_jobs_are_found_and_counted(scheduler: Scheduler, ids: list[JobId]) -> None:
    assert len(scheduler.find_jobs()) == scheduler.count_jobs() == len(ids) + 1
    assert scheduler.count_jobs({"queue": "mail", "data.n": 3}) == 1


def test_an_order_that_does_not_exist_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidQuery, match="order='data'"):
        scheduler.find_jobs(order="data")
