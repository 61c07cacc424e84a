"""What a node counts: bounded names, outcomes by what became of the job, and why workers were replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskqueue.daemon.node.dispatcher import OutcomeWriter
from taskqueue.daemon.node.figures import NEW_FOR, RUN_BOUNDS, START_BOUNDS, Figures, Histogram, StoreCounters, copied
from taskqueue.daemon.protocol.messages import EndKind, WorkerChanged
from taskqueue.insight.overview import bounded_tally
from taskqueue.model.history import MOST_CLASSES, OTHER
from taskqueue.model.lifecycle.outcomes import Crashed, Done, HandedBack, Run
from taskqueue.model.promise import Promise
from taskqueue.model.record import Failure, Options, Status
from taskqueue.model.schedules.origin import FromSchedule
from tests.daemon.node.conftest import Bench
from tests.store.records import HOUR, NOON


def finished(bench: Bench, figures: Figures, outcome: Done | Crashed | HandedBack, **fields: Any) -> None:
    """Have one job added, claimed and ended, and its end counted."""
    bench.add(**fields)
    for record in bench.claim():
        claim = bench.in_flight_run(record)
        claim.took, claim.began_at = 0.02, bench.store.now()
        started_at = None if isinstance(outcome, HandedBack) else claim.began_at
        bench.in_flight.finish(claim, outcome, Run(node="web-1", started_at=started_at), bench.store.now())
    figures.settled(bench.outcome_writer.settle())


def test_runs_are_counted_by_class_queue_and_outcome(bench: Bench) -> None:
    figures = Figures()
    finished(bench, figures, Done(result="1"), queue="mail")
    finished(bench, figures, Crashed(failure=Failure(type="X", message="")), queue="mail")
    assert dict(figures.runs) == {("app:Mail", "mail", "done"): 1, ("app:Mail", "mail", "crashed"): 1}
    assert figures.crashes == 1
    bounds, counts, total = copied(figures.run_times)["app:Mail"]
    assert (sum(counts), counts[bounds.index(0.05)], total) == (2, 2, 0.04)
    assert sum(copied(figures.start_delays)["mail"][1]) == 2


def test_a_class_that_declares_a_name_is_counted_by_it(bench: Bench) -> None:
    figures = Figures()
    finished(bench, figures, Done(result="1"), options=Options(name="Send an invoice"))

    assert dict(figures.runs) == {("Send an invoice", "default", "done"): 1}
    assert list(copied(figures.run_times)) == ["Send an invoice"]


def test_added_jobs_count_from_the_first_look_on_each_minute_once() -> None:
    counters = StoreCounters()

    def look(*rows: tuple[int, str, str, int]) -> tuple[dict[str, int], dict[str, int]]:
        counters.look(rows)
        return counters.shown("added"), counters.shown("expired")

    for _ in range(NEW_FOR):
        assert look((0, "added", "mail", 5)) == ({"mail": 0}, {})
    assert look((0, "added", "mail", 7), (60, "added", "mail", 1)) == ({"mail": 3}, {})
    for _ in range(NEW_FOR):
        assert look((60, "added", "mail", 1), (60, "expired", "mail", 2)) == ({"mail": 3}, {"mail": 0})
    assert look((60, "added", "mail", 2), (60, "expired", "mail", 2)) == ({"mail": 4}, {"mail": 2})
    counters.forget()
    assert look((120, "added", "mail", 50)) == ({"mail": 4}, {"mail": 2})


def test_the_counts_of_a_new_queue_are_0_for_all_who_read_them_in_the_first_minute() -> None:
    counters = StoreCounters()
    counters.look([])
    for _ in range(NEW_FOR):
        counters.look([(0, "added", "new", 9)])
        assert [counters.shown("added") for _ in range(3)] == [{"new": 0}] * 3

    counters.look([(0, "added", "new", 9)])
    assert counters.shown("added") == {"new": 9}


def test_queues_with_added_jobs_are_bounded() -> None:
    counters = StoreCounters()
    for _ in range(2):
        counters.look((0, "added", f"q{number}", 1) for number in range(MOST_CLASSES + 7))

    assert (len(counters.shown("added")), OTHER in counters.shown("added")) == (MOST_CLASSES + 1, True)


def test_a_refused_outcome_is_no_run(bench: Bench) -> None:
    figures = Figures()
    bench.add()
    [record] = bench.claim()
    claim = bench.in_flight_run(record)
    bench.in_flight.finish(claim, Done(result="1"), Run(node="web-1"), bench.store.now())
    bench.in_flight.take_unsettled()
    figures.settled([(claim, False)])
    finished(bench, figures, HandedBack())
    assert (figures.refused_outcomes, dict(figures.runs)) == (1, {})


@pytest.mark.parametrize("counts_runs", [False, True])
def test_runs_are_counted_for_metrics_alone(bench: Bench, counts_runs: bool) -> None:
    figures = Figures(counts_runs=counts_runs)
    outcome_writer = OutcomeWriter(replace(bench.context, figures=figures), bench.in_flight, bench.fetcher)
    bench.add()
    [record] = bench.claim()
    bench.in_flight.finish(bench.in_flight_run(record), Done(result="1"), Run(node="web-1"), bench.store.now())
    outcome_writer.settle()
    assert len(figures.runs) == counts_runs


def test_classes_and_queues_beyond_the_bound_are_others(bench: Bench) -> None:
    figures = Figures()
    for number in range(MOST_CLASSES + 5):
        finished(bench, figures, Done(result="1"), job=f"app:Job{number}", queue=f"q{number}")
    finished(bench, figures, Done(result="1"), job="app:Job0", queue="q0")
    assert len(figures.runs) == MOST_CLASSES + 1
    assert figures.runs[OTHER, OTHER, "done"] == 5
    assert figures.runs["app:Job0", "q0", "done"] == 2


def test_queues_beyond_the_bound_are_added_up() -> None:
    jobs = {(f"queue-{number:04}", Status.WAITING): 2 for number in range(MOST_CLASSES + 3)}
    rows = bounded_tally(jobs)
    assert len(rows) == MOST_CLASSES + 1
    assert rows[OTHER, "waiting"] == 6


@pytest.mark.parametrize("kind", EndKind)
def test_the_end_of_a_worker_is_counted_by_its_kind_whatever_its_words(kind: EndKind) -> None:
    figures = Figures()
    figures.worker_changed(WorkerChanged(pid=1))
    figures.worker_changed(WorkerChanged(pid=1, exit="exited with 0", kind=kind, reason="it had nothing to do"))
    assert (figures.spawns, dict(figures.replacements)) == (1, {kind.value: 1})


def test_a_value_on_a_bound_is_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 9.0):
        histogram.add(value)
    assert (histogram.counts, histogram.total) == ([1, 1, 1], 11.5)


def test_jobs_of_a_class_with_a_promise_are_judged(bench: Bench) -> None:
    figures = Figures()
    prompt, slow = Options(begin_within=3600.0, promise=0.9), Options(begin_within=0.001)
    finished(bench, figures, Done(result="1"), options=prompt)
    finished(bench, figures, Crashed(failure=Failure(type="X", message="")), options=prompt)
    finished(bench, figures, Done(result="1"), options=replace(slow, name="Slow"), ready_at=bench.store.now() - HOUR)
    finished(bench, figures, HandedBack(), options=prompt)  # counts when it has run, the next time
    finished(bench, figures, Done(result="1"), job="app:Other")

    counted = {job: (judged.promise, judged.number, judged.late) for job, judged in figures.promises.items()}
    assert counted == {"app:Mail": (Promise(0.9, 3600.0), 3, 0), "Slow": (Promise(0.99, 0.001), 1, 1)}


def test_the_last_success_of_a_schedule_is_noted(bench: Bench) -> None:
    figures = Figures()
    nightly, hourly = (FromSchedule(schedule=name, slot=NOON) for name in ("nightly", "hourly"))
    finished(bench, figures, Done(result="1"), origin=nightly)
    finished(bench, figures, Crashed(failure=Failure(type="X", message="")), origin=hourly)

    assert list(figures.schedule_successes) == ["nightly"]


@pytest.mark.parametrize("bounds", [START_BOUNDS, RUN_BOUNDS])
def test_histograms_measure_objectives_of_5_15_and_30_seconds(bounds: tuple[float, ...]) -> None:
    assert {1, 5, 15, 30, 60, 120, 600} <= {*bounds}
    assert sorted(bounds) == list(bounds)
