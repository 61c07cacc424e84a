"""The test vectors of the ancestors, each named by its number, on every store where a store is involved.

Those without a store are with what they are about: 4 in test_retry, 11 in test_pool, 12 in test_health, 15 in
test_samples, 16 in test_triggers and test_succession, 17 in test_schedule.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskqueue import Every, Scheduler, Status, retry
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.schedules import ScheduleRunner
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.record import Cause, Failure, Options
from taskqueue.model.retry import RetryPolicy
from taskqueue.model.schedules.fire import fire
from taskqueue.model.schedules.schedule import NamedSchedule, Overlap, next_version
from taskqueue.store import Store
from tests.ancestors.played import REFUSED, TOO_LONG, Noting, Telling, failing, run
from tests.store.records import HOUR, MINUTE, NOON, SECOND, a_record, all_kept

DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    Noting.noted.clear()


def test_vector_1_ten_exponential_pauses_make_eleven_runs(store: Store) -> None:
    pauses, end = failing(store, a_record(options=Options(retry=retry.exponential(10, 30))))

    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15360]
    assert sum(pauses) == 30690
    assert (end.status, end.cause, end.failures) == (Status.FAILED, Cause.EXHAUSTED, 11)


def test_vector_2_the_hundred_and_first_failure_is_the_last(store: Store) -> None:
    pauses, end = failing(store, a_record(options=Options(retry=retry.exponential(100, 5, longest="1h"))))

    assert (pauses[:2], len(pauses)) == ([5, 10], 100)
    assert (end.cause, end.failures) == (Cause.EXHAUSTED, 101)


def test_vector_3_three_retries_a_minute_apart_are_four_runs(store: Store) -> None:
    pauses, end = failing(store, a_record(options=Options(retry=retry.many_times(3, 60))))

    assert pauses == [60, 60, 60]
    assert [attempt.ended_at for attempt in end.attempts] == [NOON + number * MINUTE for number in range(4)]


def test_vector_4_the_default_table_makes_41_runs(store: Store) -> None:
    pauses, end = failing(store, a_record(options=Options(retry=retry.time_table())))

    assert (len(pauses), sum(pauses), end.failures) == (40, 86460, 41)


@pytest.mark.parametrize(
    ("policy", "failures", "cause"),
    [
        (retry.only_on(retry.many_times(2), "shop.Refused"), 3, Cause.EXHAUSTED),
        (retry.only_on(retry.many_times(2), RuntimeError), 3, Cause.EXHAUSTED),
        (retry.only_on(retry.many_times(2), LookupError), 1, Cause.NOT_RETRIABLE),
    ],
)
def test_vector_5_a_filter_decides_by_the_class_of_the_error(
    store: Store, policy: RetryPolicy, failures: int, cause: Cause
) -> None:
    _, end = failing(store, a_record(options=Options(retry=policy)))

    assert (end.failures, end.cause) == (failures, cause)


def test_vector_5_what_is_no_exception_of_the_list_is_not_retried(store: Store) -> None:
    nameless = Failed(failure=Failure(type="shop.Nothing", message=""))
    _, end = failing(
        store, a_record(options=Options(retry=retry.only_on(retry.many_times(2), "shop.Refused"))), nameless
    )

    assert end.cause is Cause.NOT_RETRIABLE


def test_vector_6_one_retry_is_one_more_run_of_the_same_job_300_seconds_later(
    scheduler: Scheduler, store: Store
) -> None:
    job = scheduler.add_job(Noting, retry=1)
    at = store.now() + MINUTE
    first = run(store, at, REFUSED)

    assert first is not None
    assert (first.id, first.status, first.ready_at) == (job.id, Status.POSTPONED, at + 300 * SECOND)
    assert first.error == REFUSED.failure
    last = run(store, at + 300 * SECOND, REFUSED)
    assert last is not None
    assert (last.id, last.status, len(all_kept(store))) == (job.id, Status.FAILED, 1)


def test_vector_6_two_retries_without_a_pause_leave_nothing_pending(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Noting, retry=2, retry_interval=0)
    at = store.now() + MINUTE
    pending = []
    for _ in range(3):
        assert run(store, at, REFUSED) is not None
        pending.append(len(list(scheduler.get_jobs())))

    assert pending == [1, 1, 0]


def test_vector_6_an_endless_retry_leaves_one_pending_always(scheduler: Scheduler, store: Store) -> None:
    job = scheduler.add_job(Noting, retry=-1, retry_interval=1)
    at = store.now() + MINUTE
    for number in range(30):
        after = run(store, at + number * SECOND, REFUSED)
        assert after is not None
        assert [one.id for one in scheduler.get_jobs()] == [job.id]
        assert after.failures == number + 1


def test_vector_7_a_timeout_uses_up_one_of_two_retries(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Noting, retry=2, timeout=5)
    at = store.now() + MINUTE
    after = run(store, at, TOO_LONG)

    assert after is not None
    assert (after.status, after.cause, after.ready_at) == (Status.POSTPONED, Cause.RETRY, at + 300 * SECOND)
    assert (after.failures, after.attempt) == (1, 2)


def test_vector_7_a_timeout_of_a_series_is_followed_by_the_next_occurrence(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Noting, interval=10, timeout=5)
    at = store.now() + MINUTE
    after = run(store, at, TOO_LONG)

    [following] = scheduler.get_jobs()
    assert after is not None
    assert (after.id, after.status) == (first.id, Status.TIMEOUT)
    assert following.snapshot.ready_at == at + 10 * SECOND


def test_vector_7_a_timeout_without_retry_ends_the_job(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Noting, timeout=5)
    after = run(store, store.now() + MINUTE, TOO_LONG)

    assert after is not None
    assert (after.status, after.cause, list(scheduler.get_jobs())) == (Status.TIMEOUT, Cause.TIMED_OUT, [])


def test_vector_8_a_job_for_later_is_postponed_until_then(scheduler: Scheduler, store: Store) -> None:
    job = scheduler.add_job(Noting, at="+10 s")
    due = job.snapshot.ready_at

    assert job.status is Status.POSTPONED
    assert due is not None
    assert run(store, due - SECOND) is None
    after = run(store, due)
    assert after is not None
    assert (after.id, after.status, after.created_at) == (job.id, Status.DONE, job.snapshot.created_at)


def test_vector_8_a_job_for_the_past_runs_at_once(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Noting, 1, at=store.now() - DAY)

    assert [one.status for one in scheduler.run_pending(ignore_time=False)] == [Status.DONE]
    assert Noting.noted == [1]


def test_vector_8_a_job_that_is_removed_while_it_waits_does_not_come_back(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Noting, at="+10 s")  # the ancestor added it again, from the memory of a worker: PW-9
    scheduler.flush()

    assert run(store, store.now() + HOUR) is None
    assert all_kept(store) == []


def test_vector_9_an_equal_job_is_added_once_and_a_changed_one_takes_its_place(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Noting, {"a": 1})
    assert scheduler.add_job_once(Noting, {"a": 1}) == first
    other = scheduler.add_job_once(Noting, {"a": 2})
    assert other != first
    changed = scheduler.add_job_once(Noting, {"a": 1}, retry=3)

    assert (first.refresh().status, first.cause) == (Status.CANCELED, Cause.REPLACED)
    assert {one.id for one in scheduler.get_jobs()} == {other.id, changed.id}


def test_vector_9_options_that_the_second_call_leaves_out_are_no_change(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Noting, at="+1 h", interval=60)

    assert scheduler.add_job_once(Noting, interval=60) == first


def test_vector_9_ignored_data_that_differ_take_the_place_of_the_old(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Noting, 1, ignore_data=True)
    second = scheduler.add_job_once(Noting, 2, ignore_data=True)

    assert (first.refresh().status, second.status) == (Status.CANCELED, Status.WAITING)


@pytest.mark.parametrize("percent", [-0.1, 100.1, 101])
def test_vector_10_progress_outside_its_range_is_an_error(scheduler: Scheduler, percent: float) -> None:
    job = scheduler.add_job(Telling, [percent, 50])
    scheduler.run_pending()

    assert job.refresh().error is not None
    assert job.error is not None
    assert job.error.type == "ValueError"


def test_vector_10_progress_is_written_twice_a_second_at_most_and_is_100_in_the_end(scheduler: Scheduler) -> None:
    job = scheduler.add_job(Telling, [50.5, 50.6])
    scheduler.run_pending()

    kept, took = job.refresh().result
    assert kept == 50.5 or took >= 0.5  # on a machine that stood still, half a second may have passed
    assert job.progress == 100.0


def test_vector_13_one_look_makes_at_most_one_attempt_of_each_job(scheduler: Scheduler) -> None:
    scheduler.add_job(Telling, [101, 0], retry=1, retry_interval=0)

    assert [one.attempt for one in scheduler.run_pending(once=True)] == [2]
    assert len(list(scheduler.get_jobs())) == 1


def test_vector_14_a_slot_that_ten_look_at_has_one_job(scheduler: Scheduler, store: Store) -> None:
    base = store.now() - 90 * SECOND
    schedule = scheduler.schedule("clean", Noting, every=Every("1m", base), overlap="allow")
    assert store.replace_schedule(
        schedule.snapshot, next_version(schedule.snapshot, next_run_at=base + MINUTE), [], store.now()
    )
    for _ in range(10):
        ScheduleRunner(store, CircuitBreaker(lambda: None)).fire_due()

    assert (len(list(scheduler.get_jobs())), schedule.refresh().fired) == (1, 1)


@pytest.mark.parametrize(("overlap", "jobs"), [(Overlap.ALLOW, 2), (Overlap.SKIP, 1)])
def test_vector_14_a_second_slot_has_a_job_of_its_own_unless_the_first_still_waits(
    store: Store, overlap: Overlap, jobs: int
) -> None:
    first = NOON + MINUTE
    plan = NamedSchedule(
        name="clean",
        trigger=Every(60, NOON),
        template=a_record(),
        created_at=NOON,
        next_run_at=first,
        overlap=overlap,
    )
    assert store.replace_schedule(None, plan, [], NOON)
    for slot in (first, first + MINUTE):
        [plan] = store.schedules()
        firing = fire(plan, {record.id: record for record in all_kept(store)}, slot)
        assert firing is not None
        assert store.replace_schedule(plan, firing.after, firing.jobs, slot)

    assert (store.schedules()[0].fired, len(all_kept(store))) == (jobs, jobs)


def test_vector_14_a_schedule_that_is_defined_again_keeps_its_count(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("clean", Noting, 1, every="1h")
    assert store.replace_schedule(schedule.snapshot, next_version(schedule.snapshot, fired=7), [], store.now())
    again = scheduler.schedule("clean", Noting, 2, every="2h", overlap="allow")

    assert (again.fired, again.snapshot.template.data) == (7, "2")
    assert len(scheduler.get_schedules()) == 1


def test_vector_15_a_query_finds_what_became_due_in_a_day(scheduler: Scheduler, store: Store) -> None:
    now = store.now()
    store.add([a_record(ready_at=now - 25 * HOUR), recent := a_record(ready_at=now - HOUR)])
    day = {"status": Status.WAITING, "ready_at": {"$gt": now - timedelta(hours=24), "$lte": now}}

    assert [one.id for one in scheduler.get_jobs(day)] == [recent.id]
    assert scheduler.analytics().present.queued == 2
