"""An outcome is accepted once, from whoever holds the claim, with all that follows from it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from bson import ObjectId

from taskqueue.model.lifecycle.outcomes import (
    Canceled,
    Crashed,
    Done,
    Failed,
    GivenUp,
    HandedBack,
    Interrupted,
    Outcome,
    Run,
    Snoozed,
    TimedOut,
)
from taskqueue.model.lifecycle.settle import ended, lost
from taskqueue.model.record import CancelRequest, Cause, Holder, OnCrash, Options, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import Settlement, Store
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
    finished,
    ids,
    kept,
    postponed,
    running,
    settle,
    settlement,
)

OUTCOMES = [
    Done(result='{"sent":3}'),
    Failed(failure=BROKEN),
    GivenUp(failure=BROKEN),
    Snoozed(seconds=60),
    TimedOut(failure=BROKEN),
    Canceled(),
    Interrupted(),
    HandedBack(),
    Crashed(failure=BROKEN),
]


@pytest.mark.parametrize("retry", [FixedRetry(), FixedRetry(times=1)], ids=["no retry", "retry"])
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_what_follows_from_an_outcome_is_kept(store: Store, outcome: Outcome, retry: FixedRetry) -> None:
    run = running(store, a_record(options=Options(retry=retry)))
    settled = settlement(run, outcome)

    assert store.settle([settled], NOON + SECOND) == {run.id}

    assert kept(store, run.id) == settled.after


def test_an_outcome_is_accepted_once(store: Store) -> None:
    run = running(store, a_record())

    assert settle(store, run, Done(result="1")) == {run.id}
    assert settle(store, run, Done(result="2")) == set()

    assert kept(store, run.id).result == "1"


def test_a_late_outcome_is_refused_after_the_job_was_claimed_again(store: Store) -> None:
    first = running(store, a_record())
    settle(store, first, HandedBack())
    [second] = claim(store, holder=WEB_2).records

    assert settle(store, first, Done(result='"late"')) == set()
    assert settle(store, second, Done(result='"on time"')) == {first.id}

    assert kept(store, first.id).result == '"on time"'


@pytest.mark.parametrize("holder", [WEB_1_AGAIN, WEB_2], ids=["its successor", "another node"])
def test_an_outcome_of_another_incarnation_is_refused(store: Store, holder: Holder) -> None:
    run = running(store, a_record())

    assert store.settle([settlement(run)._replace(holder=holder)], NOON) == set()

    assert kept(store, run.id).status is Status.PROCESSING


def test_an_outcome_for_an_unknown_job_is_refused(store: Store) -> None:
    run = running(store, a_record())
    stranger = settlement(run)._replace(after=replace(settlement(run).after, id=ObjectId()))

    assert store.settle([stranger], NOON) == set()


def test_outcomes_are_accepted_one_by_one(store: Store) -> None:
    store.add([a_record() for _ in range(5)])
    runs = claim(store, 5).records
    settle(store, runs[2])

    assert store.settle([settlement(run) for run in runs], NOON) == {run.id for run in runs} - {runs[2].id}
    assert {record.status for record in all_kept(store)} == {Status.DONE}


def test_settling_nothing_settles_nothing(store: Store) -> None:
    assert store.settle([], NOON) == set()


def test_what_waited_for_a_job_is_released_when_it_has_ended(store: Store) -> None:
    run = running(store, a_record())
    first, second = behind(run.id), behind(run.id)
    store.add([first, second])

    settle(store, run, now=NOON + MINUTE)

    for id in (first.id, second.id):
        assert (kept(store, id).status, kept(store, id).ready_at) == (Status.WAITING, NOON + MINUTE)
    assert ids(claim(store, 9, now=NOON + MINUTE).records) == [first.id, second.id]


def test_a_failed_attempt_that_is_retried_releases_nothing(store: Store) -> None:
    run = running(store, a_record(options=Options(retry=FixedRetry(times=1))))
    waiting = behind(run.id)
    store.add([waiting])

    settle(store, run, Failed(failure=BROKEN))

    assert kept(store, waiting.id).waiting_for == (run.id,)


def test_what_waits_for_several_jobs_is_released_by_the_last(store: Store) -> None:
    store.add([a_record(), a_record()])
    one, other = claim(store, 2).records
    waiting = behind(one.id, other.id)
    store.add([waiting])

    settle(store, one)
    assert (kept(store, waiting.id).status, kept(store, waiting.id).waiting_for) == (Status.POSTPONED, (other.id,))

    settle(store, other, GivenUp(failure=BROKEN))
    assert kept(store, waiting.id).status is Status.WAITING


def test_a_canceled_record_is_not_released_any_more(store: Store) -> None:
    run = running(store, a_record())
    waiting = behind(run.id)
    store.add([waiting])
    store.cancel(waiting.id, "", NOON)

    settle(store, run)

    assert kept(store, waiting.id).status is Status.CANCELED


def test_a_chain_is_released_link_by_link(store: Store) -> None:
    run = running(store, a_record())
    second = behind(run.id)
    third = behind(second.id)
    store.add([third, second])

    settle(store, run)
    assert (kept(store, second.id).status, kept(store, third.id).status) == (Status.WAITING, Status.POSTPONED)

    store.cancel(second.id, "", NOON)
    assert kept(store, third.id).status is Status.WAITING


def test_a_cancel_request_that_came_meanwhile_is_obeyed(opener: Opener) -> None:
    store, other = opener(), opener()
    run = running(store, a_record(options=Options(retry=FixedRetry(times=5))))
    other.cancel(run.id, "wrong address", NOON)

    assert settle(store, run, Failed(failure=BROKEN)) == {run.id}

    ended = kept(store, run.id)
    assert (ended.status, ended.cause) == (Status.CANCELED, Cause.CANCELED)
    assert ended.error is not None
    assert ended.error.message == "wrong address"
    assert ended.cancel == CancelRequest(requested_at=NOON, reason="wrong address")


def test_a_cancel_request_does_not_change_an_outcome_that_ends_the_job(store: Store) -> None:
    run = running(store, a_record())
    store.cancel(run.id, "", NOON)

    settle(store, run, Done(result="1"))

    ended = kept(store, run.id)
    assert (ended.status, ended.result, ended.cancel) == (Status.DONE, "1", CancelRequest(requested_at=NOON))


def test_a_cancel_request_for_one_of_many_changes_no_outcome(store: Store) -> None:
    store.add([a_record() for _ in range(3)])
    runs = claim(store, 3).records
    store.cancel(runs[1].id, "too late", NOON)

    assert store.settle([settlement(run) for run in runs], NOON) == set(ids(runs))
    assert [(kept(store, run.id).status, kept(store, run.id).cancel is None) for run in runs] == [
        (Status.DONE, True),
        (Status.DONE, False),
        (Status.DONE, True),
    ]


def test_the_unique_key_stays_as_the_store_has_it(store: Store) -> None:
    run = running(store, a_record(unique="k"))
    new = a_record(unique="k")
    store.replace(new, kept(store, run.id), None, NOON)

    assert settle(store, run, HandedBack()) == {run.id}

    assert (kept(store, run.id).unique, kept(store, new.id).unique) == (None, "k")


def test_a_lost_claim_is_settled_with_the_fence_of_its_dead_holder(store: Store) -> None:
    run = running(store, a_record())
    [found] = store.expired(NOON + LEASE, 10)
    after = lost(found, NOON + LEASE)
    assert found.holder is not None
    taken_back = Settlement(claims=found.claims, holder=found.holder, after=after)

    assert store.settle([taken_back], NOON + LEASE) == {run.id}
    assert store.settle([taken_back], NOON + LEASE) == set()
    assert settle(store, run) == set()

    assert kept(store, run.id) == after


def test_a_job_that_may_run_only_once_is_failed_when_it_is_interrupted(store: Store) -> None:
    run = running(store, a_record(options=Options(on_crash=OnCrash.FAIL)))

    settle(store, run, Interrupted())

    assert (kept(store, run.id).status, kept(store, run.id).cause) == (Status.FAILED, Cause.INTERRUPTED)


def test_attempts_add_up_over_the_life_of_a_job(store: Store) -> None:
    record = a_record(options=Options(retry=FixedRetry(times=2, interval=60)))
    store.add([record])
    outcomes: list[Outcome] = [Failed(failure=BROKEN), Crashed(failure=BROKEN), Done(result="1")]
    for number, outcome in enumerate(outcomes):
        [run] = claim(store, now=NOON + number * HOUR).records
        settle(store, run, outcome, NOON + number * HOUR)

    ended = kept(store, record.id)
    assert (ended.status, ended.claims, ended.failures, ended.crashes, ended.attempt) == (Status.DONE, 3, 1, 1, 3)
    assert [attempt.outcome for attempt in ended.attempts] == ["Failed", "Crashed", "Done"]
    assert ended.attempts[0].error == BROKEN


def test_many_claims_are_settled_in_one_call(store: Store) -> None:
    store.add([a_record() for _ in range(500)])
    runs = claim(store, 500).records

    assert store.settle([settlement(run) for run in runs], NOON) == set(ids(runs))
    assert store.tally() == {("default", Status.DONE): 500}


def test_there_is_nothing_to_mend_after_whole_settlements(store: Store) -> None:
    run = finished(store, a_record())
    store.add([behind(run.id)])

    assert store.repair(NOON + HOUR) == 0
    assert store.orphaned(WEB_1.seat, WEB_1.incarnation, 10) == []


@pytest.mark.parametrize("outcome", [HandedBack(), Interrupted()], ids=lambda outcome: type(outcome).__name__)
def test_a_job_that_was_taken_before_its_time_waits_for_it_again(store: Store, outcome: Outcome) -> None:
    later = postponed(NOON + HOUR)
    store.add([later])
    [early] = claim(store, now=NOON + HOUR).records

    settle(store, early, outcome)

    after = kept(store, later.id)
    assert (after.status, after.ready_at, after.rank) == (Status.POSTPONED, NOON + HOUR, later.rank)
    assert not claim(store, now=NOON + MINUTE).records
    assert ids(claim(store, now=NOON + HOUR).records) == [later.id]


def test_the_last_stack_of_an_attempt_is_kept(store: Store) -> None:
    record = running(store, a_record())
    stack = 'Main thread (most recent call first):\n  File "/app/é.py", line 12 in charge'
    run = Run(node="web-1", stack=stack)

    assert store.settle([settlement(record)._replace(after=ended(record, TimedOut(failure=BROKEN), run, NOON))], NOON)

    assert kept(store, record.id).attempts[-1].stack == stack


def test_outcomes_are_settled_in_one_thread_while_another_claims(store: Store) -> None:
    store.add([a_record() for _ in range(40)])
    first = claim(store, 10).records
    taken = [*first]
    with ThreadPoolExecutor(1) as thread:
        under_way = thread.submit(store.settle, [settlement(run) for run in first], NOON + SECOND)
        while more := claim(store, 10).records:
            taken += more
        assert under_way.result() == set(ids(first))

    assert len(set(ids(taken))) == 40
    assert sorted(record.status for record in all_kept(store)) == [Status.PROCESSING] * 30 + [Status.DONE] * 10
