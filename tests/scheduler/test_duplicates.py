"""Debounce and throttle: jobs that come while another has their unique key."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from threading import Barrier
from typing import Any, ClassVar

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from taskqueue import Process, Scheduler, Status
from taskqueue.errors import InvalidOption, KeyTaken
from taskqueue.store import Store
from tests.scheduler.jobs import Echo
from tests.scheduler.playing import begin, end, play, take

KEY: dict[str, Any] = {"unique": "k"}
both_stores = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


class Sync(Echo):
    """At most one of its jobs starts in an hour."""

    options: ClassVar = {"unique": "sync", "unique_for": "1h"}


def count(scheduler: Scheduler) -> int:
    """Return how many jobs there are."""
    return len(list(scheduler.get_jobs({})))


@both_stores
def test_at_most_one_job_starts_in_a_period(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Sync, 1)
    play(store)
    again = scheduler.add_job(Sync, 2)
    [third] = scheduler.add_jobs([(Sync, 3)])

    assert (again.id, again.existed, again.status, third.id) == (first.id, True, Status.DONE, first.id)
    assert scheduler.add_job(Sync, 4, at="+1h").is_postponed
    assert again.options["unique_for"] == 3600


@both_stores
def test_a_key_that_is_taken_is_an_error_on_request(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Echo, 1, **KEY, unique_for=60)
    play(store)

    with pytest.raises(KeyTaken, match=rf"unique='k': job {first.id} \(.*:Echo, DONE\) has this key, until .* UTC"):
        scheduler.add_job(Echo, 2, **KEY, unique_for=60, on_duplicate="raise")
    with pytest.raises(KeyTaken):
        scheduler.run_job(Echo, 2, **KEY, unique_for=60, on_duplicate="raise")
    assert count(scheduler) == 1


@both_stores
def test_the_newest_data_take_the_place_of_those_that_wait(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Echo, 1, **KEY, at="+1 hour")
    again = scheduler.add_job(Echo, 2, **KEY, at="+2 hours", on_duplicate="replace")

    assert (again.id, again.existed, again.data) == (first.id, True, 2)
    assert again.ready_at == first.ready_at
    assert first.refresh().data == 2
    assert scheduler.add_job(Echo, 2, **KEY, on_duplicate="replace").id == first.id


@both_stores
def test_a_job_is_put_off_as_long_as_others_come(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Echo, 1, **KEY, at="+1 hour", on_duplicate="extend")
    again = scheduler.add_job(Echo, 2, **KEY, at="+2 hours", on_duplicate="extend")
    earlier = scheduler.add_job(Echo, 3, **KEY, on_duplicate="extend")
    options: Any = {**KEY, "at": "+3 hours", "on_duplicate": "extend"}
    [many] = scheduler.add_jobs([(Echo, 4, options)])

    assert {first.id} == {again.id, earlier.id, many.id}
    assert put_off(first, again) == pytest.approx(3600, abs=60)
    assert put_off(first, earlier) == put_off(first, again)
    assert put_off(first, many) == pytest.approx(7200, abs=60)
    assert many.refresh().data == 4


def put_off(first: Process, later: Process) -> float:
    """Return by how many seconds."""
    assert first.ready_at is not None
    assert later.ready_at is not None
    return (later.ready_at - first.ready_at).total_seconds()


def test_a_job_is_not_put_off_beyond_its_period(scheduler: Scheduler) -> None:
    options = {**KEY, "unique_for": "30m", "on_duplicate": "extend"}
    first = scheduler.add_job(Echo, 1, at="+1 hour", **options)
    for hours in (2, 3):
        again = scheduler.add_job(Echo, hours, at=f"+{hours} hours", **options)

    assert (again.id, put_off(first, again)) == (first.id, 1800)


@both_stores
def test_a_job_that_comes_while_another_runs_runs_behind_it(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Echo, 1, **KEY)
    [run] = take(store)
    begun = begin(store, run)

    again = scheduler.add_job(Echo, 2, **KEY, on_duplicate="replace")
    once_more = scheduler.add_job(Echo, 3, **KEY, on_duplicate="replace")

    assert (again.existed, again.waiting_for) == (False, (first.id,))
    assert (once_more.id, once_more.data) == (again.id, 3)
    end(store, begun)
    assert play(store) == [again.id]


@both_stores
def test_a_job_that_comes_when_another_has_ended_runs_when_the_period_is_over(
    scheduler: Scheduler, store: Store
) -> None:
    options = {**KEY, "unique_for": "1h", "on_duplicate": "extend"}
    first = scheduler.add_job(Echo, 1, **options)
    play(store)

    again = scheduler.add_job(Echo, 2, **options)
    once_more = scheduler.add_job(Echo, 3, **options)

    assert (again.existed, again.is_postponed, put_off(first, again)) == (False, True, 3600)
    assert (once_more.id, once_more.data, once_more.ready_at) == (again.id, 3, again.ready_at)
    assert count(scheduler) == 2


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_period_holds_in_a_transaction_on_sqlite(scheduler: Scheduler, store: Store, url: str) -> None:
    first = scheduler.add_job(Sync, 1)
    play(store)

    path = url.removeprefix("sqlite://").partition("?")[0]
    with closing(sqlite3.connect(path)) as connection, Scheduler(connection=connection) as mine:
        assert mine.add_job(Sync, 2).id == first.id
        new = mine.add_job(Echo, 2, **KEY, unique_for=60)
        assert mine.add_job(Echo, 3, **KEY, unique_for=60, on_duplicate="replace").id == new.id
        connection.commit()

    assert scheduler.get_job(new.id).data == 3


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
@pytest.mark.parametrize("url", ["mongodb"], indirect=True)
def test_a_period_holds_in_a_transaction_on_mongodb(scheduler: Scheduler, store: Store, url: str) -> None:
    first = scheduler.add_job(Sync, 1)
    play(store)

    def in_transaction(session: ClientSession) -> Process:
        assert scheduler.add_job(Sync, 2, session=session).id == first.id
        with pytest.raises(KeyTaken):
            scheduler.add_job(Sync, 2, session=session, on_duplicate="raise")
        with pytest.raises(InvalidOption, match="own transaction cannot change another job: pass 'return' or 'raise'"):
            scheduler.add_job(Sync, 2, session=session, on_duplicate="extend")
        return scheduler.add_job(Sync, 2, session=session, at="+2h")

    with MongoClient[dict[str, Any]](url) as client, client.start_session() as session:
        over = session.with_transaction(in_transaction)  # repeated where the store tidies the ended job meanwhile
    assert scheduler.get_job(over.id).is_postponed


def test_a_copy_of_a_job_has_no_period(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Sync, 1)
    play(store)

    copy = scheduler.recover_job(first.id)

    assert copy.id != first.id
    assert play(store) == [copy.id]


def test_pending_jobs_alone_count_where_one_is_added_once(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job_once(Sync, 1)
    play(store)

    assert scheduler.add_job_once(Sync, 1).id != first.id
    with pytest.raises(InvalidOption, match="add_job_once: unique_for is for add_job"):
        scheduler.add_job_once(Echo, 1, **KEY, unique_for=60)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unique_for": 60}, "unique_for=60 applies to a unique key: pass unique as well"),
        ({"on_duplicate": "raise"}, "on_duplicate='raise' applies to a unique key"),
        ({**KEY, "unique_for": 60, "interval": 5}, "is for jobs that run once: leave out interval, or unique_for"),
        ({**KEY, "unique_for": 0}, "unique_for=0: pass seconds or '5m', more than 0"),
        ({**KEY, "on_duplicate": "drop"}, "on_duplicate='drop': pass 'return', 'replace', 'extend' or 'raise'"),
    ],
)
def test_what_cannot_be_is_refused(scheduler: Scheduler, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        scheduler.add_job(Echo, **options)


def test_what_cannot_be_of_several_or_here_is_refused(scheduler: Scheduler) -> None:
    options: Any = {**KEY, "on_duplicate": "raise"}
    with pytest.raises(InvalidOption, match=r"jobs\[1\]\..*:Echo: on_duplicate='raise' works only with add_job"):
        scheduler.add_jobs([(Echo, 1), (Echo, 2, options)])
    with pytest.raises(InvalidOption, match="run_job runs the new job, or none: pass 'return' or 'raise'"):
        scheduler.run_job(Echo, 1, **KEY, on_duplicate="extend")
    assert count(scheduler) == 0


def test_a_relative_end_counts_from_the_new_time(scheduler: Scheduler) -> None:
    options = {**KEY, "expires": "+10m", "on_duplicate": "extend"}
    scheduler.add_job(Echo, 1, at="+1 hour", **options)
    again = scheduler.add_job(Echo, 1, at="+2 hours", **options)

    assert again.ready_at is not None
    assert again.expires_at == again.ready_at + timedelta(minutes=10)


@both_stores
@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
@pytest.mark.parametrize("action", ["replace", "extend"])
def test_many_calls_at_once_are_one_job(scheduler: Scheduler, action: Any) -> None:
    start = Barrier(4)

    def call(number: int) -> Process:
        start.wait()
        return scheduler.add_job(Echo, number, **KEY, at=f"+{number} hours", on_duplicate=action)

    with ThreadPoolExecutor(4) as threads:
        processes = list(threads.map(call, range(1, 5)))

    [kept] = scheduler.get_jobs({})
    assert {process.id for process in processes} == {kept.id}
    assert [process.existed for process in processes].count(False) == 1
    if action == "extend":
        assert put_off(processes[-1], kept) == 0
