"""Figures of a time are made of the same samples on every store: bounded, and the newest first (REC-35, X-41)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from bson import ObjectId

from taskqueue.model.analytics import Analytics, Grouping, Present, Sample, Spread, of_history, of_samples
from taskqueue.model.history import Step
from taskqueue.model.record import Cause, Failure, Record, Status
from taskqueue.store import Store
from tests.store.records import BROKEN, HOUR, MINUTE, NOON, SECOND, WEB_1, a_record, behind, claim, postponed, running

TIMED_OUT = Failure(type="taskqueue.model.job.JobTimeout", message="after 5 s")


def over(status: Status, ended_at: datetime, **fields: Any) -> Record:
    """Return a record that ended so, by its first attempt, which began 5 seconds after it could and took 2."""
    due = ended_at - 7 * SECOND
    given = {"created_at": due, "ready_at": due, "started_at": due + 5 * SECOND, **fields}
    return replace(a_record(**given), status=status, ready_at=None, ended_at=ended_at, claims=1)


def a_day(store: Store) -> None:
    """Add a fixed set of records that ended in every way, in several queues, classes and tags."""
    store.add(
        [
            over(Status.DONE, NOON - SECOND, queue="mail", tags=("a", "b")),
            over(Status.DONE, NOON - 2 * SECOND, queue="mail", priority=-20, failures=2),
            over(Status.FAILED, NOON - 3 * SECOND, queue="mail", tags=("a",), error=BROKEN, failures=1),
            over(Status.FAILED, NOON - 4 * SECOND, job="app:Report", error=BROKEN, failures=3, crashes=1),
            over(Status.TIMEOUT, NOON - 5 * SECOND, job="app:Report", error=TIMED_OUT, failures=1),
            over(Status.CANCELED, NOON - 6 * SECOND, error=Failure(type="Canceled", message="no")),
            over(Status.CANCELED, NOON - 7 * SECOND, started_at=None),
            over(Status.FAILED, NOON - 8 * SECOND, started_at=None, cause=Cause.UNLOADABLE, error=BROKEN),
            over(Status.DONE, NOON - 9 * SECOND, started_at=NOON - HOUR),
            over(Status.DONE, NOON - HOUR),
        ]
    )


def figures(store: Store, by: Grouping, most: int = 100) -> Analytics:
    """Return the figures of the minute before noon."""
    begin, end, present = NOON - MINUTE, NOON - SECOND / 1000, store.present(NOON)
    if by is Grouping.TAG:
        return of_samples(store.samples(begin, NOON, most + 1), begin, NOON, most, present)
    return of_history(store.history(Step.MINUTE, begin, end), by, begin, begin, NOON, present)


def test_samples_say_what_counts_of_a_job(store: Store) -> None:
    a_day(store)

    samples = store.samples(NOON - 2 * HOUR, NOON, 100)

    assert samples[:3] == [
        Sample(
            queue="mail", job="app:Mail", tags=("a", "b"), status=Status.DONE,
            ended_at=NOON - SECOND, attempts=1, waited=5000, ran=2000,
        ),
        Sample(
            queue="mail", job="app:Mail", status=Status.DONE,
            ended_at=NOON - 2 * SECOND, attempts=3, waited=5000, ran=2000,
        ),
        Sample(
            queue="mail", job="app:Mail", tags=("a",), status=Status.FAILED,
            ended_at=NOON - 3 * SECOND, attempts=1, waited=5000, ran=2000, error=BROKEN.type,
        ),
    ]  # fmt: skip
    assert samples[5:9] == [
        Sample(queue="default", job="app:Mail", status=Status.CANCELED, ended_at=NOON - 6 * SECOND, attempts=0),
        Sample(queue="default", job="app:Mail", status=Status.CANCELED, ended_at=NOON - 7 * SECOND, attempts=0),
        Sample(
            queue="default", job="app:Mail", status=Status.FAILED,
            ended_at=NOON - 8 * SECOND, attempts=0, error=BROKEN.type,
        ),
        Sample(  # it ran before it was due, as run_pending lets it: it did not wait
            queue="default", job="app:Mail", status=Status.DONE,
            ended_at=NOON - 9 * SECOND, attempts=1, waited=0, ran=3_591_000,
        ),
    ]  # fmt: skip
    assert len(samples) == 10


def test_a_time_leaves_out_its_begin_and_has_its_end(store: Store) -> None:
    store.add([over(Status.DONE, NOON - number * SECOND) for number in range(4)])

    assert [one.ended_at for one in store.samples(NOON - 2 * SECOND, NOON - SECOND, 9)] == [NOON - SECOND]


def test_samples_are_the_newest_whatever_their_status(store: Store) -> None:
    a_day(store)

    newest = [one.status for one in store.samples(NOON - HOUR, NOON, 6)]

    assert newest == [3, 3, 4, 4, 6, 5]


def test_figures_by_queue(store: Store) -> None:
    a_day(store)

    value = figures(store, Grouping.QUEUE)

    rows = [(one.name, one.done, one.failed, one.timeout, one.canceled, one.retried) for one in value.groups]
    assert rows == [("default", 1, 2, 1, 2, 1), ("mail", 2, 1, 0, 0, 1)]
    assert (value.whole.ended, value.whole.attempts, value.is_cut) == (9, 11, False)
    assert (value.whole.done_per_minute, value.whole.failed_per_minute) == (3.0, 4.0)
    assert value.whole.errors == {BROKEN.type: 3, TIMED_OUT.type: 1}
    assert value.groups[1].waiting == Spread(jobs=3, mean=5.0, p50=5.0, p95=5.0, longest=5.0)
    assert value.groups[0].running == Spread(jobs=3, mean=3595 / 3, p50=2.0, p95=3591.0, longest=3591.0)


def test_figures_by_class_and_by_tag(store: Store) -> None:
    a_day(store)

    by_class, by_tag = (figures(store, by).groups for by in (Grouping.CLASS, Grouping.TAG))

    assert [(one.name, one.ended) for one in by_class] == [("app:Mail", 7), ("app:Report", 2)]
    assert [(one.name, one.done, one.failed) for one in by_tag] == [("a", 1, 1), ("b", 1, 0)]


def test_three_jobs_in_a_minute_give_the_figures_of_the_ancestor(store: Store) -> None:  # REC-35, appendix A 15
    store.add([replace(over(Status.DONE, NOON), id=ObjectId(), ended_at=NOON - 2 * SECOND) for _ in range(3)])

    whole = figures(store, Grouping.QUEUE).whole

    assert whole.waiting is not None
    assert whole.running is not None
    assert (whole.done_per_minute, whole.done_per_minute / 60) == (3.0, 0.05)
    assert (whole.waiting.mean, whole.running.mean) == (5.0, 0.0)


def test_what_has_not_ended_is_counted_by_what_it_waits_for(store: Store) -> None:  # X-41, RW-16
    store.add([a_record(), a_record()])
    [gone] = claim(store, holder=WEB_1, now=NOON - MINUTE).records
    run = running(store, a_record(ready_at=NOON - HOUR))
    store.add([postponed(NOON), postponed(NOON + HOUR), postponed(NOON + HOUR), behind(run.id)])
    store.add([behind(run.id, ready_at=NOON - SECOND), behind(gone.id, ready_at=NOON + HOUR)])

    assert store.present(NOON) == Present(queued=2, running=2, postponed=2, blocked=3, lost=1)


def test_nothing_is_counted_where_nothing_is(store: Store) -> None:
    value = figures(store, Grouping.TAG)

    assert (value.groups, value.whole.ended, value.whole.waiting, value.whole.errors) == ((), 0, None, {})
    assert value.present == Present(queued=0, running=0, postponed=0, blocked=0, lost=0)
