"""What a node and its store tell each other, with a store that answers, does not, or whose answers are lost."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from bson import ObjectId

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.exchange import Exchange
from taskqueue.daemon.node.in_flight import InFlightRun
from taskqueue.daemon.node.manager_reports import ManagerReports
from taskqueue.daemon.node.prefetch import PREFETCH_BYTES, Prefetch
from taskqueue.daemon.protocol.messages import Ended, Progressed, RunsHandedBack, Started
from taskqueue.daemon.settings import Settings
from taskqueue.errors import StoreUnavailable
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.limits import Limit, lane
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import Cause, Holder, OnCrash, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.model.serializer import DATA_LIMIT
from taskqueue.store import ClaimRequest, Note, Store
from taskqueue.store.open import open_store

OURS = Holder(seat="web-1", incarnation="ours")
THEIRS = Holder(seat="web-2", incarnation="theirs")


class Failing:
    """The real store, of which some calls are refused, or carried out while the answer is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refused: set[str] = set()
        self.lost: set[str] = set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        return self._through(name, call) if callable(call) else call

    def _through(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def through(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if name in self.refused:
                raise StoreUnavailable("sqlite:///x", "is away", "wait")
            answer = call(*args, **kwargs)
            if name in self.lost:
                raise StoreUnavailable("sqlite:///x", "did not answer", "wait")
            return answer

        return through


class Bench:
    """One exchange on a store with faults, and the store itself."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.faults = Failing(store)
        self.prefetch = Prefetch(2)
        self.breaker = CircuitBreaker(lambda: None)
        configured = Settings(name="web-1", **settings)
        through = cast(Store, self.faults)
        self.exchange = Exchange(through, OURS, configured, self.prefetch, self.breaker)
        self.reports = ManagerReports(self.exchange.in_flight, configured, self.prefetch, store.now)

    def add(self, **fields: Any) -> Record:
        now = self.store.now()
        given = {"ready_at": now, **fields}
        record = Record(id=ObjectId(), job="app:Mail", created_at=now, **given).at_rank()
        [kept] = self.store.add([record])
        return kept

    def claim(self) -> list[Record]:
        self.exchange.wake()
        return self.exchange.claim()

    def in_flight_run(self, record: Record) -> InFlightRun:
        claim = self.exchange.in_flight.find(str(record.id), record.claims)
        assert claim is not None
        return claim

    def recover(self) -> None:
        self.faults.refused.clear()
        self.faults.lost.clear()
        while time.monotonic() < self.breaker.resume_at:
            time.sleep(0.01)

    def now(self, record: Record) -> Record:
        [found] = [kept for kept in self.store.find(EVERYTHING) if kept.id == record.id]
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(str(tmp_path / "jobs.db"))
    yield store
    store.close()


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store)


def test_nothing_is_asked_when_nothing_can_have_come(bench: Bench) -> None:
    assert bench.claim() == []
    before = len(bench.faults.calls)

    assert bench.exchange.claim() == []

    assert bench.faults.calls[before:] == []


def test_a_full_claim_makes_a_node_ask_again_and_a_short_one_does_not(bench: Bench) -> None:
    for _ in range(3):
        bench.add()
    first = bench.claim()
    assert len(first) == 2

    for record in first:
        bench.exchange.in_flight.finish(bench.in_flight_run(record), Done(), Run(node="web-1"), bench.store.now())
    assert [accepted for _, accepted in bench.exchange.settle()] == [True, True]
    assert len(bench.exchange.claim()) == 1
    assert bench.exchange.claim() == []


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
    assert bench.exchange.claim() == []

    bench.exchange.in_flight.finish(bench.in_flight_run(first), Done(), Run(node="web-1"), store.now())
    bench.exchange.settle()

    assert len(bench.exchange.claim()) == 1


def test_an_at_most_once_job_has_started_for_the_store_before_any_worker_hears_of_it(bench: Bench) -> None:
    record = bench.add(options=Options(on_crash=OnCrash.FAIL))

    bench.claim()

    assert bench.now(record).started_at is not None


def test_an_at_most_once_job_claimed_ahead_has_not_started_before_a_slot_is_free(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    once = Options(on_crash=OnCrash.FAIL)
    ordinary = [bench.add() for _ in range(2)]
    ahead = bench.add(options=once)

    assert {record.id for record in bench.claim()} == {record.id for record in ordinary}
    kept = bench.now(ahead)
    assert (kept.status, kept.started_at) == (Status.PROCESSING, None)

    first = bench.now(ordinary[0])
    bench.exchange.in_flight.finish(bench.in_flight_run(first), Done(), Run(node="web-1"), bench.store.now())
    assert [record.id for record in bench.exchange.claim()] == [ahead.id]
    assert bench.now(ahead).started_at is not None


def test_an_at_most_once_job_that_the_manager_had_is_never_run_again_when_that_dies(bench: Bench) -> None:
    record = bench.add(options=Options(on_crash=OnCrash.FAIL))
    assert len(bench.claim()) == 1

    bench.reports.on_manager_exit({})
    bench.exchange.settle()

    assert bench.now(record).status is Status.FAILED


def test_at_most_once_jobs_that_no_worker_has_heard_of_go_back(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    for _ in range(2):
        bench.add()
    ahead = bench.add(options=Options(on_crash=OnCrash.FAIL))
    bench.claim()
    assert bench.exchange.is_reserved(bench.in_flight_run(bench.now(ahead)))

    bench.exchange.hand_back_reserved()
    bench.exchange.settle()

    assert (bench.now(ahead).status, bench.now(ahead).attempts) == (Status.WAITING, ())


def test_a_start_that_cannot_be_written_down_is_no_start(bench: Bench) -> None:
    record = bench.add(options=Options(on_crash=OnCrash.FAIL))
    bench.faults.refused.add("note")
    assert bench.claim() == []
    bench.recover()

    assert [begun.id for begun in bench.exchange.claim()] == [record.id]


def test_an_outcome_is_kept_through_an_outage_and_settled_afterwards(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.exchange.in_flight.finish(
        bench.in_flight_run(claimed), Done(result="1"), Run(node="web-1"), bench.store.now()
    )
    bench.faults.refused.add("settle")

    assert bench.exchange.settle() == []
    assert bench.breaker.is_degraded
    bench.recover()
    [(_, accepted)] = bench.exchange.settle()

    assert accepted
    assert bench.now(record).status is Status.DONE


def test_an_outcome_of_a_lost_claim_is_refused(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    later = bench.store.now() + timedelta(minutes=5)
    other = Exchange(bench.store, THEIRS, Settings(name="web-2"), Prefetch(1), bench.breaker)
    bench.store.renew(OURS, bench.store.now() - timedelta(seconds=1), {})
    other.take_back_lost()
    bench.store.claim(THEIRS, ClaimRequest(pooled=1), bench.store.now(), later)

    bench.exchange.in_flight.finish(
        bench.in_flight_run(claimed), Done(result="1"), Run(node="web-1"), bench.store.now()
    )
    [(_, accepted)] = bench.exchange.settle()

    assert not accepted
    assert bench.now(record).holder == THEIRS


def test_a_claim_whose_answer_was_lost_is_handed_back(bench: Bench) -> None:
    record = bench.add()
    bench.faults.lost.add("claim")
    assert bench.claim() == []
    assert bench.now(record).status is Status.PROCESSING
    bench.recover()

    renewal = bench.exchange.renew()
    assert renewal is not None
    bench.exchange.hand_back_unknown(renewal)

    back = bench.now(record)
    assert (back.status, back.cause) == (Status.WAITING, Cause.HANDED_BACK)
    assert (back.failures, back.crashes) == (0, 0)


def test_news_is_told_with_a_renewal_and_kept_when_that_fails(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.reports.on_progressed(
        Progressed(
            id=str(claimed.id), claims=claimed.claims, progress=30, message="a third", state='"here"', at=time.time()
        )
    )
    bench.faults.refused.add("renew")
    assert bench.exchange.renew() is None
    bench.recover()
    assert bench.exchange.renew() is not None

    told = bench.now(record)
    assert (told.progress, told.progress_message, told.state) == (30, "a third", '"here"')


def test_news_between_renewals_is_told_without_one_and_kept_when_that_fails(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.reports.on_started(Started(id=str(claimed.id), claims=claimed.claims, pid=1, at=time.time()))
    bench.faults.refused.add("note")
    bench.exchange.send_notes()
    assert bench.now(record).started_at is None
    bench.recover()
    bench.exchange.send_notes()
    bench.exchange.send_notes()

    assert bench.now(record).started_at is not None
    assert bench.faults.calls.count("note") == 2


def test_what_earlier_holders_of_the_seat_left_is_taken_over_at_once(bench: Bench) -> None:
    dead = Holder(seat="web-1", incarnation="dead")
    unstarted, started = bench.add(), bench.add()
    now = bench.store.now()
    claim = bench.store.claim(dead, ClaimRequest(pooled=9), now, now + timedelta(hours=1))
    assert len(claim.records) == 2
    bench.store.note(dead, {started.id: Note(started_at=now)})

    assert bench.exchange.take_over() == 2

    assert (bench.now(unstarted).status, bench.now(unstarted).crashes) == (Status.WAITING, 0)
    assert (bench.now(started).status, bench.now(started).crashes) == (Status.WAITING, 1)


def test_a_retry_is_expected_when_it_becomes_due(bench: Bench) -> None:
    bench.add(options=Options(retry=FixedRetry(1, 60.0)))
    [claimed] = bench.claim()
    failed = Ended(
        id=str(claimed.id),
        claims=claimed.claims,
        outcome="Failed",
        fields={"failure": {"type": "ValueError", "message": "no", "traceback": "", "bases": ["Exception"]}},
        pid=1,
        started_at=time.time(),
        took=0.01,
    )
    bench.reports.on_ended(failed)
    bench.exchange.settle()

    due = bench.exchange.next_at
    assert due is not None
    assert timedelta(seconds=50) < due - bench.store.now() < timedelta(seconds=70)


def test_a_postponed_job_is_claimed_a_moment_ahead_and_begins_at_its_time(bench: Bench) -> None:
    bench.store.early_by = timedelta(hours=2)
    due = bench.store.now() + timedelta(hours=1)
    record = bench.add(status=Status.POSTPONED, ready_at=due)

    assert bench.claim() == []
    assert bench.exchange.claim_at == due - bench.store.early_by

    bench.exchange.wake_when_due()
    assert [taken.id for taken in bench.exchange.claim()] == [record.id]
    assert bench.exchange.begins_at == due


def test_a_job_that_is_due_far_ahead_stays_where_it_is_when_the_one_before_it_has_gone(bench: Bench) -> None:
    due = bench.store.now() + timedelta(hours=1)
    record = bench.add(status=Status.POSTPONED, ready_at=due)
    bench.claim()

    bench.exchange.wake_when_due()  # an alarm for a job that was canceled, or taken by another node

    assert bench.exchange.claim() == []
    assert bench.now(record).status is Status.POSTPONED
    assert bench.exchange.claim_at == due - bench.store.early_by


def test_what_cannot_be_taken_ahead_is_claimed_when_it_is_due(bench: Bench) -> None:
    bench.store.early_by = timedelta(hours=2)
    due = bench.store.now() + timedelta(hours=1)
    bench.add(status=Status.POSTPONED, ready_at=due, lane=lane([Limit(1)], "app:Mail", None))
    bench.claim()

    bench.exchange.wake_when_due()

    assert bench.exchange.claim() == []
    assert (bench.exchange.claim_at, bench.exchange.begins_at) == (due, None)


def test_an_at_most_once_job_that_is_taken_ahead_has_not_started_before_its_time(bench: Bench) -> None:
    bench.store.early_by = timedelta(hours=2)
    due = bench.store.now() + timedelta(hours=1)
    record = bench.add(status=Status.POSTPONED, ready_at=due, options=Options(on_crash=OnCrash.FAIL))
    bench.claim()

    bench.exchange.wake_when_due()
    bench.exchange.claim()

    assert bench.now(record).started_at == due


def test_reports_on_claims_that_are_no_longer_held_change_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    id = str(ObjectId())
    bench.reports.on_started(Started(id=id, claims=1, pid=1, at=time.time()))
    bench.reports.on_progressed(Progressed(id=id, claims=1, progress=1, message="", state=None, at=time.time()))
    bench.reports.on_handed_back(RunsHandedBack(runs=[[id, 1]]))
    bench.reports.on_ended(Ended(id=id, claims=1, outcome="Done", fields={}, pid=1, started_at=None))

    assert bench.exchange.settle() == []
    assert "no longer holds" in caplog.text


def test_runs_that_no_worker_began_go_back_uncounted(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.reports.on_handed_back(RunsHandedBack(runs=[[str(claimed.id), claimed.claims]]))
    bench.exchange.settle()

    back = bench.now(record)
    assert (back.status, back.attempts) == (Status.WAITING, ())


def test_when_the_manager_is_gone_started_runs_have_crashed_and_others_go_back(bench: Bench) -> None:
    started, begun, unstarted = bench.add(), bench.add(), bench.add()
    claimed = {record.id: record for record in bench.claim()}
    run = claimed[started.id]
    bench.reports.on_started(Started(id=str(run.id), claims=run.claims, pid=1, at=time.time()))
    at = time.time() - 3.0

    bench.reports.on_manager_exit({(str(begun.id), claimed[begun.id].claims): at, (str(unstarted.id), 0): at})
    bench.exchange.settle()

    assert bench.now(started).crashes == 1
    assert bench.now(begun).crashes == 1
    [attempt] = bench.now(begun).attempts
    assert attempt.started_at is not None
    assert abs(attempt.started_at.timestamp() - at) < 0.01
    assert bench.now(unstarted).crashes == 0
    assert bench.now(unstarted).status is Status.WAITING


def test_a_class_that_cannot_be_loaded_gets_the_patience_of_the_node(store: Store) -> None:
    bench = Bench(store, unroutable_after=0)
    record = bench.add()
    [claimed] = bench.claim()
    failure = {"type": "ModuleNotFoundError", "message": "no module", "traceback": "", "bases": []}
    bench.reports.on_ended(
        Ended(
            id=str(claimed.id),
            claims=claimed.claims,
            outcome="Unloadable",
            fields={"failure": failure},
            pid=1,
            started_at=None,
        )
    )
    bench.exchange.settle()

    assert bench.now(record).cause is Cause.UNLOADABLE
    assert bench.now(record).status is Status.FAILED


def test_what_cannot_be_read_is_ended_and_what_can_is_run(bench: Bench, tmp_path: Path) -> None:
    damaged, whole = bench.add(), bench.add()
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute("UPDATE jobs SET options = 'garbage' WHERE id = ?", (str(damaged.id),))

    assert [record.id for record in bench.claim()] == [whole.id]
    bench.exchange.settle()

    assert (bench.now(damaged).status, bench.now(damaged).cause) == (Status.FAILED, Cause.UNREADABLE)
    assert len(bench.exchange.in_flight) == 1


def large(bench: Bench, jobs: int) -> list[Record]:
    return [bench.add(data=f'"{"x" * (DATA_LIMIT - 4096)}"') for _ in range(jobs)]


def test_jobs_with_much_data_are_claimed_ahead_by_their_bytes(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    small = [bench.add() for _ in range(30)]
    jobs = large(bench, 12)

    claimed = bench.claim()

    assert [record.id for record in claimed] == [record.id for record in (*small, *jobs[:6])]
    assert bench.now(jobs[6]).status is Status.WAITING
    assert bench.exchange.in_flight.data > PREFETCH_BYTES


def test_a_claim_that_ended_with_its_bytes_is_followed_by_others(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    jobs = large(bench, 12)
    claimed = bench.claim()
    assert len(claimed) == 6
    assert bench.exchange.claim() == []  # enough is in flight

    for _ in range(2):
        for record in claimed:
            bench.exchange.in_flight.finish(bench.in_flight_run(record), Done(), Run(node="web-1"), bench.store.now())
        bench.exchange.settle()
        claimed = bench.exchange.claim()

    assert {bench.now(job).status for job in jobs} == {Status.DONE}
    assert (claimed, bench.exchange.in_flight.data) == ([], 0)


def test_the_free_slots_are_filled_whatever_is_in_flight(bench: Bench) -> None:
    bench.prefetch.run_took(0.001)
    own = [bench.add(data=f'"{"x" * DATA_LIMIT * 3}"') for _ in range(3)]

    assert [record.id for record in bench.claim()] == [own[0].id, own[1].id]
