"""Jobs run in the process of the test, by a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from taskqueue import Scheduler, workflows
from taskqueue.errors import ConfigError, InvalidOption
from taskqueue.model.record import Holder
from taskqueue.store import ClaimRequest
from taskqueue.testing import Jobs, MovableClock
from tests.testing.work import Awaiting, Broken, Later, Letter, Mail, Paced, Parent, Post, Unsteady, add

DECLARING = """
from taskqueue import schedule, task

@schedule("each-night", cron="30 2 * * *", tz="Europe/Berlin", meta={"customer": "staff"})
@task
def report():
    return "sent"
"""


def test_due_jobs_and_those_that_they_add_are_run(scheduler: Scheduler, jobs: Jobs) -> None:
    scheduler.add_job(Parent)
    scheduler.add_job(Mail, at="+1 hour")

    ran = jobs.drain()

    assert [process.job.rpartition(":")[2] for process in ran] == ["Parent", "Mail"]
    assert all(process.is_done for process in ran)


def test_drained_jobs_receive_the_results_of_others(scheduler: Scheduler, jobs: Jobs) -> None:
    flow = workflows.group(scheduler, [(Mail, {"to": "a"}), (Mail, 2)], then=(Mail, {"all": workflows.RESULTS}))

    jobs.drain()

    assert flow.refresh().result == {"all": [{"to": "a"}, 2]}


def test_the_first_exception_is_raised_though_the_job_is_to_be_retried(scheduler: Scheduler, jobs: Jobs) -> None:
    process = scheduler.add_job(Unsteady, 2)

    with pytest.raises(ConnectionError, match="not yet"):
        jobs.drain()

    assert process.refresh().is_postponed


def test_exceptions_stay_in_the_records_on_request(scheduler: Scheduler, jobs: Jobs) -> None:
    process = scheduler.add_job(Broken)

    jobs.drain(raise_errors=False)

    assert process.refresh().error is not None
    assert process.is_failed


def test_a_job_is_performed_with_what_the_store_makes_of_its_data(jobs: Jobs) -> None:
    assert jobs.perform(Mail, {"to": ("a", "b")}) == {"to": ["a", "b"]}
    assert jobs.perform(add, {"left": 2, "right": 3}) == 5
    assert jobs.perform(Post, Letter("ann", date(2030, 1, 1))) == date(2030, 1, 1)
    assert jobs.perform(Awaiting) == 0


def test_an_exception_of_a_performed_job_is_raised(jobs: Jobs) -> None:
    with pytest.raises(LookupError, match="broken"):
        jobs.perform(Broken)


def test_a_performed_job_that_does_not_end_says_why(jobs: Jobs) -> None:
    with pytest.raises(AssertionError, match=r"did not end as DONE: .*Later"):
        jobs.perform(Later)


def test_the_clock_stands_and_moves_forwards_only(scheduler: Scheduler, jobs: Jobs, clock: MovableClock) -> None:
    began = clock.now()
    process = scheduler.add_job(Mail, at="+2 hours")

    assert process.ready_at == began + timedelta(hours=2)
    assert jobs.drain() == []
    assert clock.move("2h") == began + timedelta(hours=2)
    assert jobs.drain() == [process]
    with pytest.raises(InvalidOption, match="cannot move back"):
        clock.move_to(began)
    with pytest.raises(InvalidOption, match="a time with a zone"):
        clock.move_to(began.replace(tzinfo=None))


def test_a_moment_in_another_zone_is_the_same_moment_in_utc_and_hours_count_through_the_night_of_winter_time(
    scheduler: Scheduler, clock: MovableClock
) -> None:
    before = datetime(clock.now().year + 1, 10, 1, 0, 30, 0, 123_456, tzinfo=ZoneInfo("Europe/Berlin"))
    changes_on = before + timedelta(days=(6 - before.weekday()) % 7 + 28)  # the last Sunday of October
    changes_on -= timedelta(days=0 if changes_on.month == 10 else 7)

    moved = clock.move_to(changes_on)
    assert (moved, moved.tzinfo) == (changes_on.replace(microsecond=123_000), timezone.utc)
    process = scheduler.add_job(Mail, at="+4 hours")
    assert clock.move("4h") == process.ready_at == moved + timedelta(hours=4)


def test_a_retried_job_runs_again_at_its_times(scheduler: Scheduler, jobs: Jobs, clock: MovableClock) -> None:
    process = scheduler.add_job(Unsteady, 3)
    began = clock.now()

    assert len(jobs.run_for("1d")) == 3

    process.refresh()
    assert process.result == "attempt 3"
    assert [one.started_at - began for one in process.attempts if one.started_at] == [
        timedelta(hours=hours) for hours in (0, 1, 2)
    ]
    assert clock.now() == began + timedelta(days=1)


def test_an_exception_that_fails_a_job_for_good_is_raised_while_time_passes(scheduler: Scheduler, jobs: Jobs) -> None:
    scheduler.add_job(Unsteady, 9)

    with pytest.raises(ConnectionError):
        jobs.run_for("1d")


def test_a_rate_holds_by_the_clock(scheduler: Scheduler, jobs: Jobs, clock: MovableClock) -> None:
    for _ in range(3):
        scheduler.add_job(Paced)
    began = clock.now()

    ran = jobs.run_for("1d")

    hours = [(process.started_at - began) // timedelta(hours=1) for process in ran if process.started_at]
    assert hours == [0, 1, 2]


def test_schedules_start_jobs_by_the_clock(scheduler: Scheduler, jobs: Jobs, clock: MovableClock) -> None:
    scheduler.schedule("nightly", Mail, {"to": "all"}, cron="30 2 * * *", tz="Asia/Tokyo")  # no day of which is longer
    scheduler.schedule("often", Parent, every="6h")

    ran = jobs.run_for("2d")

    assert Counter(process.data is not None and process.data["to"] for process in ran) == {
        "all": 2,
        "child": 8,
        False: 8,
    }
    assert {process.started_at.minute for process in ran if process.started_at and process.data == {"to": "all"}} == {
        30
    }


def test_a_claim_whose_lease_is_over_is_rescued(scheduler: Scheduler, jobs: Jobs, clock: MovableClock) -> None:
    process = scheduler.add_job(Mail, {"to": "a"})
    now = clock.now()
    jobs._store.claim(Holder(seat="dead", incarnation="i"), ClaimRequest(pooled=1), now, now + timedelta(minutes=1))

    assert jobs.drain() == []
    clock.move("61s")
    jobs.run_for("1m")
    assert process.refresh().is_done


def test_schedules_that_a_module_declares_start_their_jobs(
    scheduler: Scheduler, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declaring_reports.py").write_text(DECLARING)
    monkeypatch.syspath_prepend(tmp_path)

    for _ in range(2):
        jobs.sync_schedules("declaring_reports")

    assert "each-night" in [named.name for named in scheduler.get_schedules()]
    reports = [job for job in jobs.run_for("30d") if job.job == "declaring_reports:report"]
    assert len(reports) == 30
    assert reports[0].meta == {"customer": "staff"}


def test_a_module_that_cannot_be_imported_is_named(jobs: Jobs) -> None:
    with pytest.raises(ConfigError, match="module reports_of_nobody cannot be imported"):
        jobs.sync_schedules("reports_of_nobody")
