"""A pending job is canceled at once; where one runs, the wish is kept until its holder acts on it."""

from __future__ import annotations

from collections import Counter

import pytest
from bson import ObjectId

from taskqueue.model.history import Step
from taskqueue.model.lifecycle.continuation import Continuation, Phase
from taskqueue.model.lifecycle.outcomes import Canceled, Done, Failed, HandedBack
from taskqueue.model.lifecycle.pending import given_up
from taskqueue.model.record import CancelRequest, Cause, Dependency, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import Store
from taskqueue.store.bell import STOPS
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    WEB_1,
    WEB_2,
    a_record,
    behind,
    claim,
    finished,
    kept,
    now_cursor,
    postponed,
    rings,
    running,
    settle,
    told,
)


@pytest.mark.parametrize("record", [a_record(), postponed(NOON + HOUR)], ids=["waiting", "postponed"])
def test_a_pending_job_is_canceled_at_once(store: Store, record: Record) -> None:
    store.add([record])

    ended = store.cancel(record.id, "no longer needed", NOON + MINUTE)

    assert ended == kept(store, record.id)
    assert ended is not None
    assert (ended.status, ended.cause, ended.ended_at) == (Status.CANCELED, Cause.CANCELED, NOON + MINUTE)
    assert ended.error is not None
    assert ended.error.message == "no longer needed"
    assert claim(store, now=NOON + 2 * HOUR).records == []


def test_the_wish_to_cancel_a_running_job_is_kept_and_its_holder_told(opener: Opener) -> None:
    store, other = opener(), opener()
    bell = store.bell(STOPS)
    run = running(store, a_record())

    asked = other.cancel(run.id, "wrong file", NOON)

    assert asked == kept(store, run.id)
    assert asked is not None
    assert (asked.status, asked.cancel) == (Status.PROCESSING, CancelRequest(requested_at=NOON, reason="wrong file"))
    assert rings(bell)
    bell.close()
    assert store.renew(WEB_1, NOON + LEASE, {}).claims[run.id].cancel_reason == "wrong file"


def test_the_first_reason_stays(store: Store) -> None:
    run = running(store, a_record())

    store.cancel(run.id, "first", NOON)
    store.cancel(run.id, "second", NOON + MINUTE)

    assert kept(store, run.id).cancel == CancelRequest(requested_at=NOON, reason="first")


def test_a_run_that_ended_because_of_the_wish_is_canceled(store: Store) -> None:
    run = running(store, a_record())
    store.cancel(run.id, "", NOON)

    settle(store, run, Canceled())

    assert kept(store, run.id).status is Status.CANCELED


def test_a_wish_outlives_the_holder_of_the_claim(store: Store) -> None:
    run = running(store, a_record())
    store.cancel(run.id, "stop it", NOON)

    settle(store, run, HandedBack())

    assert kept(store, run.id).status is Status.CANCELED
    assert claim(store, holder=WEB_2).records == []


def test_a_job_that_has_ended_stays_as_it_is(store: Store) -> None:
    ended = finished(store, a_record(), Done(result="1"))

    assert store.cancel(ended.id, "too late", NOON + HOUR) == ended
    assert kept(store, ended.id) == ended


def test_a_job_that_does_not_exist_cannot_be_canceled(store: Store) -> None:
    assert store.cancel(ObjectId(), "", NOON) is None


def test_canceling_twice_is_telling_once(store: Store) -> None:  # PTS-15
    record = a_record()
    store.add([record])
    cursor = now_cursor(store)

    first, second = store.cancel(record.id, "", NOON), store.cancel(record.id, "", NOON + HOUR)

    assert first == second
    assert told(store, cursor) == ["canceled"]


def test_a_canceled_job_releases_what_waits_for_it(store: Store) -> None:
    record = a_record()
    waiting = behind(record.id)
    store.add([record, waiting])

    store.cancel(record.id, "", NOON)

    assert kept(store, waiting.id).status is Status.WAITING


def test_a_canceled_job_frees_its_unique_key(store: Store) -> None:
    first, second = a_record(unique="k"), a_record(unique="k")
    store.add([first])

    store.cancel(first.id, "", NOON)

    assert store.add([second]) == [second]


def test_a_job_that_is_given_up_ends_with_its_effects_and_counts_no_failure_twice(store: Store) -> None:
    dependent = behind(first := ObjectId(), depends_on=(Dependency(id=first),))
    run = running(store, a_record(id=first, unique="k", options=Options(retry=FixedRetry(times=3, interval=3600))))
    store.add([dependent])
    settle(store, run, Failed(failure=BROKEN))
    cursor, before = now_cursor(store), kept(store, first)
    after = given_up(before, "no such shop", NOON + MINUTE)

    assert store.update(before, after, NOON + MINUTE)

    assert not store.update(before, after, NOON + MINUTE)
    assert kept(store, first) == after
    assert (after.status, kept(store, dependent.id).status) == (Status.FAILED, Status.CANCELED)
    assert store.add([other := a_record(unique="k")]) == [other]
    assert sorted(told(store, cursor)) == ["canceled", "failed", "waiting"]
    assert store.tally()["default", Status.FAILED] == 1
    figures: Counter[str] = Counter()
    for part in store.history(Step.MINUTE, NOON, NOON + HOUR).values():
        figures.update(part["default", "app:Mail"])
    failures = [number for name, number in figures.items() if name.startswith("x:")]
    assert (figures["failed"], figures["attempts"], failures) == (1, 1, [1])
    assert claim(store, now=NOON + 2 * HOUR).records[0].id == other.id


def test_a_job_in_steps_that_is_given_up_is_to_clean_up(store: Store) -> None:
    record = postponed(NOON + HOUR, error=BROKEN, course=Continuation(phase=Phase.RUNNING))
    store.add([record])
    before = kept(store, record.id)
    after = given_up(before, "", NOON)

    assert store.update(before, after, NOON)

    assert kept(store, record.id) == after
    assert (after.status, after.phase, store.tally()["default", Status.WAITING]) == (Status.WAITING, Phase.FAILING, 1)
    assert claim(store).records[0].id == record.id


def test_many_are_canceled_as_each_of_them_would_be(store: Store) -> None:
    run, done = running(store, a_record()), finished(store, a_record())
    parent = a_record(unique="k")
    child, waiting, later = a_record(parent=parent.id), behind(parent.id), postponed(NOON + HOUR)
    store.add([parent, child, waiting, later])
    cursor = now_cursor(store)
    ids = [later.id, ObjectId(), run.id, done.id, parent.id, child.id]

    after = store.cancel_many(ids, "no longer needed", NOON)

    assert [one.id for one in after] == [later.id, run.id, done.id, parent.id, child.id]
    ends = [Status.CANCELED, Status.PROCESSING, Status.DONE, Status.CANCELED, Status.CANCELED]
    assert [one.status for one in after] == ends
    assert [kept(store, one.id).status for one in after] == ends
    assert store.renew(WEB_1, NOON + LEASE, {}).claims[run.id].cancel_reason == "no longer needed"
    assert kept(store, waiting.id).status is Status.WAITING
    assert sorted(told(store, cursor)) == ["canceled", "canceled", "canceled", "waiting"]
    assert store.cancel_many([], "", NOON) == []
    assert [one.status for one in store.cancel_many(ids, "again", NOON + HOUR)] == ends
