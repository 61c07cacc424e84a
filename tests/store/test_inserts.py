"""Records come in all or none; one id is one job, and one unique key has one live holder."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.errors import DuplicateId
from taskqueue.model.conditions import Check, NotReadyState
from taskqueue.model.lifecycle.continuation import Continuation
from taskqueue.model.lifecycle.outcomes import Done, Failed
from taskqueue.model.lifecycle.recovered_copy import copy, copy_of
from taskqueue.model.record import Attempt, CancelRequest, Cause, Failure, Holder, OnCrash, Options, Record, Status
from taskqueue.model.retry import ExponentialRetry
from taskqueue.scheduler.add import existed
from taskqueue.store import Store
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    NOON,
    SECOND,
    WEB_1,
    a_record,
    all_kept,
    behind,
    claim,
    finished,
    ids,
    kept,
    postponed,
    running,
    settle,
)

FAILED = Failed(failure=Failure(type="ValueError", message="no"))

EVERYTHING = Record(
    id=ObjectId(),
    job="app.mail:Mail.send",
    data='{"to":"ä@example.org","at":{"$date":{"$numberLong":"0"}}}',
    queue="mail",
    priority=-20,
    tags=("a", "ü"),
    unique="monthly",
    options=Options(
        retry=ExponentialRetry(times=-1, interval=0.5),
        timeout=1.5,
        crash_retries=0,
        on_crash=OnCrash.FAIL,
        force_spawn=True,
        ready=Check("shop:is_open", shop="berlin") & ~Check("#is_full"),
    ),
    course=Continuation(unready=NotReadyState(times=3, errors=1, reason="shop:is_open() said no")),
    given={"retry": 5, "tags": ["a"]},
    created_at=NOON,
    expires_at=NOON + HOUR,
    status=Status.PROCESSING,
    cause=Cause.CLAIMED,
    ready_at=NOON + timedelta(milliseconds=1),
    rank=-5,
    holder=Holder(seat="web-1", incarnation="x"),
    claims=3,
    failures=1,
    crashes=1,
    cancel=CancelRequest(requested_at=NOON, reason="enough"),
    unloadable_since=NOON,
    unloadable_times=2,
    started_at=NOON,
    ended_at=NOON,
    progress=33.25,
    progress_message="third",
    progress_at=NOON,
    state='{"line":7}',
    result="[1,2]",
    error=BROKEN,
    attempts=(
        Attempt(number=1, claims=1, node="web-1", ended_at=NOON, outcome="Failed", error=BROKEN),
        Attempt(
            number=2,
            claims=2,
            node="web-2",
            pid=5,
            started_at=NOON,
            ended_at=NOON,
            outcome="Crashed",
            exit="killed by SIGKILL",
            peak_memory=2**40,
        ),
    ),
)


@pytest.mark.parametrize("record", [a_record(), postponed(NOON + HOUR), EVERYTHING], ids=["plain", "postponed", "full"])
def test_every_field_comes_back_as_it_was_added(store: Store, record: Record) -> None:
    assert store.add([record]) == [record]
    assert all_kept(store) == [record]


def test_several_records_are_returned_in_order(store: Store) -> None:
    records = [a_record() for _ in range(20)]

    assert store.add(records[::-1]) == records[::-1]
    assert all_kept(store) == records


def test_adding_nothing_adds_nothing(store: Store) -> None:
    assert store.add([]) == []
    assert all_kept(store) == []


def test_what_one_connection_added_another_one_finds(opener: Opener) -> None:
    record = a_record()
    one, other = opener(), opener()

    one.add([record])

    assert all_kept(other) == [record]


def test_the_same_job_added_again_is_the_one_that_is_kept(store: Store) -> None:
    record = a_record(data='{"a":1,"b":2}')
    ended = finished(store, record)

    assert store.add([replace(record, data='{"b":2,"a":1}', priority=5)]) == [ended]
    assert all_kept(store) == [ended]


@pytest.mark.parametrize("other", [{"job": "app:Other"}, {"data": "2"}])
def test_an_id_of_another_job_is_refused_and_nothing_is_stored(store: Store, other: dict[str, Any]) -> None:
    record = a_record(data="1")
    store.add([record])

    with pytest.raises(DuplicateId, match=str(record.id)):
        store.add([a_record(), replace(record, **other), a_record()])

    assert all_kept(store) == [record]


def test_an_id_twice_in_one_batch_is_one_job(store: Store) -> None:
    record = a_record()

    assert store.add([record, record]) == [record, record]
    assert all_kept(store) == [record]


def test_of_two_with_one_id_in_a_batch_the_first_is_kept(store: Store) -> None:
    record = a_record(queue="first", tags=("a",))

    stored = store.add([record, replace(record, queue="second", tags=(), priority=7), a_record()])

    assert stored[:2] == [record, record]
    assert kept(store, record.id) == record


def test_a_job_with_the_same_id_existed_even_in_the_same_millisecond(store: Store) -> None:
    done, pending = finished(store, a_record()), a_record()
    store.add([pending])

    for new in (a_record(), a_record(unique="k"), behind(done.id), behind(pending.id), a_record(parent=done.id)):
        answers = [existed(new, stored) for copy in (new, replace(new)) for stored in store.add([copy])]
        assert answers == [False, True], new

    first, twin, other = (a_record(data="1"), a_record(data="1"), a_record())
    batch = [first, replace(twin, id=first.id), other]
    assert [existed(new, stored) for new, stored in zip(batch, store.add(batch), strict=True)] == [False, True, False]
    assert [existed(new, stored) for new, stored in zip(batch, store.add(batch), strict=True)] == [True, True, True]


def test_the_live_holder_of_a_unique_key_is_returned_instead(store: Store) -> None:
    for holder in (a_record(unique="w"), postponed(NOON + HOUR, unique="p")):
        store.add([holder])

        assert store.add([a_record(unique=holder.unique)]) == [holder]

    assert len(all_kept(store)) == 2


def test_a_running_job_holds_its_unique_key(store: Store) -> None:
    holder = running(store, a_record(unique="nightly"))

    [returned] = store.add([a_record(unique="nightly")])

    assert (returned.id, returned.status) == (holder.id, Status.PROCESSING)


def test_a_unique_key_is_free_after_its_holder_has_ended(store: Store) -> None:
    first, second = a_record(unique="nightly"), a_record(unique="nightly")
    finished(store, first)

    assert store.add([second]) == [second]
    assert ids(all_kept(store)) == [first.id, second.id]


def test_a_unique_key_twice_in_one_batch_has_one_holder(store: Store) -> None:
    first, second = a_record(unique="k"), a_record(unique="k")

    assert store.add([first, second]) == [first, first]


def test_one_of_many_that_add_the_same_unique_key_at_once_gets_it(opener: Opener) -> None:  # PTS-12, X-19
    start = threading.Barrier(4)
    records = [a_record(unique="k") for _ in range(4)]
    returned: list[Record] = []

    def add(store: Store, record: Record) -> None:
        start.wait()
        returned.extend(store.add([record]))

    threads = [threading.Thread(target=add, args=(opener(), record)) for record in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    [winner] = all_kept(opener())
    assert returned == [winner] * 4


def test_a_record_behind_a_pending_one_waits(store: Store) -> None:
    first = a_record()
    second = behind(first.id)

    assert store.add([second, first]) == [second, first]
    assert ids(claim(store, 9).records) == [first.id]


def test_a_record_behind_one_that_has_ended_in_between_need_not_wait(store: Store) -> None:
    ended = finished(store, a_record())

    [added] = store.add([behind(ended.id, cause=Cause.BEHIND)])

    assert (added.status, added.waiting_for, added.ready_at) == (Status.WAITING, (), NOON)
    assert kept(store, added.id) == added
    assert ids(claim(store).records) == [added.id]


def test_a_record_behind_one_that_is_gone_need_not_wait(store: Store) -> None:
    [added] = store.add([behind(ObjectId())])

    assert added.status is Status.WAITING


def test_a_record_behind_several_waits_for_those_that_are_left(store: Store) -> None:
    ended, waiting = finished(store, a_record()), a_record()
    store.add([waiting])

    [added] = store.add([behind(ended.id, waiting.id)])

    assert (added.status, added.waiting_for) == (Status.POSTPONED, (waiting.id,))


def test_a_waiting_job_that_is_replaced_is_canceled_in_the_same_step(store: Store) -> None:
    old, new = a_record(unique="k", data="1"), a_record(unique="k", data="2")
    store.add([old])

    assert store.replace(new, old, None, NOON) == new

    canceled = kept(store, old.id)
    assert (canceled.status, canceled.cause) == (Status.CANCELED, Cause.REPLACED)
    assert kept(store, new.id) == new


def test_a_running_job_that_is_replaced_gives_up_its_key_and_is_waited_for(store: Store) -> None:
    old, new = a_record(unique="k"), a_record(unique="k", data="2")
    run = running(store, old)
    present = kept(store, old.id)

    placed = store.replace(new, present, None, NOON)

    assert placed is not None
    assert (placed.status, placed.cause, placed.waiting_for) == (Status.POSTPONED, Cause.BEHIND, (old.id,))
    assert kept(store, new.id) == placed
    assert (kept(store, old.id).unique, kept(store, old.id).cancel) == (None, None)
    assert claim(store).records == []

    settle(store, run, Done(), NOON + SECOND)

    assert kept(store, new.id).status is Status.WAITING
    assert kept(store, old.id).status is Status.DONE
    assert ids(claim(store, now=NOON + SECOND).records) == [new.id]


def test_a_running_job_that_is_replaced_can_be_asked_to_end(store: Store) -> None:
    old = running(store, a_record(unique="k"))

    store.replace(a_record(unique="k"), kept(store, old.id), "replaced", NOON)

    assert kept(store, old.id).cancel == CancelRequest(requested_at=NOON, reason="replaced")
    assert store.renew(WEB_1, NOON + HOUR, {}).claims[old.id].cancel_reason == "replaced"


def test_a_successor_with_a_time_of_its_own_waits_for_both(store: Store) -> None:
    old = running(store, a_record(unique="k"))
    new = postponed(NOON + HOUR, unique="k")
    store.replace(new, kept(store, old.id), None, NOON)

    settle(store, old)

    assert kept(store, new.id).status is Status.POSTPONED
    assert ids(claim(store, now=NOON + HOUR).records) == [new.id]


def test_nothing_is_replaced_that_has_moved_meanwhile(store: Store) -> None:
    old = a_record(unique="k")
    running(store, old)

    assert store.replace(a_record(unique="k"), old, None, NOON) is None
    assert store.replace(a_record(unique="k"), a_record(unique="k"), None, NOON) is None
    assert ids(all_kept(store)) == [old.id]


def test_a_job_that_has_ended_is_not_replaced(store: Store) -> None:
    ended = finished(store, a_record(unique="k"))

    assert store.replace(a_record(unique="k"), ended, None, NOON) is None


def test_an_id_of_another_job_replaces_nothing(store: Store) -> None:
    old, other = a_record(unique="k"), a_record(data="1")
    store.add([old, other])

    with pytest.raises(DuplicateId):
        store.replace(replace(old, id=other.id, data="2"), old, None, NOON)

    assert kept(store, old.id) == old


def test_what_replaces_a_job_behind_a_running_one_waits_for_that_too(store: Store) -> None:
    first = running(store, a_record(unique="k"))
    second = store.replace(a_record(unique="k"), first, None, NOON)
    assert second is not None
    third = store.replace(a_record(unique="k"), second, None, NOON)
    assert third is not None

    assert (third.status, third.waiting_for) == (Status.POSTPONED, (first.id,))
    assert claim(store, 9).records == []
    settle(store, first)
    assert ids(claim(store, 9, now=NOON + HOUR).records) == [third.id]


def test_conditions_with_equal_settings_of_other_types_are_kept_apart(store: Store) -> None:
    given: list[object] = [1, True, 1.0, False, 0]
    records = [a_record(options=Options(ready=Check("app:is_open", times=times))) for times in given]

    store.add(records)

    found = [kept(store, record.id).options.ready for record in records]
    assert [repr(check.settings["times"]) for check in found if isinstance(check, Check)] == list(map(repr, given))


def test_records_are_alike_whatever_their_keys(store: Store) -> None:  # PTS-12
    run = running(store, a_record(data='{"a": 1, "b": [{"c": 2, "d": 3}]}', created_at=NOON + HOUR))
    keyed = a_record(data='{"b": [{"d": 3, "c": 2}], "a": 1}', unique="once:other")
    later = postponed(NOON + HOUR, data=run.data, created_at=NOON + SECOND)
    store.add(
        [keyed, later, a_record(data='{"a": 2, "b": [{"c": 2, "d": 3}]}'), a_record(job="app:Other", data=run.data)]
    )
    finished(store, a_record(data=run.data, priority=-9))

    assert ids(store.alike(a_record(data=run.data, unique="k"), False)) == [run.id, keyed.id, later.id]


def test_records_of_one_path_are_alike_where_data_do_not_count(store: Store) -> None:
    first, second = a_record(data="1", unique="k"), a_record(data="2")
    store.add([second, first, a_record(job="app:Other")])

    assert ids(store.alike(a_record(data="3", unique="k"), True)) == [
        one.id for one in sorted((first, second), key=lambda one: one.id)
    ]
    assert store.alike(a_record(data="3", unique="other"), False) == []


@pytest.mark.parametrize("data", ["null", "true", "1", "1.5", '"text"', "[1, 2]", "{}", '{"": 1, "a.b": 2, "c": null}'])
def test_any_data_are_alike(store: Store, data: str) -> None:
    record = a_record(data=data)
    store.add([record])

    assert ids(store.alike(a_record(data=data), False)) == [record.id]


def test_a_record_without_a_key_can_be_replaced(store: Store) -> None:
    old, new = a_record(), a_record(unique="k")
    store.add([old])

    assert store.replace(new, old, None, NOON) is not None
    assert (kept(store, old.id).cause, kept(store, new.id).unique) == (Cause.REPLACED, "k")


@pytest.mark.parametrize("given", [{}, {"retry": 5, "queue": "mäil"}])
@pytest.mark.parametrize("number", [1, 3])
def test_a_job_that_was_recovered_names_its_copy(store: Store, number: int, given: dict[str, Any]) -> None:
    ended = [finished(store, a_record(given=given), FAILED) for _ in range(number)]
    copies = [copy(one, ObjectId(), None, NOON + HOUR) for one in ended]

    store.add(copies)

    assert [copy_of(kept(store, one.id)) for one in ended] == [one.id for one in copies]
    assert all(
        kept(store, one.id).given == {**given, "recovered_as": str(copy_of(kept(store, one.id)))} for one in ended
    )
    assert [copy_of(one) for one in copies] == [None] * number


def test_a_job_names_the_last_of_its_copies_and_a_copy_its_own(store: Store) -> None:
    ended = finished(store, a_record(), FAILED)
    failed = finished(store, copy(ended, ObjectId(), None, NOON), FAILED)
    [second] = store.add([copy(failed, ObjectId(), None, NOON)])
    [last] = store.add([copy(kept(store, ended.id), ObjectId(), None, NOON)])

    assert [copy_of(kept(store, one.id)) for one in (ended, failed)] == [last.id, second.id]
    assert [copy_of(kept(store, one.id)) for one in (second, last)] == [None, None]


def test_a_copy_whose_job_was_removed_is_added(store: Store) -> None:
    ended = finished(store, a_record(), FAILED)
    store.flush()

    [added] = store.add([copy(ended, ObjectId(), None, NOON)])

    assert kept(store, added.id).status is Status.WAITING
