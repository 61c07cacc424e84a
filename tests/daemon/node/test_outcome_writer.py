"""Settling outcomes and renewing claims, with a store that answers, does not, or whose answers are lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue.daemon.node.host_watch import Rescuer
from taskqueue.daemon.protocol.messages import Progressed, Started
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.lifecycle.outcomes import Crashed, Done, Failed, Outcome, Run
from taskqueue.model.limits import with_concurrency
from taskqueue.model.record import Cause, Failure, Options, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import ClaimRequest
from tests.daemon.node.conftest import OURS, THEIRS, Bench


def test_an_outcome_is_kept_through_an_outage_and_settled_afterwards(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.in_flight.finish(bench.in_flight_run(claimed), Done(result="1"), Run(node="web-1"), bench.store.now())
    bench.faults.refused.add("settle")

    assert bench.outcome_writer.settle() == []
    assert bench.breaker.is_degraded
    bench.recover()
    [(_, accepted)] = bench.outcome_writer.settle()

    assert accepted
    assert bench.now(record).status is Status.DONE


def test_failed_attempts_of_the_last_hour_are_counted_also_of_jobs_that_are_retried(bench: Bench) -> None:
    broken = Failed(failure=Failure(type="KeyError", message="vat"))
    again = Options(retry=FixedRetry(times=1, interval=60))
    attempts: list[tuple[Options, Outcome]] = [(Options(), broken), (again, broken), (Options(), Done(result="1"))]
    for options, outcome in attempts:
        bench.add(options=options)
        [claimed] = bench.claim()
        bench.in_flight.finish(bench.in_flight_run(claimed), outcome, Run(node="web-1"), bench.store.now())
        [(_, accepted)] = bench.outcome_writer.settle()
        assert accepted

    assert bench.context.figures.failed_in_hour() == 2


def test_an_outcome_of_a_lost_claim_is_refused(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    later = bench.store.now() + timedelta(minutes=5)
    other = Rescuer(replace(bench.context, store=bench.store, holder=THEIRS), bench.clock_watch, lambda _: None)
    bench.store.renew(OURS, bench.store.now() - timedelta(seconds=1), {})
    other.rescue_expired()
    bench.store.claim(THEIRS, ClaimRequest(pooled=1), bench.store.now(), later)

    bench.in_flight.finish(bench.in_flight_run(claimed), Done(result="1"), Run(node="web-1"), bench.store.now())
    [(_, accepted)] = bench.outcome_writer.settle()

    assert not accepted
    assert bench.now(record).holder == THEIRS


def test_a_claim_whose_answer_was_lost_is_handed_back(bench: Bench) -> None:
    record = bench.add()
    bench.faults.lost.add("claim")
    assert bench.claim() == []
    assert bench.now(record).status is Status.PROCESSING
    bench.recover()

    renewal = bench.outcome_writer.renew()
    assert renewal is not None
    bench.outcome_writer.hand_back_unknown(renewal)

    back = bench.now(record)
    assert (back.status, back.cause) == (Status.WAITING, Cause.HANDED_BACK)
    assert (back.failures, back.crashes) == (0, 0)


def test_news_is_told_with_a_renewal_and_kept_when_that_fails(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.in_flight.on_progressed(
        Progressed(
            id=str(claimed.id), claims=claimed.claims, progress=30, message="a third", state='"here"', at=boottime()
        )
    )
    bench.faults.refused.add("renew")
    assert bench.outcome_writer.renew() is None
    bench.recover()
    assert bench.outcome_writer.renew() is not None

    told = bench.now(record)
    assert (told.progress, told.progress_message, told.state) == (30, "a third", '"here"')


def test_news_between_renewals_is_told_without_one_and_kept_when_that_fails(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.in_flight.on_started(Started(id=str(claimed.id), claims=claimed.claims, pid=1, at=boottime()))
    bench.faults.refused.add("note")
    bench.outcome_writer.send_notes()
    assert bench.now(record).started_at is None
    bench.recover()
    bench.outcome_writer.send_notes()
    bench.outcome_writer.send_notes()

    assert bench.now(record).started_at is not None
    assert bench.faults.calls.count("note") == 2


def test_a_crash_of_many_runs_is_one_warning_and_a_line_at_info_for_each_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskqueue.runs")
    for _ in range(3):
        bench.add(lane=with_concurrency("", "app:Mail", 3), options=Options(concurrency=3))
    crash = Crashed(failure=Failure(type="taskqueue.WorkerCrashed", message="worker 7 was killed by SIGKILL"))
    for record in bench.claim():
        run = Run(node="web-1", pid=7, started_at=bench.store.now())
        bench.in_flight.finish(bench.in_flight_run(record), crash, run, bench.store.now())

    bench.outcome_writer.settle()

    [first, *others] = caplog.records
    assert first.levelname == "WARNING"
    assert "WorkerCrashed: worker 7 was killed by SIGKILL; it runs again" in first.getMessage()
    assert [one.levelname for one in others] == ["INFO", "INFO"]
    assert all(one.getMessage().startswith("app:Mail crashed with the same worker; it runs") for one in others)
