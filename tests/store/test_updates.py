"""What its owner changes of a waiting job is swapped in where it is as it was read, in one step, and rings."""

from __future__ import annotations

import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from taskqueue.model.lifecycle.outcomes import Awaiting, Failed
from taskqueue.model.options.update import revised
from taskqueue.model.record import Status, changed
from taskqueue.model.retry import RetryIn
from taskqueue.model.serializer import encode
from taskqueue.store import Store
from taskqueue.store.bell import WORK
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    a_record,
    behind,
    claim,
    finished,
    ids,
    kept,
    now_cursor,
    postponed,
    rings,
    running,
    settle,
    told,
)


def test_everything_that_can_be_changed_is_kept(store: Store) -> None:
    [before] = store.add([a_record(data='{"to":"a"}', tags=("old",), given={"queue": "mail"})])
    options = {"priority": 3, "queue": "slow", "tags": ("a", "b"), "at": NOON + HOUR}

    after = revised(before, options, '{"to":"b"}', NOON)

    assert store.update(before, after, NOON)
    assert kept(store, before.id) == after
    assert (after.status, after.ready_at, after.priority) == (Status.POSTPONED, NOON + HOUR, 3)
    assert store.tally() == {("slow", Status.POSTPONED): 1}


def test_data_of_every_type_can_be_changed(store: Store) -> None:
    data: dict[str, Any] = {"price": Decimal("1.50"), "at": NOON, "raw": b"\0", "key": uuid.UUID(int=1)}
    [before] = store.add([a_record(data=encode(data))])
    after = revised(before, {}, encode({**data, "price": Decimal("2.75")}), NOON)

    assert store.update(before, after, NOON)
    assert kept(store, before.id) == after
    assert not store.update(before, after, NOON)


def test_what_is_emptied_is_kept_empty(store: Store) -> None:
    [before] = store.add([a_record(tags=("old",), given={"tags": ["old"]})])
    after = revised(before, {"tags": ()}, "null", NOON)

    assert store.update(before, after, NOON)
    assert kept(store, before.id).tags == ()
    assert kept(store, before.id).data == "null"


def test_a_change_that_changes_nothing_is_done(store: Store) -> None:
    [before] = store.add([a_record()])

    assert store.update(before, before, NOON)
    assert kept(store, before.id) == before


def test_a_record_that_has_moved_is_left_alone(store: Store) -> None:
    [before] = store.add([a_record()])
    after = changed(before, queue="slow")
    claim(store)
    taken = kept(store, before.id)

    assert not store.update(before, after, NOON)
    assert kept(store, before.id) == taken


def test_of_two_changes_of_the_same_thing_one_is_done_again(store: Store) -> None:
    [before] = store.add([a_record(data="1")])

    assert store.update(before, revised(before, {"tags": ("a",)}, None, NOON), NOON)
    assert not store.update(before, revised(before, {"tags": ("b",)}, None, NOON), NOON)
    present = kept(store, before.id)
    assert store.update(present, revised(present, {}, "2", NOON), NOON)
    assert not store.update(present, revised(present, {}, "3", NOON), NOON)
    assert (kept(store, before.id).tags, kept(store, before.id).data) == (("a",), "2")


@pytest.mark.parametrize("ended", [True, False])
def test_a_record_that_is_gone_or_ended_is_left_alone(store: Store, ended: bool) -> None:
    before = a_record()
    if ended:
        finished(store, before)

    assert not store.update(before, changed(before, queue="slow"), NOON)


def test_the_order_of_claims_follows_the_change(store: Store) -> None:
    first, second, third = store.add([a_record(), a_record(), a_record()])

    store.update(third, revised(third, {"priority": -1}, None, NOON), NOON)
    store.update(first, revised(first, {"priority": 1}, None, NOON), NOON)

    assert ids(claim(store, 3).records) == [third.id, second.id, first.id]


def test_a_job_of_another_queue_is_found_there(store: Store) -> None:
    [before] = store.add([a_record()])
    store.update(before, revised(before, {"queue": "slow"}, None, NOON), NOON)

    assert claim(store, queues={"default": None}).records == []
    assert ids(claim(store, queues={"slow": None}).records) == [before.id]


@pytest.mark.parametrize(("at", "told_as"), [(NOON + HOUR, ["postponed"]), (NOON, [])])
def test_a_change_of_status_is_told(store: Store, at: datetime, told_as: list[str]) -> None:
    [before] = store.add([a_record()])
    cursor = now_cursor(store)

    store.update(before, revised(before, {"at": at}, None, NOON), NOON)

    assert told(store, cursor) == told_as


def test_a_job_that_is_brought_forward_runs_then(opener: Opener) -> None:
    store, other = opener(), opener()
    [before] = store.add([postponed(NOON + HOUR)])
    bell = store.bell(WORK)

    other.update(before, revised(before, {"at": NOON + MINUTE}, None, NOON), NOON)

    assert rings(bell)
    bell.close()
    assert claim(store, now=NOON).next_at == NOON + MINUTE
    assert ids(claim(store, now=NOON + MINUTE).records) == [before.id]


def test_a_job_that_waits_for_another_keeps_waiting_for_it(store: Store) -> None:
    [other] = store.add([postponed(NOON + 2 * HOUR)])
    [before] = store.add([behind(other.id)])

    assert store.update(before, revised(before, {"at": NOON + HOUR, "priority": 2}, None, NOON), NOON)
    assert claim(store, now=NOON + HOUR).records == []
    present = kept(store, before.id)
    assert (present.status, present.ready_at, present.waiting_for) == (Status.POSTPONED, NOON + HOUR, (other.id,))


def test_the_end_of_a_job_that_is_moved_moves_with_it(store: Store) -> None:
    record = a_record(expires_at=NOON + MINUTE, given={"expires": "+1 minute"})
    [before] = store.add([record])

    after = revised(before, {"at": NOON + HOUR}, None, NOON)

    assert store.update(before, after, NOON)
    assert after.expires_at == NOON + HOUR + MINUTE
    assert kept(store, before.id) == after
    assert ids(claim(store, now=NOON + HOUR).records) == [before.id]


def test_a_failed_attempt_can_move_a_job_to_another_queue(store: Store) -> None:  # row 57, REC-28 inGroup
    run = running(store, a_record(queue="fast"))
    settle(store, run, Failed(failure=BROKEN, decision=RetryIn(after=60, queue="slow")))

    assert (kept(store, run.id).queue, kept(store, run.id).status) == ("slow", Status.POSTPONED)
    assert claim(store, now=NOON + HOUR, queues={"fast": None}).records == []
    assert ids(claim(store, now=NOON + HOUR, queues={"slow": None}).records) == [run.id]


def test_a_parent_of_another_priority_waits_since_when_it_did_once_its_children_have_ended(store: Store) -> None:
    added = a_record()
    parent = running(store, added)
    child = running(store, a_record(parent=parent.id))
    settle(store, parent, Awaiting(ids=(child.id,)))
    before = kept(store, parent.id)

    assert store.update(before, revised(before, {"priority": -2}, None, NOON), NOON)
    settle(store, child)

    after = kept(store, parent.id)
    assert (after.status, after.ready_at, after.priority) == (Status.WAITING, added.ready_at, -2)
    assert after.at_rank() == after
