"""What lost work, ran it twice or stopped everything in the ancestors, each named by its number, on every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from bson.errors import InvalidStringData

from taskqueue import Scheduler, Status, retry
from taskqueue.errors import StoreUnavailable, WaitTimeout
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Crashed, HandedBack, Interrupted, Unloadable
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.limits import Limit, lane
from taskqueue.model.query import PENDING
from taskqueue.model.record import Cause, Failure, Holder, Options, Record
from taskqueue.model.schedules import Every
from taskqueue.model.schedules.schedule import NamedSchedule, next_version
from taskqueue.store import Lease, Note, Settlement, Store
from tests.ancestors.played import REFUSED, Noting, run
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    WEB_1_AGAIN,
    WEB_2,
    a_record,
    all_kept,
    behind,
    claim,
    ids,
    kept,
    postponed,
    running,
    settle,
    settlement,
)

DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    Noting.noted.clear()


def take_back(store: Store, record: Record, now: Any) -> set[JobId]:
    """Settle a claim whose lease has ended, as any node does."""
    assert record.holder is not None
    after = lost(record, now)
    return store.settle(
        [Settlement(claims=record.claims, holder=record.holder, after=after, lease_end=record.ready_at)], now
    )


def an_occurrence(scheduler: Scheduler, **options: Any) -> JobId:
    """Add a job that runs again a minute after it has ended."""
    return scheduler.add_job(Noting, interval=60, **options).id


# Recruiter


def test_rw_1_a_job_whose_claims_are_lost_before_it_began_still_runs(store: Store) -> None:
    store.add([job := a_record()])  # without retry: there, its second loss archived it unrun
    for number in range(5):
        at = NOON + number * MINUTE
        assert ids(claim(store, now=at).records) == [job.id]
        [gone] = store.expired(at + LEASE, 10)
        assert take_back(store, gone, at + LEASE) == {job.id}
    after = run(store, NOON + HOUR)

    assert after is not None
    assert (after.status, after.failures, after.crashes, len(after.attempts)) == (Status.DONE, 0, 0, 1)


def test_rw_2_a_crashed_job_waits_for_its_next_run_and_never_has_two(store: Store) -> None:
    crashed = running(store, a_record(crashes=1, options=Options(retry=retry.many_times(3, 60))))
    settle(store, crashed, Crashed(failure=BROKEN), NOON)
    again = kept(store, crashed.id)

    assert (again.status, again.holder, again.ready_at) == (Status.POSTPONED, None, NOON + SECOND)
    assert claim(store, 10, holder=WEB_2).records == []
    assert ids(claim(store, 10, holder=WEB_2, now=NOON + SECOND).records) == [crashed.id]
    assert claim(store, 10, now=NOON + SECOND).records == []
    assert settle(store, crashed) == set()


def test_rw_3_a_job_that_runs_for_long_stays_with_its_node(store: Store) -> None:
    job = running(store, a_record())
    now = NOON
    while now < NOON + 31 * MINUTE:  # there, another worker got it after 30
        now += 20 * SECOND
        assert (store.expired(now, 10), claim(store, 10, holder=WEB_2, now=now).records) == ([], [])
        assert list(store.renew(WEB_1, now + LEASE, {}).claims) == [job.id]

    assert settle(store, job, now=now) == {job.id}
    assert kept(store, job.id).crashes == 0


def test_rw_4_what_a_leaving_node_has_not_begun_goes_to_another_at_once(store: Store) -> None:
    store.add([a_record() for _ in range(3)])
    taken = claim(store, 3).records
    assert store.settle([settlement(one, HandedBack(), NOON) for one in taken], NOON) == set(ids(taken))

    assert ids(claim(store, 10, holder=WEB_2).records) == ids(taken)


def test_rw_4_what_was_running_when_a_node_left_runs_again_at_once_and_counts_nowhere(store: Store) -> None:
    job = running(store, a_record())
    settle(store, job, Interrupted(), NOON)
    after = run(store, NOON)

    assert after is not None
    assert (after.id, after.status, after.failures, after.crashes) == (job.id, Status.DONE, 0, 0)


def a_plan(**fields: Any) -> NamedSchedule:
    return NamedSchedule(
        **{"name": "nightly", "trigger": Every(60, NOON), "template": a_record(), "created_at": NOON, **fields}
    )


def test_rw_8_a_slot_is_taken_and_its_job_added_in_one_step_or_none(store: Store) -> None:
    first = a_plan(next_run_at=NOON)
    assert store.replace_schedule(None, first, [], NOON)
    redefined = next_version(first, next_run_at=NOON + HOUR)
    assert store.replace_schedule(first, redefined, [], NOON)

    assert not store.replace_schedule(first, next_version(first, fired=1), [a_record()], NOON)
    assert (store.schedules(), all_kept(store)) == ([redefined], [])


def test_rw_8_a_slot_is_not_taken_by_whom_an_error_keeps_from_adding_its_job(store: Store) -> None:
    first = a_plan(next_run_at=NOON)
    assert store.replace_schedule(None, first, [], NOON)

    changed = next_version(first, fired=1, next_run_at=NOON + HOUR)
    for job in (a_record(claims=2**70), a_record(job="\udc80")):
        with pytest.raises((OverflowError, UnicodeEncodeError, InvalidStringData, StoreUnavailable)):
            store.replace_schedule(first, changed, [a_record(), job], NOON)

    assert (store.schedules(), all_kept(store)) == ([first], [])
    assert store.due(NOON, 10)[0] == [first]


def test_rw_8_of_many_that_define_a_schedule_at_once_one_does(opener: Opener) -> None:
    stores = [opener() for _ in range(4)]
    with ThreadPoolExecutor(len(stores)) as threads:
        done = list(threads.map(lambda store: store.replace_schedule(None, a_plan(), [a_record()], NOON), stores))

    assert sorted(done) == [False, False, False, True]
    assert (len(stores[0].schedules()), len(all_kept(stores[0]))) == (1, 1)


def test_rw_13_no_other_option_takes_away_the_time_of_a_job(scheduler: Scheduler) -> None:
    options: dict[str, Any] = {"at": "2038-01-19T03:14:07Z", "retry": 2, "tags": ["a"], "queue": "mail"}
    times = {scheduler.add_job(Noting, **dict(order)).snapshot.ready_at for order in permutations(options.items())}
    [time] = times

    assert time is not None
    assert time.year == 2038
    [first, *_] = scheduler.get_jobs()
    assert scheduler.update_job(first.id, priority=3, queue="other").snapshot.ready_at == time
    assert scheduler.run_pending(ignore_time=False) == []


# php-task-scheduler


@pytest.mark.parametrize("size", [10_000, 900_000])
def test_pw_1_and_2_a_forced_job_of_any_size_is_claimed_from_the_store(store: Store, size: int) -> None:
    # There, its message to the manager could be eaten by the node, or was too long to be sent.
    store.add([job := a_record(data=f'"{"x" * size}"', options=Options(force_spawn=True))])
    [taken] = claim(store, 0, forced=1).records

    assert (taken.id, len(taken.data)) == (job.id, size + 2)


def test_pw_5_of_many_that_add_a_job_once_at_once_all_get_the_same(store_url: str) -> None:
    def add(_: int) -> JobId:
        with Scheduler(store_url) as own:
            return own.add_job_once(Noting, {"mount": 7}, interval=60).id

    with ThreadPoolExecutor(6) as threads:
        added = set(threads.map(add, range(12)))

    assert len(added) == 1


def test_pw_6_the_order_in_which_options_and_data_are_named_is_no_change(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Noting, {"a": 1, "b": 2}, interval=60, retry=2)

    assert scheduler.add_job_once(Noting, {"b": 2, "a": 1}, retry=2, interval=60) == first
    assert scheduler.add_job_once(Noting, {"b": 2, "a": 1}, retry=2, interval="1m") == first
    assert len(list(scheduler.get_jobs())) == 1


def test_pw_7_waiting_ends_for_jobs_that_have_ended_for_none_and_for_the_same_twice(
    scheduler: Scheduler, store: Store
) -> None:
    ended, other = scheduler.add_job(Noting, retry=1), scheduler.add_job(Noting)
    for _ in range(2):
        run(store, store.now() + MINUTE)

    assert scheduler.wait_for([], timeout=60) == []
    assert [one.status for one in scheduler.wait_for([other, ended, other.id], timeout=60)] == [Status.DONE] * 3


def test_pw_7_waiting_follows_a_job_through_its_retries_and_has_a_limit(scheduler: Scheduler, store: Store) -> None:
    job = scheduler.add_job(Noting, retry=1, retry_interval=0)
    assert run(store, store.now() + MINUTE, REFUSED) is not None

    with pytest.raises(WaitTimeout, match=str(job.id)):
        scheduler.wait_for([job], timeout=0)
    assert run(store, store.now() + MINUTE) is not None
    assert scheduler.wait_for([job], timeout=60)[0].is_done


def test_pw_11_a_retry_is_in_the_same_record_as_the_failure(scheduler: Scheduler, store: Store) -> None:
    job = scheduler.add_job(Noting, retry=1)
    at = store.now() + MINUTE
    run(store, at, REFUSED)

    [only] = all_kept(store)  # between failure and retry there is nothing that a kill could hit
    assert (only.id, only.status, only.error) == (job.id, Status.POSTPONED, REFUSED.failure)


def test_pw_11_and_lw_2_with_the_end_of_an_occurrence_the_next_is_there(
    scheduler: Scheduler, store: Store, opener: Opener
) -> None:
    first = an_occurrence(scheduler)
    at = store.now() + MINUTE
    [taken] = claim(store, now=at).records
    assert settle(store, taken, now=at) == {first}

    [following] = opener().find(PENDING)
    assert following.ready_at == at + MINUTE
    assert store.repair(at + HOUR) == 0


def test_pw_16_a_series_goes_on_after_its_node_was_lost(scheduler: Scheduler, store: Store) -> None:
    first = an_occurrence(scheduler, crash_retries=0)
    at = store.now() + MINUTE
    [taken] = claim(store, now=at).records
    store.note(WEB_1, {first: Note(started_at=at)})
    [gone] = store.expired(at + LEASE, 10)
    assert take_back(store, gone, at + LEASE) == {first}

    [following] = scheduler.get_jobs()
    assert kept(store, first).cause is Cause.CRASHED
    assert following.snapshot.ready_at == at + LEASE + MINUTE
    assert settle(store, taken, now=at + LEASE) == set()


def test_pw_16_a_killed_node_has_its_jobs_retried_as_their_policy_says(store: Store) -> None:
    job = running(store, a_record())
    store.note(WEB_1, {job.id: Note(started_at=NOON)})
    [gone] = store.orphaned("web-1", WEB_1_AGAIN.incarnation, 10)
    take_back(store, gone, NOON + SECOND)
    after = run(store, NOON + SECOND)

    assert after is not None
    assert (after.id, after.status, after.crashes, after.attempt) == (job.id, Status.DONE, 1, 2)


def test_pw_17_a_node_that_was_believed_dead_changes_nothing_any_more(scheduler: Scheduler, store: Store) -> None:
    first = an_occurrence(scheduler)
    at = store.now() + MINUTE
    [stalled] = claim(store, now=at).records
    [gone] = store.expired(at + LEASE, 10)
    take_back(store, gone, at + LEASE)
    scheduler.cancel_job(first)

    store.note(WEB_1, {first: Note(progress=50.0, state='"old"')})
    assert store.renew(WEB_1, at + HOUR, {}).claims == {}
    assert settle(store, stalled, now=at + HOUR) == set()
    after = kept(store, first)
    assert (after.status, after.progress, after.state) == (Status.CANCELED, 0.0, None)
    assert list(scheduler.get_jobs()) == []  # nor did it bring in another occurrence


def test_pw_19_jobs_that_wait_while_none_runs_are_left_alone_for_ever(store: Store) -> None:
    awaited = running(store, a_record(queue="held"))
    waiting = [*(a_record() for _ in range(20)), postponed(NOON + 900 * DAY), behind(awaited.id)]
    store.add(waiting)
    before = {record.id: kept(store, record.id) for record in waiting}
    for days in (1, 100, 800):  # none runs, and nodes that have nothing to do with them look after the store
        now = NOON + days * DAY
        store.renew(WEB_1, now + LEASE, {})
        store.acquire(Lease(name="lead", holder=WEB_2, since=now, until=now + LEASE), now)
        assert claim(store, 10, holder=WEB_2, now=now, queues={"other": None}).records == []
        assert (store.repair(now), store.expired(now, 100), store.due(now, 10)) == (0, [], ([], None))
        assert store.prune(dict.fromkeys(Status, now), now, 1000) == 0

    assert {record.id: kept(store, record.id) for record in waiting} == before


# JobBoy


def test_jw_2_a_job_that_always_fails_or_cannot_be_loaded_stands_in_nobodys_way(store: Store) -> None:
    first, second = (a_record(priority=-20, options=Options(retry=retry.forever(60))) for _ in range(2))
    store.add([first, second, *(others := [a_record() for _ in range(5)])])
    absent = Unloadable(failure=Failure(type="ImportError", message="no"), retry_for=timedelta(hours=1))
    assert run(store, NOON, REFUSED) is not None
    assert run(store, NOON, absent) is not None
    done = [run(store, NOON) for _ in others]

    assert [one.id for one in done if one is not None] == ids(others)
    assert [kept(store, one.id).status for one in (first, second)] == [Status.POSTPONED] * 2


def test_jw_5_what_a_job_had_noted_is_there_when_it_runs_again(store: Store) -> None:
    job = running(store, a_record())
    store.note(WEB_1, {job.id: Note(started_at=NOON, state='{"written":500}')})
    [gone] = store.expired(NOON + LEASE, 10)
    take_back(store, gone, NOON + LEASE)
    [again] = claim(store, holder=WEB_2, now=NOON + LEASE).records

    assert (again.id, again.state, again.crashes) == (job.id, '{"written":500}', 1)
    store.note(WEB_1, {job.id: Note(state='{"written":501}')})  # the dead one comes back, and is not heard
    assert kept(store, job.id).state == '{"written":500}'


# lzq


@pytest.fixture
def nodes(opener: Opener) -> list[Store]:
    """Return connections of several nodes."""
    return [opener() for _ in range(4)]


def test_lw_3_claims_at_the_same_time_never_take_more_than_the_limit(nodes: list[Store]) -> None:
    nodes[0].add([a_record(lane=lane([Limit(3)], "app:Mail", None)) for _ in range(40)])

    def take(node: Store) -> int:
        return len(claim(node, 5, holder=Holder(seat="web", incarnation=f"a{id(node)}")).records)

    with ThreadPoolExecutor(len(nodes)) as threads:
        assert sum(threads.map(take, nodes)) == 3
