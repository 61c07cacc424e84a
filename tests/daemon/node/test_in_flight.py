"""The table of what a node has in flight: news is told once, outcomes stay until they are settled."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from bson import ObjectId

from taskqueue.daemon.node.in_flight import InFlight, InFlightRun
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.lifecycle.pending import claimed
from taskqueue.model.record import Holder, Options, Record, Status

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


def held_of(in_flight: InFlight, record: Record) -> InFlightRun:
    claim = in_flight.find(str(record.id), record.claims)
    assert claim is not None
    return claim


def test_claims_of_forced_jobs_take_no_slot_of_the_pool() -> None:
    in_flight = InFlight()
    in_flight.add([a_claim(), a_claim(force_spawn=True)])

    assert (len(in_flight), in_flight.pooled, in_flight.forced) == (2, 1, 1)


def test_a_bounded_queue_has_room_for_what_is_not_held_of_it() -> None:
    in_flight = InFlight()
    in_flight.add([a_claim("mail"), a_claim("mail"), a_claim("other")])

    assert in_flight.room_by_queue({"mail": 3, "reports": 2, "other": None}) == {"mail": 1, "reports": 2, "other": None}
    assert in_flight.room_by_queue({"mail": 1}) == {"mail": 0}


def test_a_claim_is_found_by_its_fence_only() -> None:
    in_flight = InFlight()
    record = a_claim()
    in_flight.add([record])

    assert in_flight.find(str(record.id), record.claims) is not None
    assert in_flight.find(str(record.id), record.claims + 1) is None
    assert in_flight.find(str(ObjectId()), 1) is None


def test_news_is_gathered_and_told_once() -> None:
    in_flight = InFlight()
    record = a_claim()
    in_flight.add([record])
    claim = held_of(in_flight, record)

    in_flight.note_started(claim, NOON)
    in_flight.note_progress(claim, 10, "a tenth", NOON)
    in_flight.note_progress(claim, 20, "a fifth", NOON)
    in_flight.note_state(claim, '"here"')

    notes = in_flight.take_notes()[record.id]
    assert (notes.started_at, notes.progress, notes.progress_message, notes.state) == (NOON, 20, "a fifth", '"here"')
    assert not in_flight.has_unsent_notes
    assert in_flight.take_notes() == {}


def test_news_that_could_not_be_told_is_kept_and_what_came_later_wins() -> None:
    in_flight = InFlight()
    record = a_claim()
    in_flight.add([record])
    claim = held_of(in_flight, record)
    in_flight.note_state(claim, '"early"')
    in_flight.note_progress(claim, 10, "", NOON)
    untold = in_flight.take_notes()
    in_flight.note_state(claim, '"late"')

    in_flight.keep_notes(untold)

    notes = in_flight.take_notes()[record.id]
    assert (notes.state, notes.progress) == ('"late"', 10)


def test_news_of_a_job_that_has_ended_meanwhile_is_dropped() -> None:
    in_flight = InFlight()
    record = a_claim()
    in_flight.add([record])
    claim = held_of(in_flight, record)
    in_flight.note_started(claim, NOON)
    untold = in_flight.take_notes()
    in_flight.finish(claim, Done(), Run(node="a"), NOON)

    in_flight.keep_notes(untold)

    assert not in_flight.has_unsent_notes


def test_an_outcome_waits_until_it_is_settled() -> None:
    in_flight = InFlight()
    record = a_claim(force_spawn=True)
    in_flight.add([record])
    in_flight.finish(held_of(in_flight, record), Done(result="1"), Run(node="a"), NOON)

    unsettled = in_flight.take_unsettled()
    assert [claim.finished and claim.finished.status for claim in unsettled] == [Status.DONE]
    assert (len(in_flight), in_flight.forced) == (0, 0)

    in_flight.keep_unsettled(unsettled)
    assert in_flight.unsettled == unsettled


def test_a_cancel_request_that_came_while_the_job_ran_decides_over_another_run() -> None:
    in_flight = InFlight()
    record = replace(a_claim(), started_at=NOON)
    in_flight.add([record])
    claim = held_of(in_flight, record)
    in_flight.note_cancel_request(claim, "not needed", NOON)

    in_flight.hand_back(claim, "a", NOON)

    [back] = in_flight.take_unsettled()
    assert back.finished is not None
    assert back.finished.status is Status.CANCELED
