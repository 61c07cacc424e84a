"""The table of what a node has in flight: news is told once, outcomes stay until they are settled."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from bson import ObjectId

from taskqueue.daemon.node.in_flight import MOST_SETTLED, InFlight, InFlightRun
from taskqueue.daemon.protocol.messages import Ended, Progressed, RunsHandedBack, Started
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.daemon.runtime.prefetch import Prefetch
from taskqueue.daemon.settings import Settings
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.lifecycle.pending import claimed
from taskqueue.model.limits import Rate, lane, limit_keys_of
from taskqueue.model.record import Cause, Holder, Options, Record, Status
from taskqueue.model.timestamps import MILLISECOND
from taskqueue.store import ClaimState, Renewal, Store
from tests.daemon.node.conftest import Bench

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
HOLDER = Holder(seat="a", incarnation="1")


def a_claim(queue: str = "default", force_spawn: bool = False) -> Record:
    record = Record(
        id=ObjectId(),
        job="jobs:Mail",
        queue=queue,
        options=Options(force_spawn=force_spawn),
        created_at=NOON,
        ready_at=NOON,
    ).at_rank()
    return claimed(record, HOLDER, NOON + timedelta(seconds=30))


def an_empty_table() -> InFlight:
    return InFlight(Settings(name="a"), Prefetch(2), lambda: NOON)


def held_of(in_flight: InFlight, record: Record) -> InFlightRun:
    claim = in_flight.find(str(record.id), record.claims)
    assert claim is not None
    return claim


def test_claims_of_forced_jobs_take_no_slot_of_the_pool() -> None:
    in_flight = an_empty_table()
    in_flight.add([a_claim(), a_claim(force_spawn=True)])

    assert (len(in_flight), in_flight.pooled, in_flight.forced) == (2, 1, 1)


def test_a_pause_between_the_reads_of_two_clocks_shifts_no_start() -> None:
    pauses = [0.2, 0.2]

    def now() -> datetime:
        read = datetime.now(timezone.utc)
        if pauses:
            threading.Event().wait(pauses.pop())
        return read

    in_flight = InFlight(Settings(name="a"), Prefetch(2), now)
    record = a_claim()
    in_flight.add([record])
    earliest, at, latest = datetime.now(timezone.utc), boottime(), datetime.now(timezone.utc)
    in_flight.on_started(Started(id=str(record.id), claims=record.claims, pid=1, at=at))

    note = held_of(in_flight, record).note
    assert note is not None
    assert note.started_at is not None
    assert timedelta(seconds=-0.1) < note.started_at - earliest
    assert note.started_at - latest < timedelta(seconds=0.1)


def test_a_run_began_as_long_ago_as_it_has_taken_wherever_a_clock_was_set() -> None:
    in_flight = an_empty_table()  # its clock has stood since NOON
    record = a_claim()
    in_flight.add([record])
    at = boottime() - 3.0
    in_flight.on_started(Started(id=str(record.id), claims=record.claims, pid=1, at=at))
    ago = timedelta(seconds=boottime() - at)

    note = held_of(in_flight, record).note
    assert note is not None
    assert note.started_at is not None
    assert timedelta(seconds=3) - MILLISECOND <= NOON - note.started_at <= ago + MILLISECOND


def test_a_bounded_queue_has_room_for_what_is_not_held_of_it() -> None:
    in_flight = an_empty_table()
    in_flight.add([a_claim("mail"), a_claim("mail"), a_claim("other")])

    assert in_flight.room_by_queue({"mail": 3, "reports": 2, "other": None}) == {"mail": 1, "reports": 2, "other": None}
    assert in_flight.room_by_queue({"mail": 1}) == {"mail": 0}


def test_a_claim_is_found_by_its_fence_only() -> None:
    in_flight = an_empty_table()
    record = a_claim()
    in_flight.add([record])

    assert in_flight.find(str(record.id), record.claims) is not None
    assert in_flight.find(str(record.id), record.claims + 1) is None
    assert in_flight.find(str(ObjectId()), 1) is None


def test_news_is_gathered_and_told_once() -> None:
    in_flight = an_empty_table()
    record = a_claim()
    in_flight.add([record])
    claim = held_of(in_flight, record)

    in_flight.note(claim, started_at=NOON)
    in_flight.note(claim, progress=10, progress_message="a tenth", progress_at=NOON)
    in_flight.note(claim, progress=20, progress_message="a fifth", progress_at=NOON)
    in_flight.note(claim, state='"here"')

    notes = in_flight.take_notes()[record.id]
    assert (notes.started_at, notes.progress, notes.progress_message, notes.state) == (NOON, 20, "a fifth", '"here"')
    assert not in_flight.with_notes
    assert in_flight.take_notes() == {}


def test_news_that_could_not_be_told_is_kept_and_what_came_later_wins() -> None:
    in_flight = an_empty_table()
    record = a_claim()
    in_flight.add([record])
    claim = held_of(in_flight, record)
    in_flight.note(claim, state='"early"')
    in_flight.note(claim, progress=10, progress_message="", progress_at=NOON)
    untold = in_flight.take_notes()
    in_flight.note(claim, state='"late"')

    in_flight.keep_notes(untold)

    notes = in_flight.take_notes()[record.id]
    assert (notes.state, notes.progress) == ('"late"', 10)


def test_news_of_a_job_that_has_ended_meanwhile_is_dropped() -> None:
    in_flight = an_empty_table()
    record = a_claim()
    in_flight.add([record])
    claim = held_of(in_flight, record)
    in_flight.note(claim, started_at=NOON)
    untold = in_flight.take_notes()
    in_flight.finish(claim, Done(), Run(node="a"), NOON)

    in_flight.keep_notes(untold)

    assert not in_flight.with_notes


def test_an_outcome_waits_until_it_is_settled() -> None:
    in_flight = an_empty_table()
    record = a_claim(force_spawn=True)
    in_flight.add([record])
    in_flight.finish(held_of(in_flight, record), Done(result="1"), Run(node="a"), NOON)

    unsettled = in_flight.take_unsettled()
    assert [claim.finished and claim.finished.status for claim in unsettled] == [Status.DONE]
    assert (len(in_flight), in_flight.forced) == (0, 0)

    in_flight.keep_unsettled(unsettled)
    assert in_flight.unsettled == unsettled


@pytest.mark.parametrize("is_stop_requested", [True, False])
def test_an_interruption_needs_no_other_reason_when_the_node_is_asked_to_stop(is_stop_requested: bool) -> None:
    in_flight, record = an_empty_table(), a_claim()
    in_flight.add([record])
    in_flight.is_stop_requested = is_stop_requested
    fields = {"failure": {"type": "taskqueue.Interrupted", "message": "a SIGTERM that its node did not send"}}

    in_flight.on_ended(Ended(str(record.id), record.claims, "Interrupted", fields, pid=1, started_at=boottime()))

    [claim] = in_flight.take_unsettled()
    assert claim.finished is not None
    [attempt] = claim.finished.attempts
    assert (attempt.outcome, attempt.error is None) == ("Interrupted", is_stop_requested)


def test_more_outcomes_than_one_call_settles_are_taken_one_after_the_other() -> None:
    in_flight = an_empty_table()
    records = [a_claim() for _ in range(MOST_SETTLED + 1)]
    in_flight.add(records)
    for record in records:
        in_flight.finish(held_of(in_flight, record), Done(result="1"), Run(node="a"), NOON)

    first = in_flight.take_unsettled()
    in_flight.keep_unsettled(first)
    taken = [in_flight.take_unsettled(), in_flight.take_unsettled(), in_flight.take_unsettled()]

    assert [len(some) for some in taken] == [MOST_SETTLED, 1, 0]
    assert [claim.record.id for some in taken for claim in some] == [record.id for record in records]


def test_a_cancel_request_that_came_while_the_job_ran_decides_over_another_run() -> None:
    in_flight = an_empty_table()
    record = replace(a_claim(), started_at=NOON)
    in_flight.add([record])
    claim = held_of(in_flight, record)
    request = ClaimState(claims=record.claims, cancel_reason="not needed")
    assert list(in_flight.to_stop(Renewal(claims={record.id: request}, others_end_at=None))) == [(claim, "cancel")]

    in_flight.hand_back(claim)

    [back] = in_flight.take_unsettled()
    assert back.finished is not None
    assert back.finished.status is Status.CANCELED


def test_reports_on_claims_that_are_no_longer_held_change_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    id = str(ObjectId())
    bench.in_flight.on_started(Started(id=id, claims=1, pid=1, at=boottime()))
    bench.in_flight.on_progressed(Progressed(id=id, claims=1, progress=1, at=boottime()))
    bench.in_flight.on_handed_back(RunsHandedBack(runs=[[id, 1]]))
    bench.in_flight.on_ended(Ended(id=id, claims=1, outcome="Done", fields={}, pid=1, started_at=None))

    assert bench.outcome_writer.settle() == []
    [dropped] = caplog.records
    assert dropped.getMessage() == "dropped the outcome of a job that this node no longer holds"
    assert vars(dropped)["job_id"] == id


def test_runs_that_no_worker_began_go_back_uncounted(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.in_flight.on_handed_back(RunsHandedBack(runs=[[str(claimed.id), claimed.claims]]))
    bench.outcome_writer.settle()

    back = bench.now(record)
    assert (back.status, back.attempts) == (Status.WAITING, ())


def test_when_the_manager_is_gone_started_runs_have_crashed_and_others_go_back(bench: Bench) -> None:
    started, begun, unstarted = bench.add(), bench.add(), bench.add()
    claimed = {record.id: record for record in bench.claim()}
    run = claimed[started.id]
    bench.in_flight.on_started(Started(id=str(run.id), claims=run.claims, pid=1, at=boottime()))
    at = boottime() - 3.0

    bench.in_flight.on_manager_exit({(str(begun.id), claimed[begun.id].claims): at, (str(unstarted.id), 0): at})
    bench.outcome_writer.settle()

    assert bench.now(started).crashes == 1
    assert bench.now(begun).crashes == 1
    [attempt] = bench.now(begun).attempts
    assert attempt.started_at is not None
    booted_at = time.time() - boottime(), -boottime() + time.time()  # a pause between two reads moves them apart
    assert booted_at[0] - 0.01 < attempt.started_at.timestamp() - at < booted_at[1] + 0.01
    assert bench.now(unstarted).crashes == 0
    assert bench.now(unstarted).status is Status.WAITING


def test_a_rate_counts_each_run_of_a_manager_that_is_gone_as_its_report_may_have_gone_with_it(bench: Bench) -> None:
    rate = lane((Rate(2, per=3600),), "app:Mail", None)
    begun, unseen = bench.add(lane=rate), bench.add(lane=rate)
    claims = {record.id: record.claims for record in bench.claim()}

    bench.in_flight.on_manager_exit({(str(begun.id), claims[begun.id]): boottime()})
    bench.outcome_writer.settle()

    assert (bench.now(unseen).status, bench.now(unseen).attempts) == (Status.WAITING, ())
    assert bench.claim() == []
    [key] = [limit_key.key for limit_key in limit_keys_of(rate)]
    assert bench.store.limit_usage([key], bench.store.now()) == {key: 2}


def test_a_class_that_cannot_be_loaded_gets_the_patience_of_the_node(store: Store) -> None:
    bench = Bench(store, unroutable_after=0)
    record = bench.add()
    [claimed] = bench.claim()
    failure = {"type": "ModuleNotFoundError", "message": "no module", "traceback": "", "bases": []}
    bench.in_flight.on_ended(
        Ended(
            id=str(claimed.id),
            claims=claimed.claims,
            outcome="Unloadable",
            fields={"failure": failure},
            pid=1,
            started_at=None,
        )
    )
    bench.outcome_writer.settle()

    assert bench.now(record).cause is Cause.UNLOADABLE
    assert bench.now(record).status is Status.FAILED
