"""Claiming jobs: when the node asks the store, for how many jobs, and which of them it sends to workers."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskqueue.daemon.node.fetcher import UNCOUNTED_CLAIMS
from taskqueue.daemon.protocol.messages import Ended, RunsHandedBack
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.daemon.runtime.prefetch import PREFETCH_BYTES
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.limits import Limit, lane, with_concurrency
from taskqueue.model.record import Cause, OnCrash, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.model.serializer import DATA_LIMIT
from taskqueue.store import ClaimRequest, Store
from tests.daemon.node.conftest import THEIRS, Bench


def test_nothing_is_asked_when_nothing_can_have_come(bench: Bench) -> None:
    assert bench.claim() == []
    before = len(bench.faults.calls)

    assert bench.fetcher.claim() == []

    assert bench.faults.calls[before:] == []


def test_a_claim_is_logged_with_its_reason(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "taskqueue")

    bench.fetcher.wake("the bell of new work rang")
    bench.fetcher.claim()
    bench.fetcher.claim()

    assert caplog.messages == ["claiming up to 2 jobs: the bell of new work rang"]


def test_a_full_claim_makes_a_node_ask_again_and_a_short_one_does_not(bench: Bench) -> None:
    for _ in range(3):
        bench.add()
    first = bench.claim()
    assert len(first) == 2

    for record in first:
        bench.in_flight.finish(bench.in_flight_run(record), Done(), Run(node="web-1"), bench.store.now())
    assert [accepted for _, accepted in bench.outcome_writer.settle()] == [True, True]
    assert len(bench.fetcher.claim()) == 1
    assert bench.fetcher.claim() == []


def test_forced_jobs_are_claimed_beyond_the_pool(bench: Bench) -> None:
    for _ in range(2):
        bench.add()
    forced = [bench.add(options=Options(force_spawn=True)) for _ in range(3)]

    claimed = bench.claim()

    assert {record.id for record in forced} < {record.id for record in claimed}
    assert len(claimed) == 5


def test_a_bounded_queue_is_looked_at_again_when_one_of_its_jobs_ends(store: Store) -> None:
    bench = Bench(store, queues={"mail": 1})
    bench.add(queue="mail")
    bench.add(queue="mail")
    [first] = bench.claim()
    assert bench.fetcher.claim() == []

    bench.in_flight.finish(bench.in_flight_run(first), Done(), Run(node="web-1"), store.now())
    bench.outcome_writer.settle()

    assert len(bench.fetcher.claim()) == 1


def test_an_at_most_once_job_has_started_for_the_store_before_any_worker_hears_of_it(bench: Bench) -> None:
    record = bench.add(options=Options(on_crash=OnCrash.FAIL))

    bench.claim()

    assert bench.now(record).started_at is not None


def test_a_job_that_was_lost_again_and_again_has_started_for_the_store_before_a_worker_hears_of_it(
    bench: Bench,
) -> None:
    record, other = bench.add(), bench.add()
    for _ in range(UNCOUNTED_CLAIMS):
        now = bench.store.now()
        bench.store.claim(THEIRS, ClaimRequest(pooled=1), now, now - timedelta(seconds=1))
        bench.rescuer.rescue_expired()

    assert {one.id for one in bench.claim()} == {record.id, other.id}
    assert bench.now(record).started_at is not None  # or a job that kills its node at once would do so for ever
    assert bench.now(other).started_at is None


def test_an_at_most_once_job_claimed_ahead_has_not_started_before_a_slot_is_free(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    once = Options(on_crash=OnCrash.FAIL)
    ordinary = [bench.add() for _ in range(2)]
    ahead = bench.add(options=once)

    assert {record.id for record in bench.claim()} == {record.id for record in ordinary}
    kept = bench.now(ahead)
    assert (kept.status, kept.started_at) == (Status.PROCESSING, None)

    first = bench.now(ordinary[0])
    bench.in_flight.finish(bench.in_flight_run(first), Done(), Run(node="web-1"), bench.store.now())
    assert [record.id for record in bench.fetcher.claim()] == [ahead.id]
    assert bench.now(ahead).started_at is not None


def test_an_at_most_once_job_that_the_manager_had_is_never_run_again_when_that_dies(bench: Bench) -> None:
    record = bench.add(options=Options(on_crash=OnCrash.FAIL))
    assert len(bench.claim()) == 1

    bench.in_flight.on_manager_exit({})
    bench.outcome_writer.settle()

    assert bench.now(record).status is Status.FAILED


def test_at_most_once_jobs_that_no_worker_has_heard_of_go_back(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    for _ in range(2):
        bench.add()
    ahead = bench.add(options=Options(on_crash=OnCrash.FAIL))
    bench.claim()
    assert bench.fetcher.is_reserved(bench.in_flight_run(bench.now(ahead)))

    bench.fetcher.hand_back_reserved()
    bench.outcome_writer.settle()

    assert (bench.now(ahead).status, bench.now(ahead).attempts) == (Status.WAITING, ())


def test_a_start_that_cannot_be_written_down_is_no_start(bench: Bench) -> None:
    record = bench.add(options=Options(on_crash=OnCrash.FAIL))
    bench.faults.refused.add("note")
    assert bench.claim() == []
    bench.recover()

    assert [begun.id for begun in bench.fetcher.claim()] == [record.id]


def test_a_retry_is_expected_when_it_becomes_due(bench: Bench) -> None:
    bench.add(options=Options(retry=FixedRetry(1, 60.0)))
    [claimed] = bench.claim()
    failed = Ended(
        id=str(claimed.id),
        claims=claimed.claims,
        outcome="Failed",
        fields={"failure": {"type": "ValueError", "message": "no", "traceback": "", "bases": ["Exception"]}},
        pid=1,
        started_at=boottime(),
        took=0.01,
    )
    bench.in_flight.on_ended(failed)
    bench.outcome_writer.settle()

    due = bench.fetcher.next_at
    assert due is not None
    assert timedelta(seconds=50) < due - bench.store.now() < timedelta(seconds=70)


def test_a_postponed_job_is_claimed_a_moment_ahead_and_begins_at_its_time(bench: Bench) -> None:
    bench.store.early_by = timedelta(hours=2)
    due = bench.store.now() + timedelta(hours=1)
    record = bench.add(status=Status.POSTPONED, ready_at=due)

    assert bench.claim() == []
    assert bench.fetcher.claim_at == due - bench.store.early_by

    bench.fetcher.wake_when_due()
    assert [taken.id for taken in bench.fetcher.claim()] == [record.id]
    assert bench.fetcher.begins_at == due


def test_a_job_that_is_due_far_ahead_stays_where_it_is_when_the_one_before_it_has_gone(bench: Bench) -> None:
    due = bench.store.now() + timedelta(hours=1)
    record = bench.add(status=Status.POSTPONED, ready_at=due)
    bench.claim()

    bench.fetcher.wake_when_due()  # an alarm for a job that was canceled, or taken by another node

    assert bench.fetcher.claim() == []
    assert bench.now(record).status is Status.POSTPONED
    assert bench.fetcher.claim_at == due - bench.store.early_by


def test_what_cannot_be_taken_ahead_is_claimed_when_it_is_due(bench: Bench) -> None:
    bench.store.early_by = timedelta(hours=2)
    due = bench.store.now() + timedelta(hours=1)
    bench.add(status=Status.POSTPONED, ready_at=due, lane=lane([Limit(1)], "app:Mail", None))
    bench.claim()

    bench.fetcher.wake_when_due()

    assert bench.fetcher.claim() == []
    assert (bench.fetcher.claim_at, bench.fetcher.begins_at) == (due, None)


def test_an_at_most_once_job_that_is_taken_ahead_has_not_started_before_its_time(bench: Bench) -> None:
    bench.store.early_by = timedelta(hours=2)
    due = bench.store.now() + timedelta(hours=1)
    record = bench.add(status=Status.POSTPONED, ready_at=due, options=Options(on_crash=OnCrash.FAIL))
    bench.claim()

    bench.fetcher.wake_when_due()
    bench.fetcher.claim()

    assert bench.now(record).started_at == due


def test_what_cannot_be_read_is_ended_and_what_can_is_run(bench: Bench, tmp_path: Path) -> None:
    damaged, whole = bench.add(), bench.add()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute("UPDATE jobs SET options = 'garbage' WHERE id = ?", (str(damaged.id),))

    assert [record.id for record in bench.claim()] == [whole.id]
    bench.outcome_writer.settle()

    assert (bench.now(damaged).status, bench.now(damaged).cause) == (Status.FAILED, Cause.UNREADABLE)
    assert len(bench.in_flight) == 1


def large(bench: Bench, jobs: int) -> list[Record]:
    return [bench.add(data=f'"{"x" * (DATA_LIMIT - 4096)}"') for _ in range(jobs)]


def test_jobs_with_much_data_are_claimed_ahead_by_their_bytes(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    small = [bench.add() for _ in range(30)]
    jobs = large(bench, 12)

    claimed = bench.claim()

    assert [record.id for record in claimed] == [record.id for record in (*small, *jobs[:6])]
    assert bench.now(jobs[6]).status is Status.WAITING
    assert bench.in_flight.data > PREFETCH_BYTES


def test_a_claim_that_ended_with_its_bytes_is_followed_by_others(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    jobs = large(bench, 12)
    claimed = bench.claim()
    assert len(claimed) == 6
    assert bench.fetcher.claim() == []  # enough is in flight

    for _ in range(2):
        for record in claimed:
            bench.in_flight.finish(bench.in_flight_run(record), Done(), Run(node="web-1"), bench.store.now())
        bench.outcome_writer.settle()
        claimed = bench.fetcher.claim()

    assert {bench.now(job).status for job in jobs} == {Status.DONE}
    assert (claimed, bench.in_flight.data) == ([], 0)


def test_the_free_slots_are_filled_whatever_is_in_flight(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    own = [bench.add(data=f'"{"x" * DATA_LIMIT * 3}"') for _ in range(3)]

    assert [record.id for record in bench.claim()] == [own[0].id, own[1].id]


def concurrent(bench: Bench, at_once: int = 3, **options: Any) -> Record:
    """Add a job of a class of which one worker runs so many at once."""
    return bench.add(lane=with_concurrency("", "app:Mail", at_once), options=Options(concurrency=at_once, **options))


def test_jobs_with_concurrency_are_claimed_for_free_run_slots(bench: Bench) -> None:
    for _ in range(8):
        concurrent(bench)
    pooled = [bench.add() for _ in range(3)]

    first = bench.claim()
    assert len(first) == 3 + 2
    assert {record.id for record in pooled[:2]} < {record.id for record in first}
    assert bench.claim() == []

    ended(bench, next(record for record in first if record.lane), took=1.0)
    assert len(bench.claim()) == 1


def test_more_of_them_are_prefetched_while_runs_are_short(bench: Bench) -> None:
    for _ in range(10):
        concurrent(bench)
    first = bench.claim()
    ended(bench, first[0], took=0.001)

    assert len(first) == 3
    assert len(bench.claim()) == 4  # with the two that run twice as many as there are slots


def test_those_that_come_back_are_not_prefetched_again(bench: Bench) -> None:
    for _ in range(10):
        concurrent(bench)
    first = bench.claim()
    ended(bench, first[0], took=0.001)
    [*_, last] = bench.claim()
    bench.in_flight.on_handed_back(RunsHandedBack(runs=[[str(last.id), last.claims]]))
    bench.outcome_writer.settle()

    assert bench.claim() == []


def test_a_short_run_lets_them_be_prefetched_again_after_some_came_back(bench: Bench) -> None:
    for _ in range(10):
        concurrent(bench)
    first = bench.claim()
    ended(bench, first[0], took=0.001)
    [*_, last] = bench.claim()
    bench.in_flight.on_handed_back(RunsHandedBack(runs=[[str(last.id), last.claims]]))
    bench.outcome_writer.settle()
    for record in first[1:]:
        ended(bench, record, took=0.001)

    assert len(bench.claim()) == 3  # with the three that were prefetched six


def test_at_most_once_jobs_with_concurrency_begin_for_free_run_slots(bench: Bench) -> None:
    for _ in range(4):
        concurrent(bench, on_crash=OnCrash.FAIL)

    first = bench.claim()
    assert len(first) == 3
    assert all(record.started_at for record in map(bench.now, first))
    ended(bench, first[0], took=0.001)
    assert len(bench.claim()) == 1


def ended(bench: Bench, record: Record, took: float) -> None:
    """Report and settle the end of a run."""
    bench.in_flight.on_ended(
        Ended(
            id=str(record.id),
            claims=record.claims,
            outcome="Done",
            fields={"result": "null"},
            pid=1,
            started_at=None,
            took=took,
        )
    )
    bench.outcome_writer.settle()
