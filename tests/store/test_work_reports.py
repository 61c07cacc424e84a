"""A report of a class or queue has its figures, errors, slowest runs, customers and limits, and none of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskqueue.insight import work_report
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.insight.recent_figures import WHOLE, RecentFigures
from taskqueue.insight.work_reader import WorkReader
from taskqueue.insight.work_report import Day, Period, Scope, WorkOf, WorkReport
from taskqueue.model.history import Part
from taskqueue.model.lifecycle.outcomes import Failed, Outcome
from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Failure, Options, Record
from taskqueue.model.retry import FixedRetry
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import Store
from tests.nodes import eventually
from tests.store.records import HOUR, LEASE, MINUTE, SECOND, a_record, claim, running, settle

MAIL = WorkOf(Scope.CLASS, "app:Mail")
NO_VAT = Failure(type="builtins.KeyError", message="'vat'", traceback="…")


def ran(store: Store, at: datetime, took: timedelta = SECOND, outcome: Outcome | None = None, **fields: Any) -> Record:
    """Run a job that ends at this time, after a second of waiting, and return its record as it was added."""
    record = a_record(**{"created_at": at - took - SECOND, "ready_at": at - took - SECOND, **fields})
    settle(store, running(store, record, now=at - took), outcome, now=at)
    return record


def read(store: Store, of: WorkOf = MAIL, period: Period = Period.HOUR) -> WorkReport:
    """Return the report as a command reads it: with nothing that is kept."""
    reader = OverviewReader(store)
    return reader.report(of, period, reader.read())


def read_day(store: Store) -> Day:
    """Return the day as a command reads it."""
    reader = OverviewReader(store)
    return reader.day(reader.read())


def shares(report: WorkReport) -> Mapping[tuple[str, str | None], tuple[int, int]]:
    """Return how many of the last jobs were for whom, and how many of these failed."""
    return {(share.name, share.value): (share.jobs, share.failed) for share in report.last.shares}


def test_the_figures_of_a_class_are_those_of_an_hour_a_day_and_a_week(store: Store) -> None:
    now = store.now()
    for age, took in ((2 * MINUTE, SECOND), (5 * HOUR, 8 * SECOND), (100 * HOUR, 80 * SECOND)):
        ran(store, now - age, took)
    ran(store, now - 3 * MINUTE, outcome=Failed(failure=NO_VAT), queue="billing")
    ran(store, now - 3 * MINUTE, job="app:Report", took=200 * SECOND)

    report = read(store)

    works = [report.work[period] for period in (Period.HOUR, Period.DAY, Period.WEEK)]
    assert [(work.added, work.done, work.failed) for work in works] == [(2, 1, 1), (3, 2, 1), (4, 3, 1)]
    assert [work.running.percentile(99) for work in works] == [1.0, 8.0, 80.0]
    assert [work.waiting.percentile(50) for work in works] == [1.0, 1.0, 1.0]
    assert [named.name for named in report.named] == ["billing", "default"]
    assert sum(part.done for part in report.parts) == sum(part.failed for part in report.parts) == 1
    assert report.work[Period.HOUR].failed_share == 0.5


def test_a_queue_has_all_its_classes_and_no_other_queue(store: Store) -> None:
    now = store.now()
    ran(store, now - MINUTE, queue="mail")
    ran(store, now - MINUTE, queue="mail", job="app:Report", took=9 * SECOND)
    ran(store, now - MINUTE, queue="other", took=90 * SECOND)
    store.add([a_record(queue="mail", created_at=now, ready_at=now)])

    report = read(store, WorkOf(Scope.QUEUE, "mail"), Period.DAY)

    assert [(named.name, named.work.done) for named in report.named] == [("app:Mail", 1), ("app:Report", 1)]
    assert report.state is not None
    assert report.state.waiting == 1
    assert report.work[Period.DAY].running.longest == 9.0
    assert {record.queue for record in report.slowest} == {"mail"}


def test_an_error_counts_each_failed_attempt_also_of_a_job_that_is_retried(store: Store) -> None:
    now = store.now()
    retried = Options(retry=FixedRetry(times=5, interval=3600))
    ran(store, now - 4 * MINUTE, outcome=Failed(failure=NO_VAT), options=retried)
    ran(store, now - 2 * MINUTE, outcome=Failed(failure=NO_VAT))
    ran(
        store, now - MINUTE, outcome=Failed(failure=Failure(type="TimeoutError", message="no answer")), job="app:Report"
    )

    report = read(store)

    [error] = report.errors
    assert (error.job, error.fingerprint, error.number) == ("app:Mail", "builtins.KeyError: 'vat'", 2)
    assert error.last_at - error.first_at == 2 * MINUTE
    assert error.judged is not None
    assert error.query == {
        "job": "app:Mail",
        "error.type": "builtins.KeyError",
        "error.message": {"$contains": "'vat'"},
    }
    assert report.work[Period.HOUR].failed_attempts == 2
    assert report.work[Period.HOUR].failed == 1


def test_the_slowest_run_of_each_hour_is_found_among_quick_ones(store: Store) -> None:
    now = store.now()
    slow = [ran(store, now - hours * HOUR, hours * SECOND * 10) for hours in (2, 50, 30)]
    for hours in (2, 30, 50):
        ran(store, now - hours * HOUR)
        ran(store, now - hours * HOUR, 900 * SECOND, job="app:Report")

    report = read(store, period=Period.WEEK)

    assert [record.id for record in report.slowest] == [slow[1].id, slow[2].id, slow[0].id]
    assert [record.took for record in report.slowest] == [500.0, 300.0, 20.0]


def test_the_last_jobs_say_for_whom_they_were_and_who_has_the_failures(store: Store) -> None:
    now = store.now()
    for minute in range(1, 4):
        ran(store, now - minute * MINUTE, tags=("customer:acme",), given={"meta": {"tenant": "acme"}})
    ran(store, now - 90 * MINUTE, tags=("customer:initech",), outcome=Failed(failure=NO_VAT))
    ran(store, now - MINUTE, tags=("customer:other",), job="app:Report")

    report = read(store)

    assert shares(report) == {
        ("customer:initech", None): (1, 1),
        ("customer:acme", None): (3, 0),
        ("tenant", "acme"): (3, 0),
    }
    assert report.last.shares[0].name == "customer:initech"
    assert report.last.number == 4


def test_a_class_that_ran_days_ago_has_its_last_jobs(store: Store) -> None:
    now = store.now()
    for minute in range(5):
        ran(store, now - minute * MINUTE, job="app:Report")
    nightly = ran(store, now - 100 * HOUR, tags=("night",))

    report = read(store)

    assert shares(report) == {("night", None): (1, 0)}
    assert report.example is not None
    assert report.example.id == nightly.id
    assert not report.is_empty
    assert report.work[Period.HOUR].is_empty


def test_few_of_many_others_are_looked_for_among_a_bounded_number(store: Store) -> None:
    now = store.now()
    for second in range(6):
        ran(store, now - HOUR * 3 - second * SECOND, tags=("mine",))
        ran(store, now - HOUR * 3 - second * SECOND, job="app:Report")

    report = WorkReader(store, RecentFigures(store), walked=4).read(MAIL, Period.DAY, now, (), ())

    assert report.last.number <= 4
    assert report.slowest == []
    assert report.work[Period.DAY].done == 6


def test_running_jobs_and_their_limits_are_named(store: Store) -> None:
    now = store.now()
    limited = lane([Limit(1)], "app:Mail", None)
    store.add([a_record(lane=limited, created_at=now, ready_at=now), a_record(job="app:Report", created_at=now)])
    claim(store, 2, now=now)

    report = read(store)

    assert [run.record.job for run in report.runs] == ["app:Mail"]
    assert report.running == 1
    assert report.limit_families == {"limit:app:Mail"}
    assert not report.is_empty


def test_a_reader_that_is_kept_sees_what_has_happened_since(store: Store) -> None:
    reader = OverviewReader(store)
    now = store.now()
    ran(store, now - 2 * MINUTE)
    before = reader.report(MAIL, Period.HOUR, reader.read())

    ran(store, store.now())
    after = reader.report(MAIL, Period.HOUR, reader.read())

    assert [report.work[Period.WEEK].done for report in (before, after)] == [1, 2]
    assert reader.names(Scope.CLASS) == ["app:Mail"]
    assert reader.names(Scope.QUEUE) == ["default"]


def test_a_name_without_jobs_has_an_empty_report(store: Store) -> None:
    ran(store, store.now(), LEASE / 2)

    report = read(store, WorkOf(Scope.CLASS, "app:Mial"))

    assert report.is_empty
    assert work_report.lead(report) == "No job of this class for a week."
    assert (report.slowest, report.last.number, report.example) == ([], 0, None)


def test_the_last_hour_is_compared_with_the_same_hour_yesterday(store: Store) -> None:
    now, yesterday = store.now(), store.now() - 24 * HOUR
    for number in range(3):
        ran(store, now - 2 * MINUTE, queue=f"queue-{number}")
        ran(store, yesterday - 25 * MINUTE, job=f"app:Job{number}") if number < 2 else None
    ran(store, yesterday - 100 * MINUTE)  # in no hour that is compared
    ran(store, now - 100 * MINUTE, outcome=Failed(failure=NO_VAT))
    retried = running(store, a_record(created_at=now - MINUTE, options=Options(retry=FixedRetry(3, 600))), now=now)
    settle(store, retried, Failed(failure=NO_VAT), now=now)
    store.add([a_record(created_at=yesterday - 3 * HOUR), a_record(created_at=yesterday - 5 * MINUTE)])
    store.add([a_record(created_at=yesterday + 5 * MINUTE), a_record(created_at=now - MINUTE)])
    [day] = eventually(lambda: [one for one in [read_day(store)] if (one.hour.added, one.yesterday.added) == (5, 3)])

    assert (day.hour.done, day.hour.failed, day.hour.failed_attempts, day.yesterday.done) == (3, 0, 1, 2)
    assert (day.hour.failed_attempt_share, day.hour.waiting.percentile(95)) == (0.25, 1.0)
    assert (day.pending, day.pending_yesterday) == (5, 2)
    assert [part.pending for part in day.hours][-1] == 5
    assert sum(part.work.failed for part in day.hours) == 1
    done, failed, _, pending = day.figures
    assert (done.value, done.yesterday) == ("3", "2, +50 %")
    assert (failed.value, failed.yesterday) == ("25 %", "0 %")
    assert (pending.value, pending.yesterday) == ("5", "2, +150 %")


def test_an_empty_store_has_a_day_without_figures(store: Store) -> None:
    day = read_day(store)

    assert [(figure.value, figure.yesterday) for figure in day.figures] == [
        ("0", "none"),
        ("–", "–"),
        ("–", "–"),
        ("0", "0"),
    ]
    assert len(day.hours) == 24


@pytest.mark.parametrize("second", [0, 20, 59])
def test_a_day_counts_no_more_of_yesterday_than_of_the_last_hour(second: int) -> None:
    begin, day = datetime(2030, 7, 20, tzinfo=timezone.utc), 24 * HOUR  # the first minute of a day
    now = begin + second * SECOND
    later = range(-59, 31)  # also minutes from before the clock was set back

    def counted(at: datetime, until: datetime, rate: int = 60) -> Part:
        number = rate * max(0, round(min(MINUTE, until - at) / SECOND))
        return {WHOLE: {"added": number, "done": number, "w0": number, "longest_wait": 900}}

    minutes = {milliseconds(begin + place * MINUTE): counted(begin + place * MINUTE, now) for place in range(-59, 1)}
    minutes |= {milliseconds(begin + place * MINUTE): {WHOLE: {"done": 7}} for place in later if place > 0}
    yesterday = {milliseconds(begin - day + place * MINUTE): counted(begin, now + day) for place in later}
    hours = {
        milliseconds(begin - place * HOUR): counted(begin, begin + MINUTE, 3600 if place else second)
        for place in range(25)
    }

    found = work_report.day_of(minutes, yesterday, hours, 100, now)

    expected = f"{found.hour.done:,}"
    assert (found.figures[0].value, found.figures[0].yesterday) == (expected, expected)
    assert found.yesterday.waiting == found.hour.waiting
    assert found.hour.done == sum(part.done for part in found.parts[Period.HOUR])
    assert found.pending_yesterday == 100


def test_samples_are_of_the_jobs_that_match(store: Store) -> None:
    now = store.now()
    mail = ran(store, now - MINUTE, given={"meta": {"tenant": "acme"}})
    ran(store, now - MINUTE, job="app:Report")

    [sample] = store.samples(now - HOUR, now, 10, MAIL.query)

    assert (sample.id, sample.job, sample.meta) == (mail.id, "app:Mail", {"tenant": "acme"})


def test_a_histogram_has_its_percentiles_in_their_buckets(store: Store) -> None:
    now = store.now()
    for took in (1, 1, 2, 90):
        ran(store, now - MINUTE, took * SECOND)

    buckets = work_report.histogram(read(store).work[Period.HOUR].running)

    assert [(bucket.bound, bucket.jobs) for bucket in buckets if bucket.jobs] == [(1.0, 2), (2.0, 1), (120.0, 1)]
    assert [(bucket.bound, bucket.percents) for bucket in buckets if bucket.percents] == [
        (1.0, (50,)),
        (120.0, (95, 99)),
    ]
    assert buckets[2].bound == 5.0


def test_the_lead_says_what_needs_somebody(store: Store) -> None:
    now = store.now()
    for number in range(60):
        ran(store, now - 90 * MINUTE - number * SECOND)
    for number in range(6):
        ran(store, now - MINUTE - number * SECOND, outcome=Failed(failure=NO_VAT))

    report = read(store)

    assert work_report.lead(report) == "Attention: new error KeyError, 6 of 6 attempts."
    assert not report.is_well
    [mail] = work_report.class_states(
        OverviewReader(store).figures.hours(Period.DAY.begin(now), now),
        {},
        [replace(one) for one in report.needing],
        now,
    )
    assert (mail.name, mail.work.done, mail.work.failed, len(mail.needing)) == ("app:Mail", 60, 6, 1)
