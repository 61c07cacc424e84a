"""A unique key that stays taken for a period, also when its job has ended, on both stores."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

import pytest

from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.record import Record, Status
from taskqueue.model.unique_period import PERIOD, end_of, period, without
from taskqueue.store import Store
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    a_record,
    all_kept,
    claim,
    finished,
    kept,
    postponed,
    running,
)


def of_period(at: datetime = NOON, **fields: Any) -> Record:
    """Return a record whose key is taken for an hour from then on."""
    return a_record(unique="k", created_at=at, ready_at=at, given={PERIOD: period("k", 3600, at)}, **fields)


def test_a_key_stays_taken_when_its_job_has_ended(store: Store) -> None:
    first = finished(store, of_period())

    assert first.status is Status.DONE
    assert store.add([of_period(NOON + MINUTE)]) == [first]
    assert store.add([of_period(NOON + MINUTE), of_period(NOON + 2 * MINUTE)]) == [first, first]
    assert all_kept(store) == [first]


def test_a_key_is_free_when_its_period_is_over(store: Store) -> None:
    first = finished(store, of_period())
    later = of_period(NOON + HOUR)

    assert store.add([later]) == [later]
    assert end_of(kept(store, later.id)) == NOON + 2 * HOUR
    assert end_of(kept(store, first.id)) is None
    assert store.add([of_period(NOON + HOUR + SECOND)]) == [kept(store, later.id)]


def test_a_job_that_starts_behind_the_period_is_not_kept_out(store: Store) -> None:
    finished(store, of_period())
    later = postponed(NOON + HOUR, unique="k", given={PERIOD: period("k", 3600, NOON + HOUR)})

    assert store.add([later]) == [later]


def test_a_job_that_failed_gives_its_key_up(store: Store) -> None:
    finished(store, of_period(), Failed(failure=BROKEN))
    canceled = of_period()
    assert store.add([canceled]) == [canceled]
    store.cancel(canceled.id, "", NOON)

    again = of_period(NOON + SECOND)
    assert store.add([again]) == [again]


def test_a_pending_job_has_its_key_whatever_its_period(store: Store) -> None:
    first = running(store, of_period())
    without_period = a_record(unique="k", created_at=NOON + MINUTE, ready_at=NOON + MINUTE)

    assert [one.id for one in store.add([of_period(NOON + 2 * HOUR)])] == [first.id]
    assert [one.id for one in store.add([without_period])] == [first.id]


def test_only_jobs_with_a_period_mind_one(store: Store) -> None:
    finished(store, of_period())
    free = a_record(unique="k")

    assert store.add([free]) == [free]
    assert [one.id for one in store.add([of_period(NOON + MINUTE)])] == [free.id]


def test_a_running_job_that_is_replaced_gives_its_period_up(store: Store) -> None:
    old = running(store, of_period())
    new = of_period(NOON + MINUTE)

    placed = store.replace(new, kept(store, old.id), None, NOON + MINUTE)

    assert placed is not None
    assert placed.id == new.id
    assert [one.id for one in store.add([of_period(NOON + 2 * MINUTE)])] == [new.id]


@pytest.mark.parametrize("before", ["free", "over"])
def test_one_of_many_that_come_at_once_gets_the_key(opener: Opener, before: str) -> None:
    first = without(of_period()) if before == "free" else of_period()
    finished(opener(), first)
    start = threading.Barrier(4)
    records = [of_period(NOON + HOUR) for _ in range(4)]
    returned: list[Record] = []

    def add(store: Store, record: Record) -> None:
        start.wait()
        returned.extend(store.add([record]))

    threads = [threading.Thread(target=add, args=(opener(), record)) for record in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    [winner] = [one for one in all_kept(opener()) if one.id != first.id]
    assert {one.id for one in returned} == {winner.id}
    [taken] = claim(opener(), 9, now=NOON + HOUR).records
    assert taken.id == winner.id
