"""The fixtures that a test overrides: hooks of the scheduler are those of the jobs that a test drains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from taskqueue import NewJob, RunningJob, Scheduler
from taskqueue.testing import Jobs
from tests.testing.work import Mail, Parent

SEEN: list[str] = []


@pytest.fixture
def taskqueue_hooks() -> Mapping[str, Callable[..., Any]]:
    def before_add(new: NewJob) -> None:
        new.meta["tenant"] = "acme"

    def around_run(job: RunningJob, proceed: Callable[[], Any]) -> None:
        SEEN.append(f"{job.job.rpartition(':')[2]} of {job.meta['tenant']}")
        proceed()

    return {"before_add": before_add, "around_run": around_run}


def test_drained_jobs_have_the_hooks_of_the_test(scheduler: Scheduler, jobs: Jobs) -> None:
    SEEN.clear()
    scheduler.add_job(Parent)

    jobs.drain()

    assert SEEN == ["Parent of acme", "Mail of acme"]
    jobs.assert_added(Mail, meta={"tenant": "acme"})
