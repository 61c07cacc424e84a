"""Claims take what is due by (rank, id), from the right queues, and never one record for two."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Cause, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import Claim, ClaimRequest, Store
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    WEB_2,
    a_record,
    all_kept,
    behind,
    claim,
    finished,
    forced,
    ids,
    kept,
    now_cursor,
    postponed,
    running,
    settle,
    told,
)

MILLISECOND = timedelta(milliseconds=1)


def test_a_claimed_record_is_held_until_its_lease_ends(store: Store) -> None:
    record = a_record()
    store.add([record])

    [taken] = claim(store).records

    assert (taken.id, taken.status, taken.cause) == (record.id, Status.PROCESSING, Cause.CLAIMED)
    assert (taken.holder, taken.claims, taken.ready_at) == (WEB_1, 1, NOON + LEASE)
    assert (taken.data, taken.rank, taken.started_at) == (record.data, record.rank, None)
    assert kept(store, record.id) == taken


def test_the_oldest_come_first_and_the_lower_id_among_equals(store: Store) -> None:
    late, first, second = a_record(ready_at=NOON + SECOND), a_record(), a_record()
    store.add([late, second, first])

    assert ids(claim(store, 2).records) == [first.id, second.id]
    assert ids(claim(store, 2).records) == [late.id]


def test_a_claim_after_one_of_the_same_queue_takes_a_more_urgent_job_that_has_become_due(store: Store) -> None:
    store.add([a_record()])
    claim(store)
    waiting, due = a_record(), postponed(NOON + SECOND, priority=-20)
    store.add([waiting, due])

    assert ids(claim(store, now=NOON + 2 * SECOND).records) == [due.id]
    assert ids(claim(store, now=NOON + 2 * SECOND).records) == [waiting.id]


def test_a_claim_after_one_of_another_queue_takes_the_first_job_of_all_queues(store: Store) -> None:
    store.add([a_record(queue="mail")])
    claim(store)
    later, first = a_record(queue="mail", ready_at=NOON + SECOND), a_record(queue="reports")
    store.add([later, first])

    assert ids(claim(store, now=NOON + SECOND).records) == [first.id]
    assert ids(claim(store, now=NOON + SECOND).records) == [later.id]


def test_a_step_of_priority_is_worth_an_hour_of_waiting(store: Store) -> None:  # LZQ-8
    patient = a_record(priority=1, ready_at=NOON - HOUR - SECOND)
    urgent = a_record(priority=-1, ready_at=NOON + HOUR - SECOND)
    plain = a_record(ready_at=NOON)
    store.add([plain, urgent, patient])

    assert ids(claim(store, 3).records) == [patient.id, urgent.id, plain.id]


def test_no_more_is_taken_than_wanted(store: Store) -> None:
    store.add([a_record() for _ in range(5)])

    assert len(claim(store, 3).records) == 3
    assert claim(store, 0).records == []
    assert len(claim(store, 9).records) == 2


def test_two_claimants_never_get_the_same_record(opener: Opener) -> None:
    one, other = opener(), opener()
    one.add([a_record() for _ in range(10)])

    taken = [*claim(one, 6).records, *claim(other, 6, holder=WEB_2).records]

    assert len({record.id for record in taken}) == len(taken) == 10


def test_jobs_with_a_child_of_their_own_are_counted_apart(store: Store) -> None:
    pooled, alone = [a_record() for _ in range(3)], [forced() for _ in range(3)]
    store.add([*alone, *pooled])

    assert ids(claim(store, 2, forced=0).records) == ids(pooled[:2])
    assert set(ids(claim(store, 0, forced=2).records)) == set(ids(alone[:2]))
    assert set(ids(claim(store, 9, forced=9).records)) == {pooled[2].id, alone[2].id}


def test_only_the_chosen_queues_are_taken_from(store: Store) -> None:
    mail, report, other = a_record(queue="mail"), a_record(queue="report"), a_record(queue="other")
    store.add([other, report, mail])

    assert ids(claim(store, 9, queues={"mail": None, "report": None}).records) == sorted([mail.id, report.id])
    assert claim(store, 9, queues={"mail": None}).records == []
    assert ids(claim(store, 9).records) == [other.id]


def test_chosen_queues_are_merged_in_order(store: Store) -> None:
    records = [a_record(queue="ab"[number % 2], ready_at=NOON + number * SECOND) for number in range(8)]
    store.add(records)

    assert ids(claim(store, 5, queues={"b": None, "a": None}).records) == ids(records[:5])


def test_a_queue_gives_no_more_than_its_bound(store: Store) -> None:
    store.add([a_record(queue="report") for _ in range(5)])
    store.add([forced(queue="report") for _ in range(5)])
    mail = a_record(queue="mail", ready_at=NOON + HOUR)
    store.add([mail])

    taken = claim(store, 9, forced=9, queues={"report": 3, "mail": None, "empty": 4, "none": 0}).records

    assert sorted(record.queue for record in taken) == ["mail", "report", "report", "report"]


def test_a_postponed_record_is_taken_when_its_time_has_come(store: Store) -> None:
    later = postponed(NOON + MINUTE, cause=Cause.SCHEDULED)
    store.add([later])

    assert claim(store, now=NOON + MINUTE - timedelta(milliseconds=1)).records == []
    assert ids(claim(store, now=NOON + MINUTE).records) == [later.id]


def test_a_claim_tells_when_the_next_postponed_record_is_due(store: Store) -> None:
    run = running(store, a_record())
    assert claim(store).next_at is None

    store.add([postponed(NOON + HOUR), postponed(NOON + MINUTE), a_record(), behind(run.id, ready_at=NOON + SECOND)])

    assert claim(store).next_at == NOON + MINUTE


def test_promoted_records_keep_their_place_and_their_cause(store: Store) -> None:
    first = postponed(NOON - MINUTE, cause=Cause.SCHEDULED)
    second = a_record(ready_at=NOON - SECOND)
    store.add([first, second])

    claim(store, 0)

    waiting = kept(store, first.id)
    assert (waiting.status, waiting.cause, waiting.rank) == (Status.WAITING, Cause.SCHEDULED, first.rank)
    assert ids(claim(store, 2).records) == [first.id, second.id]


def test_more_is_due_than_one_claim_promotes_and_all_of_it_is_taken_in_the_end(store: Store) -> None:
    store.add([postponed(NOON - SECOND) for _ in range(1_200)])
    taken = 0

    while (claimed := claim(store, 500)).records or claimed.next_at is not None:
        taken += len(claimed.records)

    assert taken == 1_200


def test_a_record_that_waits_for_others_is_not_promoted_by_time(store: Store) -> None:
    first = running(store, a_record())
    waiting = behind(first.id, ready_at=NOON - HOUR)
    store.add([waiting])

    assert claim(store).records == []

    settle(store, first)
    assert ids(claim(store, now=NOON + SECOND).records) == [waiting.id]


def test_a_record_that_was_not_started_in_time_ends_canceled(store: Store) -> None:
    waiting = a_record(expires_at=NOON + MINUTE)
    later = postponed(NOON + HOUR, expires_at=NOON + MINUTE)
    in_time = a_record(expires_at=NOON + MINUTE + SECOND)
    store.add([waiting, later, in_time])
    cursor = now_cursor(store)

    taken = claim(store, 9, now=NOON + MINUTE).records

    assert ids(taken) == [in_time.id]
    for id in (waiting.id, later.id):
        ended = kept(store, id)
        assert (ended.status, ended.cause, ended.ended_at) == (Status.CANCELED, Cause.EXPIRED, NOON + MINUTE)
    assert sorted(told(store, cursor)) == ["canceled", "canceled", "processing"]


def test_a_job_that_was_started_in_time_does_not_expire_between_its_attempts(store: Store) -> None:
    retried = a_record(expires_at=NOON + MINUTE, options=Options(retry=FixedRetry(1, 120.0)))
    settle(store, running(store, retried), Failed(failure=BROKEN))

    [second] = claim(store, now=NOON + HOUR).records

    assert second.id == retried.id


def test_more_has_expired_than_one_claim_ends_and_none_of_it_is_taken(store: Store) -> None:
    store.add([a_record(expires_at=NOON) for _ in range(1_200)])

    while (claimed := claim(store, 100)).next_at is not None:
        assert claimed.records == []

    assert {record.status for record in all_kept(store)} == {Status.CANCELED}


def test_an_expired_record_releases_what_waits_for_it(store: Store) -> None:
    first = a_record(expires_at=NOON)
    second = behind(first.id)
    store.add([first, second])

    claim(store, 0)

    assert kept(store, second.id).status is Status.WAITING


def test_running_and_finished_records_are_not_claimed(store: Store) -> None:
    finished(store, a_record())
    running(store, a_record())

    assert claim(store, 9).records == []


def about_due(store: Store, **fields: Any) -> Record:
    """Add a job that becomes due after as long as the store can look ahead."""
    record = postponed(NOON + store.early_by, **fields)
    store.add([record])
    return record


def claim_ahead(store: Store, **wanted: Any) -> Claim:
    """Claim what is due by then, too."""
    at_most = ClaimRequest(**{"pooled": 2, "due_by": NOON + store.early_by, **wanted})
    return store.claim(WEB_1, at_most, NOON, NOON + LEASE)


def test_what_is_about_to_be_due_is_taken_for_its_time_if_the_store_looks_ahead(store: Store) -> None:
    record = about_due(store)
    later = postponed(NOON + store.early_by + SECOND)
    store.add([later])

    taken = claim_ahead(store)

    assert ids(taken.records) == [record.id]
    assert taken.begins_at == (NOON + store.early_by if store.early_by else None)
    assert taken.next_at == later.ready_at
    assert kept(store, record.id).status is Status.PROCESSING
    assert store.tally() == {("default", Status.PROCESSING): 1, ("default", Status.POSTPONED): 1}


def test_nothing_is_taken_ahead_for_a_node_that_does_not_ask_for_it(opener: Opener) -> None:
    store = opener()
    about_due(store)
    just_before = NOON + store.early_by - MILLISECOND

    assert claim(store, now=just_before).records == []
    assert kept(store, all_kept(store)[0].id).status is Status.POSTPONED


def test_the_lowest_are_taken_ahead_and_nobody_can_begin_the_others_before_their_time(store: Store) -> None:
    first, second, urgent = (about_due(store, priority=priority) for priority in (0, 0, -1))

    taken = claim_ahead(store)

    assert ids(taken.records) == [urgent.id, first.id]
    assert kept(store, second.id).status is (Status.POSTPONED if store.early_by else Status.WAITING)
    assert ids(claim(store, now=NOON + store.early_by).records) == [second.id]


def test_what_waits_goes_before_what_is_about_to_be_due(store: Store) -> None:
    waiting = a_record(priority=-20)
    store.add([waiting])
    about_due(store)

    taken = claim_ahead(store, pooled=1)

    assert ids(taken.records) == [waiting.id]
    assert taken.begins_at is None


def test_nothing_is_taken_ahead_while_a_job_waits_for_its_limit(store: Store) -> None:
    limited = {"job": "tests:Mail", "lane": lane([Limit(1)], "tests:Mail", None)}
    running(store, a_record(**limited))
    store.add([a_record(**limited)])
    about_due(store)

    assert claim_ahead(store).begins_at is None


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"queue": "mail"}, {"queues": {"reports": None}}),
        ({"queue": "mail"}, {"queues": {"mail": 0}}),
        ({"options": Options(force_spawn=True)}, {}),
    ],
    ids=["other queue", "no room in the queue", "forced"],
)
def test_nothing_is_taken_ahead_that_the_node_does_not_want(
    store: Store, fields: dict[str, Any], wanted: dict[str, Any]
) -> None:
    about_due(store, **fields)

    taken = claim_ahead(store, **wanted)

    assert (taken.records, taken.begins_at) == ([], None)


def test_a_job_with_a_limit_is_never_taken_ahead(store: Store) -> None:
    about_due(store, lane=lane([Limit(1)], "tests:Mail", None))

    assert claim_ahead(store).begins_at is None
