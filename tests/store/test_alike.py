"""What a store takes for the same job (PTS-12): it remembers what it has seen, and misses nothing that comes later."""

from __future__ import annotations

from typing import Any

import pytest

from taskqueue.model import unique_period
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record
from taskqueue.store import Store
from tests.store.conftest import Opener
from tests.store.records import HOUR, NOON, a_record, claim, finished, ids, postponed, running, settlement


def once(data: str, **fields: Any) -> Record:
    """Return a record with the key of ``add_job_once``."""
    return a_record(data=data, unique=unique_period.of_data(fields.get("job", "app:Mail"), data), **fields)


def same(store: Store, data: str, *, ignore_data: bool = False) -> list[JobId]:
    """Return what is the same as a job of ``add_job_once`` with these data."""
    key = unique_period.of_class("app:Mail") if ignore_data else unique_period.of_data("app:Mail", data)
    return ids(store.alike(a_record(data=data, unique=key), ignore_data))


def test_what_comes_in_after_a_look_is_seen(opener: Opener) -> None:
    store, other = opener(), opener()
    store.add([once(str(number)) for number in range(20)])
    assert same(store, "7.5") == []

    plain = a_record(data="7.5")
    other.add([once(str(number)) for number in range(20, 70)])
    other.add([plain])
    other.add([once(str(number)) for number in range(70, 90)])

    assert same(store, "7.5") == [plain.id]
    assert same(store, "7.5") == [plain.id]
    assert same(store, "8.5") == []


@pytest.mark.parametrize("many", [1, unique_period.FEW, unique_period.FEW + 1])
def test_jobs_without_a_key_are_seen_however_many_they_are(store: Store, many: int) -> None:
    plain = [a_record(data=str(number)) for number in range(many)]
    store.add([once("-1"), *plain])

    assert same(store, str(many - 1)) == [plain[-1].id]
    later = postponed(NOON + HOUR, data='"later"')
    store.add([later])
    assert same(store, '"later"') == [later.id]
    assert same(store, "0") == [plain[0].id]


def test_one_that_has_ended_is_not_the_same_and_one_that_is_changed_is_what_it_is_now(store: Store) -> None:
    run, changing = running(store, a_record(data="1")), a_record(data="2")
    store.add([changing])
    assert (same(store, "1"), same(store, "2"), same(store, "3")) == ([run.id], [changing.id], [])

    store.settle([settlement(run)], NOON)
    assert store.update(changing, Record(**{**vars(changing), "data": "3"}), NOON)

    assert (same(store, "1"), same(store, "2"), same(store, "3")) == ([], [], [changing.id])


def test_what_takes_the_place_of_removed_records_is_seen(store: Store) -> None:
    store.add([once(str(number)) for number in range(50)])
    assert same(store, '"plain"') == []
    store.flush()

    store.add([a_record(data='"other"') for _ in range(20)])
    plain = a_record(data='"plain"')
    store.add([plain, *(once(str(number)) for number in range(60))])

    assert same(store, '"plain"') == [plain.id]


def test_the_last_record_that_was_known_may_be_removed(store: Store) -> None:
    store.add([once("0")])
    done = finished(store, a_record(data="1", priority=-20))
    assert same(store, '"plain"') == []

    assert store.prune({done.status: NOON + HOUR}, NOON, 10) == 1
    plain = a_record(data='"plain"')
    store.add([plain, once("2")])

    assert same(store, '"plain"') == [plain.id]


def test_a_running_one_that_gave_up_its_key_is_the_same_after_its_successor_was_canceled(opener: Opener) -> None:
    store, other = opener(), opener()
    run = running(store, once("1"))
    assert [same(each, "2") for each in (store, other)] == [[], []]  # from now on, both know all without a key

    successor = store.replace(once("1"), run, None, NOON)
    assert successor is not None
    assert [same(each, "1") for each in (store, other)] == [[successor.id]] * 2
    store.cancel(successor.id, "", NOON)

    assert [same(each, "1") for each in (store, other)] == [[run.id]] * 2
    store.settle([settlement(run)], NOON)
    assert same(store, "1") == []


def test_with_ignored_data_all_of_the_class_are_the_same_and_none_of_another_class(store: Store) -> None:
    whole = a_record(data="0", unique=unique_period.of_class("app:Mail"))
    given = [
        whole,
        once("1"),
        a_record(data="2"),
        a_record(data="3", unique="mine"),
        a_record(data="4", unique="once:a"),
    ]
    others = [once("1", job="app:Mail2"), once("1", job="app:Mai"), a_record(job="app:Mail.send", data="1")]
    store.add([*given, *others])

    assert set(same(store, "9", ignore_data=True)) == set(ids(given))
    assert same(store, "0") == [whole.id]
    assert same(store, "3") == [given[3].id]


def test_running_ones_come_first_and_then_the_oldest(store: Store) -> None:
    keyed, plain = once("1", created_at=NOON + HOUR), a_record(data="2", created_at=NOON + 2 * HOUR)
    run = running(store, once("3", created_at=NOON + 3 * HOUR))
    store.add([plain, keyed])

    assert same(store, "9", ignore_data=True) == [run.id, keyed.id, plain.id]
    assert claim(store).records
