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


def held_of(holdings: InFlight, record: Record) -> InFlightRun:
    held = holdings.find(str(record.id), record.claims)
    assert held is not None
    return held


def test_claims_of_forced_jobs_take_no_slot_of_the_pool() -> None:
    holdings = InFlight()
    holdings.begin([a_claim(), a_claim(force_spawn=True)])

    assert (len(holdings), holdings.pooled, holdings.forced) == (2, 1, 1)


def test_a_bounded_queue_has_room_for_what_is_not_held_of_it() -> None:
    holdings = InFlight()
    holdings.begin([a_claim("mail"), a_claim("mail"), a_claim("other")])

    assert holdings.room({"mail": 3, "reports": 2, "other": None}) == {"mail": 1, "reports": 2, "other": None}
    assert holdings.room({"mail": 1}) == {"mail": 0}


def test_a_claim_is_found_by_its_fence_only() -> None:
    holdings = InFlight()
    record = a_claim()
    holdings.begin([record])

    assert holdings.find(str(record.id), record.claims) is not None
    assert holdings.find(str(record.id), record.claims + 1) is None
    assert holdings.find(str(ObjectId()), 1) is None


def test_news_is_gathered_and_told_once() -> None:
    holdings = InFlight()
    record = a_claim()
    holdings.begin([record])
    held = held_of(holdings, record)

    holdings.started(held, NOON)
    holdings.progressed(held, 10, "a tenth", NOON)
    holdings.progressed(held, 20, "a fifth", NOON)
    holdings.checkpointed(held, '"here"')

    news = holdings.take_news()[record.id]
    assert (news.started_at, news.progress, news.progress_message, news.state) == (NOON, 20, "a fifth", '"here"')
    assert not holdings.has_news
    assert holdings.take_news() == {}


def test_news_that_could_not_be_told_is_kept_and_what_came_later_wins() -> None:
    holdings = InFlight()
    record = a_claim()
    holdings.begin([record])
    held = held_of(holdings, record)
    holdings.checkpointed(held, '"early"')
    holdings.progressed(held, 10, "", NOON)
    untold = holdings.take_news()
    holdings.checkpointed(held, '"late"')

    holdings.put_news_back(untold)

    news = holdings.take_news()[record.id]
    assert (news.state, news.progress) == ('"late"', 10)


def test_news_of_a_job_that_has_ended_meanwhile_is_dropped() -> None:
    holdings = InFlight()
    record = a_claim()
    holdings.begin([record])
    held = held_of(holdings, record)
    holdings.started(held, NOON)
    untold = holdings.take_news()
    holdings.end(held, Done(), Run(node="a"), NOON)

    holdings.put_news_back(untold)

    assert not holdings.has_news


def test_an_outcome_waits_until_it_is_settled() -> None:
    holdings = InFlight()
    record = a_claim(force_spawn=True)
    holdings.begin([record])
    holdings.end(held_of(holdings, record), Done(result="1"), Run(node="a"), NOON)

    unsettled = holdings.take_unsettled()
    assert [held.after and held.after.status for held in unsettled] == [Status.DONE]
    assert (len(holdings), holdings.forced) == (0, 0)

    holdings.put_back(unsettled)
    assert holdings.unsettled == unsettled


def test_a_cancel_request_that_came_while_the_job_ran_decides_over_another_run() -> None:
    holdings = InFlight()
    record = replace(a_claim(), started_at=NOON)
    holdings.begin([record])
    held = held_of(holdings, record)
    holdings.asked_to_cancel(held, "not needed", NOON)

    holdings.hand_back(held, "a", NOON)

    [back] = holdings.take_unsettled()
    assert back.after is not None
    assert back.after.status is Status.CANCELED
