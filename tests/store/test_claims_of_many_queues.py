"""Claims of all queues take the lowest (rank, id) of all, however many queues there are and whoever changes them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue.errors import StoreUnavailable
from taskqueue.model.controls import Control, Kind
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.limits import Limit, lane
from taskqueue.model.query import parse
from taskqueue.model.record import Options, Record, Status, changed
from taskqueue.model.retry import FixedRetry
from taskqueue.store import ClaimRequest, Store
from taskqueue.store.bell import WORK
from taskqueue.store.open import open_store
from tests.nodes import eventually
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
    claim,
    forced,
    ids,
    postponed,
    rings,
    settle,
)

QUEUES = [f"customer-{number:02}" for number in range(40)]


def one_each(**fields: object) -> list[Record]:
    """Return a record of each queue, of which none is as old as another."""
    return [a_record(queue=queue, ready_at=NOON - number * SECOND, **fields) for number, queue in enumerate(QUEUES)]


def in_order(store: Store) -> list[JobId]:
    """Return the ids of the waiting records in the order of claims."""
    return ids(store.find(parse({"status": int(Status.WAITING)}), order="rank", limit=1000))


def test_the_oldest_of_all_queues_come_first(store: Store) -> None:
    records = [*one_each(), *one_each()]
    store.add(records)

    for number in (1, 30, 1, 100):
        expected = in_order(store)[:number]
        assert ids(claim(store, number).records) == expected
    assert claim(store, 1).records == []


def test_what_others_add_move_cancel_and_take_is_seen_at_once(opener: Opener) -> None:
    store, other = opener(), opener()
    records = one_each()
    store.add(records)
    assert ids(claim(store, 1).records) == ids(records[-1:])

    new, urgent, moved = a_record(queue="new", ready_at=NOON - HOUR), records[0], records[1]
    other.add([new])
    assert ids(claim(store, 1).records) == [new.id]
    assert other.update(urgent, changed(urgent, priority=-5).at_rank(), NOON)
    assert ids(claim(store, 1).records) == [urgent.id]
    assert other.update(moved, changed(moved, queue="other", ready_at=NOON - HOUR).at_rank(), NOON)
    assert ids(claim(store, 1).records) == [moved.id]
    other.cancel(records[-2].id, "", NOON)
    assert ids(claim(other, 1, holder=WEB_2).records) == [records[-3].id]
    assert ids(claim(store, 1).records) == [records[-4].id]


def test_jobs_that_become_due_or_are_tried_again_are_seen_at_once(store: Store) -> None:
    store.add(one_each(priority=3))
    run = claim(store, 1).records[0]
    due = postponed(NOON + SECOND, queue="due", priority=-3)
    retried = a_record(queue="retried", priority=-2, options=Options(retry=FixedRetry(1, 0.0)))
    store.add([due, retried])
    [failing] = claim(store, 1).records

    settle(store, changed(failing, started_at=NOON), Failed(failure=BROKEN))

    assert failing.id == retried.id != run.id
    assert ids(claim(store, 2, now=NOON + SECOND).records) == [due.id, retried.id]


def test_paused_queues_are_left_out_until_they_are_resumed(store: Store) -> None:
    records = one_each()
    store.add(records)
    for queue in QUEUES[-3:]:
        store.set_control(Control(kind=Kind.PAUSE, name=queue, since=NOON, by="ann"))

    assert ids(claim(store, 2).records) == ids([records[-4], records[-5]])
    store.clear_control(Kind.PAUSE, QUEUES[-2])
    assert ids(claim(store, 2).records) == ids([records[-2], records[-6]])


@pytest.mark.parametrize("seed", range(3))
def test_every_claim_takes_the_lowest_of_the_many_queues_that_are_not_paused(opener: Opener, seed: int) -> None:
    chance, stores = random.Random(seed), [opener(), opener()]
    queues = [f"customer-{number:03}" for number in range(250)]
    paused = set(queues[::100])
    for name in paused:
        stores[0].set_control(Control(kind=Kind.PAUSE, name=name, since=NOON, by="ann"))

    def some(number: int) -> list[Record]:
        names = [*queues, *chance.choices(queues, k=number)]
        return [a_record(queue=queue, ready_at=NOON - chance.random() * HOUR) for queue in names]

    stores[0].add(some(200))
    for number in (1, 3, 130, 2, 90):
        stores[1].add(some(5)[-5:])
        waiting = stores[0].find(parse({"status": int(Status.WAITING)}), order="rank", limit=1000)
        expected = [one.id for one in waiting if one.queue not in paused][:number]
        assert ids(claim(chance.choice(stores), number).records) == expected


def test_no_job_is_left_behind_where_a_bell_tells_of_new_ones(opener: Opener) -> None:
    store, other = opener(), opener()
    store.set_control(Control(kind=Kind.PAUSE, name="customer-000", since=NOON, by="ann"))
    queues = [f"customer-{number:03}" for number in range(150)]
    with closing(store.bell(WORK)) as bell:
        store.add([a_record(queue=queue, ready_at=NOON - number * SECOND) for number, queue in enumerate(queues)])
        taken = [one.queue for one in claim(store, 5).records]
        other.add([a_record(queue="new", ready_at=NOON - HOUR), a_record(queue=queues[-1], ready_at=NOON - HOUR)])
        assert rings(bell)

        def drain() -> int:
            taken.extend(one.queue for one in claim(store, 40).records)
            return len(taken)

        eventually(lambda: drain() == len(queues) + 1)

    assert sorted(taken) == sorted([*queues[1:], "new", queues[-1]])


def test_jobs_with_a_process_of_their_own_or_a_limit_keep_their_place(store: Store) -> None:
    plain, alone = one_each(), [forced(queue=queue, ready_at=NOON - HOUR) for queue in QUEUES[:3]]
    mail = lane([Limit(2)], "app:Mail", None)
    limited = [a_record(queue=queue, lane=mail, ready_at=NOON - MINUTE) for queue in QUEUES[:3]]
    store.add([*plain, *alone, *limited])

    taken = claim(store, 4, forced=2).records

    assert set(ids(taken)) == {*ids(alone)[:2], *ids(limited)[:2], *ids(plain)[-2:]}


@pytest.mark.parametrize("seed", range(3))
def test_every_claim_takes_the_lowest_whatever_has_happened(opener: Opener, seed: int) -> None:
    chance, stores = random.Random(seed), [opener(), opener()]
    stores[0].add(one_each())
    for _ in range(40):
        store = chance.choice(stores)
        match chance.randrange(5):
            case 0:
                some = chance.choices(QUEUES, k=chance.randrange(1, 8))
                store.add([a_record(queue=queue, ready_at=NOON - chance.random() * HOUR) for queue in some])
            case 1:
                for found in store.find(parse({"status": int(Status.WAITING)}), limit=2):
                    changes = {"queue": chance.choice(QUEUES), "priority": chance.randrange(-2, 3)}
                    store.update(found, changed(found, **changes).at_rank(), NOON)
            case 2:
                store.cancel_many(ids(store.find(parse({"status": int(Status.WAITING)}), limit=2)), "", NOON)
            case _:
                number = chance.randrange(1, 12)
                expected = in_order(store)[:number]
                assert ids(claim(store, number).records) == expected


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db")) as opened:
        yield opened


def test_a_claim_that_failed_leaves_all_jobs_to_the_next_one(embedded: Store) -> None:
    records = one_each()
    embedded.add(records)
    claim(embedded, 1)
    raw: sqlite3.Connection = embedded._engine._raw  # type: ignore[attr-defined]
    written: list[str] = []
    raw.set_trace_callback(lambda said: written.append(said) if said.startswith("UPDATE jobs") else None)
    raw.set_progress_handler(lambda: bool(written), 1)
    with pytest.raises(StoreUnavailable):
        claim(embedded, 5)
    raw.set_progress_handler(None, 0)
    raw.set_trace_callback(None)

    assert ids(claim(embedded, 2).records) == ids([records[-2], records[-3]])


def test_jobs_that_are_left_for_their_bytes_are_first_in_the_next_claim(embedded: Store) -> None:
    embedded.add(one_each(data='"' + "x" * 100 + '"'))
    expected = in_order(embedded)
    found = embedded.claim(WEB_1, ClaimRequest(pooled=10, data=250), NOON, NOON + LEASE)

    assert ids(found.records) == expected[:2]
    assert found.has_more
    assert ids(claim(embedded, 3).records) == expected[2:5]
