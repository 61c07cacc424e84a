"""Jobs that recur: the end of one occurrence brings in the next, in one step (X-13, LZQ-14)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bson import ObjectId

from taskqueue.model.ids import JobId, occurrence_id
from taskqueue.model.lifecycle.outcomes import Canceled, Done, Failed, HandedBack, Outcome
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.schedules import Again, Every
from taskqueue.model.schedules.origin import FromSchedule, Series
from taskqueue.store import Settlement, Store
from taskqueue.store.bell import WORK
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    SECOND,
    WEB_2,
    a_record,
    all_kept,
    claim,
    finished,
    kept,
    now_cursor,
    postponed,
    rings,
    running,
    settle,
    settlement,
    told,
)


def occurrence(trigger: Every | Again | None = None, **fields: object) -> Record:
    """Return the first occurrence of a series, due at noon."""
    id = ObjectId()
    return a_record(id=id, origin=Series(id=id, trigger=trigger or Every(60)), **fields)


def second(store: Store, first: Record) -> Record:
    return kept(store, occurrence_id(first.id, 2))


def test_the_origin_is_kept(store: Store) -> None:
    series = occurrence(Every(5, NOON))
    series = replace(series, origin=Series(id=series.id, trigger=Every(5, NOON), until=NOON, max_runs=3, failed=1))
    fired = a_record(origin=FromSchedule(schedule="nightly", slot=NOON, trigger=Again()))
    store.add([series, fired, plain := a_record()])

    assert [kept(store, one.id).origin for one in (series, fired, plain)] == [series.origin, fired.origin, None]


@pytest.mark.parametrize("outcome", [Done(), Failed(failure=BROKEN)])
def test_the_end_of_an_occurrence_brings_in_the_next(store: Store, outcome: Outcome) -> None:
    first = occurrence(data='{"a":1}')
    finished(store, first, outcome)
    following = second(store, first)

    assert (following.status, following.ready_at) == (Status.POSTPONED, NOON + SECOND + MINUTE)
    assert (following.data, following.claims) == ('{"a":1}', 0)
    assert [one.id for one in claim(store, now=NOON + HOUR).records] == [following.id]


def test_many_occurrences_are_settled_at_once(store: Store) -> None:
    firsts = [occurrence() for _ in range(5)]
    store.add([*firsts, other := a_record()])
    taken = claim(store, 10).records
    store.settle([settlement(one) for one in taken], NOON + SECOND)

    assert {one.id for one in all_kept(store) if one.status is Status.POSTPONED} == {
        occurrence_id(one.id, 2) for one in firsts
    }
    assert kept(store, other.id).status is Status.DONE


def test_an_occurrence_that_is_due_at_once_is_told_and_rung(store: Store, opener: Opener) -> None:
    first = running(store, occurrence(Again()))
    cursor = now_cursor(store)
    bell = opener().bell(WORK)
    settle(store, first)

    assert rings(bell)
    assert sorted(told(store, cursor)) == ["done", "waiting"]
    bell.close()


def test_a_late_outcome_brings_in_nothing(store: Store) -> None:
    late = running(store, occurrence())
    store.settle([Settlement(claims=late.claims, holder=late.holder, after=lost(late, NOON + HOUR))], NOON + HOUR)  # type: ignore[arg-type]
    [again] = claim(store, now=NOON + 2 * HOUR, holder=WEB_2).records

    assert settle(store, late) == set()
    assert len(all_kept(store)) == 1
    settle(store, again, now=NOON + 2 * HOUR)
    assert second(store, late).ready_at == NOON + 2 * HOUR + MINUTE


def test_settling_twice_brings_in_one(store: Store) -> None:
    first = running(store, occurrence())
    outcome = settlement(first)
    store.settle([outcome], NOON + SECOND)
    store.settle([outcome], NOON + SECOND)

    assert len(all_kept(store)) == 2


def test_what_is_handed_back_is_not_over(store: Store) -> None:
    settle(store, running(store, occurrence()), HandedBack())

    assert len(all_kept(store)) == 1


def test_cancel_of_a_pending_occurrence_ends_the_series(store: Store) -> None:
    first = occurrence()
    store.add([first])
    store.cancel(first.id, "enough", NOON)

    assert [one.status for one in all_kept(store)] == [Status.CANCELED]


def test_cancel_of_a_running_occurrence_ends_the_series(store: Store) -> None:
    first = running(store, occurrence())
    store.cancel(first.id, "enough", NOON)
    settle(store, first, Canceled())

    assert [one.status for one in all_kept(store)] == [Status.CANCELED]


def test_a_wish_to_cancel_that_came_too_late_for_the_run_ends_the_series(store: Store) -> None:
    first = running(store, occurrence())
    store.cancel(first.id, "enough", NOON)

    assert settle(store, first) == {first.id}  # its node did not know of the wish
    assert [one.status for one in all_kept(store)] == [Status.DONE]


def test_wishes_for_some_do_not_delay_the_outcomes_of_others(store: Store) -> None:
    store.add([one := occurrence(), another := occurrence()])
    taken = {record.id: record for record in claim(store, 2).records}
    store.cancel(one.id, "enough", NOON)
    accepted = store.settle([settlement(taken[one.id]), settlement(taken[another.id])], NOON + SECOND)

    assert accepted == {one.id, another.id}
    assert len(all_kept(store)) == 3


def test_an_occurrence_that_expired_is_followed(store: Store) -> None:
    late = occurrence(expires_at=NOON + SECOND)
    store.add([late])
    claim(store, now=NOON + MINUTE)

    assert kept(store, late.id).cause is Cause.EXPIRED
    assert second(store, late).ready_at == NOON + 2 * MINUTE


def test_the_successor_takes_over_the_unique_key(store: Store) -> None:
    first = occurrence(unique="clean")
    finished(store, first)
    [holder] = store.add([a_record(unique="clean")])

    assert holder.id == second(store, first).id


def test_a_series_whose_key_another_job_took_ends(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    first = running(store, occurrence(unique="clean"))
    store.replace(a_record(unique="clean"), first, None, NOON)
    settle(store, first)

    dropped = occurrence_id(first.id, 2)
    assert dropped not in {one.id for one in all_kept(store)}
    [warning] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warning == f"the series ends: another job has the unique key 'clean' of job {first.id}"


def test_replacing_a_waiting_occurrence_ends_its_series(store: Store) -> None:
    old = postponed(NOON + HOUR, unique="clean")
    old = replace(old, origin=Series(id=old.id, trigger=Every(60)))
    store.add([old])
    new: JobId = ObjectId()
    store.replace(a_record(id=new, unique="clean"), old, None, NOON)

    assert {one.id: one.status for one in all_kept(store)} == {old.id: Status.CANCELED, new: Status.WAITING}


def test_a_lost_occurrence_whose_crashes_are_used_up_is_followed(store: Store) -> None:
    first = running(store, occurrence())
    store.note(first.holder, {})  # type: ignore[arg-type]
    gone = replace(first, crashes=3)
    after = lost(gone, NOON + LEASE)
    assert after.status is Status.FAILED
    store.settle([Settlement(claims=first.claims, holder=first.holder, after=after)], NOON + LEASE)  # type: ignore[arg-type]

    assert second(store, first).ready_at == NOON + LEASE + MINUTE
