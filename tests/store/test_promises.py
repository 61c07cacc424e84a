"""The promise of a class counts the wait of each job for its first run, and its findings say what is left of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskqueue.insight import promises, work_report
from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.insight.promises import PromiseState
from taskqueue.insight.work_report import Period, Scope, WorkOf
from taskqueue.model.history import MOST_ERRORS, OTHER, Figures, Part, add_part
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import Failed, HandedBack, NotReady, Outcome, Snoozed, Stepped, Unloadable
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.promise import Promise, figure_name
from taskqueue.model.record import Cause, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import Settlement, Store
from tests.store import records
from tests.store.records import BROKEN, HOUR, MINUTE, SECOND, WEB_1, a_record, claim, settle

WITHIN_30 = Promise(0.99, 30.0)
PROMISED = Options(begin_within=30.0, retry=FixedRetry(5, 60))


def added(store: Store, due_at: datetime, **fields: Any) -> Record:
    record = a_record(**{"created_at": due_at, "ready_at": due_at, "options": PROMISED, **fields})
    store.add([record])
    return record


def run(store: Store, at: datetime, outcome: Outcome | None = None) -> None:
    """Claim the job that is due, start it at this time, and settle it a second later."""
    [taken] = claim(store, now=at).records
    settle(store, replace(taken, started_at=at), outcome, now=at + SECOND)


def look(store: Store) -> Overview:
    return OverviewReader(store).read()


def kept(store: Store, job: str = "app:Mail") -> tuple[int, int] | None:
    """Return how many jobs kept the promise and how many were late; None if the class has none."""
    found = look(store).promises.get(job)
    return None if found is None else (found.kept, found.late)


def needs(overview: Overview) -> list[Need]:
    return [need for need in overview.needs if need.subject is Subject.PROMISE]


@pytest.mark.parametrize(("waits", "counted"), [(30 * SECOND, (1, 0)), (31 * SECOND, (0, 1))])
def test_a_job_that_starts_in_time_keeps_the_promise_of_its_class(
    store: Store, waits: timedelta, counted: tuple[int, int]
) -> None:
    due_at = store.now() - 5 * MINUTE
    added(store, due_at)
    run(store, due_at + waits)

    assert kept(store) == counted


def test_a_class_without_a_promise_is_not_judged(store: Store) -> None:
    due_at = store.now() - 5 * MINUTE
    added(store, due_at, options=Options())
    run(store, due_at + 2 * MINUTE)

    assert look(store).promises == {}


@pytest.mark.parametrize("outcome", [Failed(failure=BROKEN), Snoozed(seconds=60), Stepped(phase=Phase.STARTING)])
def test_only_the_first_run_counts(store: Store, outcome: Outcome) -> None:
    due_at = store.now() - 20 * MINUTE
    added(store, due_at)
    run(store, due_at + MINUTE, outcome)
    run(store, due_at + 3 * MINUTE, Failed(failure=BROKEN))
    run(store, due_at + 6 * MINUTE, Failed(failure=BROKEN))

    assert kept(store) == (0, 1)


def test_a_claim_that_was_handed_back_is_no_start(store: Store) -> None:
    due_at = store.now() - 5 * MINUTE
    added(store, due_at)
    [taken] = claim(store, now=due_at + SECOND).records
    settle(store, taken, HandedBack(), now=due_at + SECOND)
    run(store, due_at + MINUTE)

    assert kept(store) == (0, 1)


def test_a_class_that_cannot_be_loaded_keeps_its_jobs_waiting(store: Store) -> None:
    due_at = store.now() - 5 * MINUTE
    added(store, due_at)
    run(store, due_at, Unloadable(failure=BROKEN, retry_for=HOUR))
    run(store, due_at + 20 * SECOND, Unloadable(failure=BROKEN, retry_for=HOUR))
    run(store, due_at + 40 * SECOND)

    assert kept(store) == (0, 1)


def test_a_job_is_due_when_its_condition_holds(store: Store) -> None:
    due_at = store.now() - 5 * MINUTE
    added(store, due_at)
    run(store, due_at, NotReady(reason="closed"))
    assert look(store).promises == {}
    run(store, due_at + 20 * SECOND)

    assert kept(store) == (1, 0)


def test_jobs_that_never_started_were_late(store: Store) -> None:
    due_at = store.now() - 5 * MINUTE
    added(store, due_at, expires_at=due_at + MINUTE)
    assert claim(store, now=due_at + 2 * MINUTE).records == []
    assert kept(store) == (0, 1)
    added(store, due_at)
    run(store, due_at, Unloadable(failure=BROKEN, retry_for=timedelta(0)))

    assert kept(store) == (0, 2)


@pytest.mark.parametrize("waits", ["for its condition", "for another job"])
def test_a_job_that_expired_before_it_was_due_was_not_late(store: Store, waits: str) -> None:
    due_at = store.now() - 5 * MINUTE
    expires = due_at + 2 * MINUTE
    if waits == "for its condition":
        record = added(store, due_at, expires_at=expires)
        run(store, due_at, NotReady(reason="closed"))
    else:
        other = added(store, store.now() + HOUR, options=Options(), status=Status.POSTPONED)
        record = records.behind(other.id, created_at=due_at, options=PROMISED, expires_at=expires)
        store.add([record])
    assert claim(store, now=due_at + 4 * MINUTE).records == []

    assert records.kept(store, record.id).cause is Cause.EXPIRED
    assert look(store).promises == {}


def test_a_job_that_was_canceled_before_its_start_is_not_judged(store: Store) -> None:
    due_at = store.now() - 5 * MINUTE
    record = added(store, due_at)
    store.cancel(record.id, "", store.now())

    assert look(store).promises == {}


def test_a_job_whose_node_was_lost_in_its_first_run_has_started(store: Store) -> None:
    due_at = store.now() - 5 * MINUTE
    added(store, due_at)
    [taken] = claim(store, now=due_at + MINUTE).records
    after = lost(replace(taken, started_at=due_at + MINUTE), due_at + 2 * MINUTE)
    store.settle([Settlement(claims=taken.claims, holder=WEB_1, after=after)], due_at + 2 * MINUTE)

    assert kept(store) == (0, 1)


def test_another_promise_starts_anew(store: Store) -> None:
    now = store.now()
    added(store, now - 8 * MINUTE)
    run(store, now - 6 * MINUTE)
    added(store, now - 3 * MINUTE, options=Options(begin_within=300.0, promise=0.9))
    run(store, now - 2 * MINUTE)

    [promise] = look(store).promises.values()
    assert (promise.promise, promise.kept, promise.late) == (Promise(0.9, 300.0), 1, 0)


def test_a_class_without_a_judged_job_for_a_week_is_no_finding(store: Store) -> None:
    now = store.now()
    for days, job in ((8, "app:Gone"), (6, "app:Seldom"), (0, "app:Mail")):
        for number in range(promises.FEW):
            due_at = now - timedelta(days=days) - 10 * MINUTE
            added(store, due_at, job=job)
            run(store, due_at + MINUTE + number * SECOND)

    overview = look(store)
    assert list(overview.promises) == ["app:Mail", "app:Seldom"]
    assert [need.name for need in needs(overview)] == ["app:Mail", "app:Seldom"]


def hours(jobs: dict[int, tuple[int, int]], now: datetime) -> dict[int, Part]:
    """Return the figures of hours, by how many hours ago: jobs that kept the promise, and late ones."""
    names = [figure_name(WITHIN_30, kept=each) for each in (True, False)]
    figures = {ago: dict(zip(names, pair, strict=True)) for ago, pair in jobs.items()}
    return {milliseconds(now - ago * HOUR): {("", "app:Mail"): each} for ago, each in figures.items()}


def of(jobs: dict[int, tuple[int, int]], now: datetime, minutes: tuple[int, int] = (0, 0)) -> PromiseState:
    in_hour = hours({0: minutes}, now) if any(minutes) else {}
    [found] = promises.promises_of(promises.judged_in(hours(jobs, now)), promises.judged_in(in_hour)).values()
    return found


def test_words_name_the_share_the_time_and_the_budget(store: Store) -> None:
    now = store.now()
    young, old = of({48: (990, 2), 1: (8, 0)}, now), of({720: (900, 0), 3: (85, 15)}, now)

    assert "99.8 % of 1,000 jobs started within 30 s since " in promises.in_words(young, now)
    assert promises.in_words(young, now).endswith(" (promised: 99 %); 80 % of the error budget is left")
    assert promises.in_words(old, now) == (
        "98.5 % of 1,000 jobs started within 30 s in the last 30 days (promised: 99 %); "
        "the error budget is used up: 15 jobs were late, 10 may be"
    )
    assert promises.in_words(of({1: (9899, 101)}, now), now).startswith("98.9 % ")  # never rounded up to the promise


@pytest.mark.parametrize(
    ("promise", "kept", "late", "share", "within", "promised"),
    [
        (Promise(0.975, 100.0), 975, 25, "97.5 %", "100 s", "97.5 %"),
        (Promise(0.985, 30.0), 982, 18, "98.2 %", "30 s", "98.5 %"),
        (Promise(0.999, 120.0), 9989, 11, "99.89 %", "2 min", "99.9 %"),
        (Promise(0.99999, 0.25), 999_989, 11, "99.998 %", "0.25 s", "99.999 %"),
    ],
)
def test_a_share_is_never_rounded_to_the_promise(
    promise: Promise, kept: int, late: int, share: str, within: str, promised: str
) -> None:
    [found] = promises.promises_of({("app:Mail", promise): promises.Judged(0, 0, kept, late)}, {}).values()

    assert promises.in_words(found, moment(0) + timedelta(days=30)).startswith(
        f"{share} of {kept + late:,} jobs started within {within} in the last 30 days (promised: {promised}); "
    )


@pytest.mark.parametrize(
    ("within", "words"),
    [(100.0, "100 s"), (0.25, "0.25 s"), (5400.0, "90 min"), (86_400.0, "24 h"), (172_800.0, "2 d")],
)
def test_a_promise_is_said_exactly(within: float, words: str) -> None:
    assert promises.promise_in_words(Promise(0.985, within)) == f"98.5 % start within {words}"


def test_findings_name_budgets_that_are_used_up_or_burn_fast(store: Store) -> None:
    now = store.now()

    def found(kept: PromiseState) -> list[tuple[str, str]]:
        return [
            (need.level.value, need.says.partition(":")[2].partition(":")[2] or need.says)
            for need in promises.needs_of({"app:Mail": kept}, now)
        ]

    assert found(of({1: (1000, 0)}, now)) == []
    assert found(of({1: (10, 1)}, now)) == []  # one job
    [(level, _)] = found(of({1: (900, 20)}, now))
    assert level == "warning"
    [(level, says)] = found(of({400: (100_000, 0), 0: (40, 10)}, now, (40, 10)))
    assert level == "error"
    assert "10 of 50 jobs started late in the last hour" in says
    assert found(of({400: (100_000, 0), 0: (400, 10)}, now, (400, 10))) == []  # less than 14.4 times what may be


@pytest.mark.parametrize(
    ("share", "late", "burns"), [(0.5, 75, True), (0.5, 74, False), (0.9, 75, True), (0.9, 74, False)]
)
def test_three_quarters_of_late_jobs_break_any_promise(share: float, late: int, burns: bool) -> None:
    jobs = {("app:Mail", Promise(share, 30.0)): promises.Judged(0, 0, 100 - late, late)}
    [found] = promises.promises_of(jobs, jobs).values()

    assert found.burns is burns


def test_overview_doctor_and_report_say_the_same(store: Store) -> None:
    now = store.now()
    for number in range(12):
        added(store, now - 10 * MINUTE)
        run(store, now - 5 * MINUTE + number * SECOND)

    reader = OverviewReader(store)
    overview = reader.read()
    [need] = needs(overview)
    assert need.says.startswith("app:Mail breaks its promise: 12 of 12 jobs started late in the last hour; 0 % of 12 ")
    assert list(promises.findings_of(overview.promises, now)) == []
    report = reader.report(WorkOf(Scope.CLASS, "app:Mail"), Period.HOUR, overview)
    assert report.promise == overview.promises["app:Mail"]
    assert not report.is_well
    assert work_report.lead(report).startswith("Its promise is not kept: 12 of 12 jobs started late")
    assert reader.report(WorkOf(Scope.QUEUE, "default"), Period.HOUR, overview).promise is None


def test_a_promise_that_is_kept_is_in_order(store: Store) -> None:
    added(store, store.now() - 2 * MINUTE)
    run(store, store.now() - 2 * MINUTE)
    overview = look(store)

    assert needs(overview) == []
    [finding] = promises.findings_of(overview.promises, overview.at)
    assert finding.says.startswith("app:Mail: 100 % of 1 job started within 30 s since ")


def test_promises_beyond_many_are_counted_together_and_are_none(store: Store) -> None:
    figures: Figures = {figure_name(Promise(0.99, float(number)), kept=True): 1 for number in range(MOST_ERRORS + 5)}
    part: Part = {}
    add_part(part, {("mail", "app:Mail"): figures})

    assert part["mail", "app:Mail"][f"k:{OTHER}"] == 5
    assert len(part["mail", "app:Mail"]) == MOST_ERRORS + 1
    assert promises.judged_in({0: {("", "app:Mail"): {f"k:{OTHER}": 5}}}) == {}
