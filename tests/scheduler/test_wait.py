"""Waiting: look first, then listen; duplicates, ended jobs, several threads, and a clear end when time is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from taskqueue import Process, Scheduler, Status
from taskqueue.errors import InvalidOption, JobFailed, JobNotFound, StoreUnavailable, WaitTimeout
from taskqueue.insight.records import LAST_LOOK, PAGE, read
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Done, Failed, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Failure, Record
from taskqueue.scheduler.end_listener import FEW, LOOK_AGAIN_AFTER, Listener, Watch
from taskqueue.scheduler.wait import ends
from taskqueue.store import Settlement, Store
from tests.nodes import eventually
from tests.scheduler.jobs import Broken, Echo
from tests.scheduler.meanwhile import Meanwhile
from tests.scheduler.playing import LIMIT, begin, end, play, seat, take

FAILED = Failed(failure=Failure(type="ValueError", message="no such address", traceback="Traceback …"))


def test_nothing_to_wait_for_is_over_at_once(scheduler: Scheduler) -> None:
    assert scheduler.wait_for([]) == []


def test_jobs_that_have_ended_are_not_waited_for(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    play(store)

    assert scheduler.wait_for([process], timeout=0) == [process]
    assert (process.status, process.result) == (Status.DONE, "played")
    assert process.wait(timeout=0).is_done  # PW-7: a job that ended before the wait


def test_duplicates_and_ids_are_fine_and_the_order_is_kept(scheduler: Scheduler, store: Store) -> None:
    first, second = scheduler.add_jobs([(Echo, 1), (Echo, 2)])
    play(store)
    waited = scheduler.wait_for([second, first.id, str(second.id), second], timeout=LIMIT)

    assert waited == [second, first, second, second]
    assert all(process.is_done for process in waited)


def test_one_job_is_waited_for_without_a_list(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    play(store)

    for alone in (process, process.id, str(process.id)):
        assert scheduler.wait_for(alone, timeout=LIMIT) == [process]


@pytest.mark.parametrize("wrong", [None, 5, [5]])
def test_what_is_no_job_is_not_waited_for(scheduler: Scheduler, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="pass a"):
        scheduler.wait_for(wrong)


@pytest.mark.parametrize("wrong", ["soon", "5", True, -1, float("nan"), 1e10])
def test_a_time_that_nobody_can_wait_is_refused(scheduler: Scheduler, wrong: Any) -> None:
    process = scheduler.add_job(Echo)

    with pytest.raises(InvalidOption, match=r"^timeout=.*: pass "):
        process.wait(timeout=wrong)


@pytest.mark.parametrize("patience", [float("inf"), "5m", timedelta(minutes=5)])
def test_several_threads_wait_as_long_as_is_said(scheduler: Scheduler, store: Store, patience: Any) -> None:
    process = scheduler.add_job(Echo)

    with (
        Meanwhile(lambda: scheduler.wait_for(process, timeout=patience)) as first,
        Meanwhile(lambda: scheduler.wait_for(process, timeout=patience)) as second,
    ):
        play(store)
    assert first.result == second.result == [process]


def test_a_job_that_ends_meanwhile_ends_the_wait(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    waiting = threading.Event()

    def wait() -> Process:
        waiting.set()
        return process.wait(timeout=LIMIT)

    with Meanwhile(wait) as waiter:
        waiting.wait(LIMIT)
        play(store)
    assert waiter.result.is_done


def test_a_job_that_is_run_in_the_same_process_ends_the_wait(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, 5)

    with Meanwhile(lambda: scheduler.wait_for([process.id], timeout=LIMIT)) as waiter:
        scheduler.run_pending()
    assert waiter.result[0].result == 5


def test_canceling_ends_the_wait(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo)

    with Meanwhile(lambda: scheduler.wait_for([process.id], timeout=LIMIT)) as waiter:
        scheduler.cancel_job(process.id)
    assert waiter.result[0].is_canceled


def test_the_end_of_the_time_names_what_is_open(scheduler: Scheduler, store: Store) -> None:
    [done] = scheduler.add_jobs([(Echo, 1)])
    play(store)
    opened = scheduler.add_jobs([(Echo, number) for number in range(7)])

    with pytest.raises(WaitTimeout) as over:
        scheduler.wait_for([done, *opened], timeout=0.05)
    assert over.value.open_jobs == tuple(process.id for process in opened)
    assert f"still open after 0.05 s: {opened[0].id}" in str(over.value)
    assert "and 2 more; `taskqueue why ID`" in str(over.value)


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
@pytest.mark.parametrize("calls_back", [False, True])
def test_the_end_of_the_time_names_the_store_and_the_nodes(
    scheduler: Scheduler, store: Store, calls_back: bool
) -> None:
    if calls_back:
        scheduler.on("done", print)
    in_default, in_mail = scheduler.add_job(Echo), scheduler.add_job(Echo, queue="mail")

    def said(*processes: Process) -> str:
        with pytest.raises(WaitTimeout) as over:
            scheduler.wait_for(list(processes), timeout=0.05)
        return str(over.value).partition("says what each waits for")[2]

    assert said(in_default) == (
        f" (store {store.url}). No node is running on this store: start one with `taskqueue-node`."
    )
    seat(store, "web-1", queues={"mail": None})
    assert said(in_mail).startswith(f" (store {store.url}). Nodes that take jobs of this queue: web-1 (")
    seat(store, "web-1", queues={"mail": None})
    assert ". No node takes jobs of queue default (web-1 takes mail): start one with" in said(in_mail, in_default)
    [running] = take(store, most=1)
    begin(store, running)
    assert said(scheduler.get_job(running.id)) == f" (store {store.url})"
    with pytest.raises(WaitTimeout) as over:
        in_mail.wait(timeout=0)
    assert str(over.value).endswith(f" (store {store.url})")  # a look without a wait reads nothing more


def test_a_wait_between_two_attempts_goes_on(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Broken, retry=1, retry_interval=0)
    play(store, FAILED)

    with pytest.raises(WaitTimeout):
        process.wait(timeout=0.05)
    play(store, FAILED)
    assert process.wait(timeout=LIMIT).status is Status.FAILED
    assert [attempt.number for attempt in process.attempts] == [1, 2]  # the same id over all attempts


def test_failure_raises_only_where_asked_for(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Broken)
    play(store, FAILED)

    assert process.wait().is_failed
    with pytest.raises(JobFailed) as failed:
        process.wait(raise_on_error=True)
    assert (failed.value.id, failed.value.status) == (process.id, "FAILED")
    assert failed.value.error.traceback == "Traceback …"
    assert str(failed.value) == f"job {process.id} ended as FAILED: ValueError: no such address"


def test_the_first_failure_ends_a_wait_that_raises(scheduler: Scheduler, store: Store) -> None:
    broken = scheduler.add_job(Broken)
    play(store, FAILED)
    opened = scheduler.add_job(Echo)

    with pytest.raises(JobFailed):
        scheduler.wait_for([opened.id, broken.id], raise_on_error=True, timeout=LIMIT)
    with pytest.raises(JobFailed):
        scheduler.wait_for([scheduler.get_job(opened.id), opened.cancel()], raise_on_error=True, timeout=LIMIT)


def test_an_unknown_job_is_not_waited_for(scheduler: Scheduler) -> None:
    with pytest.raises(JobNotFound):
        scheduler.wait_for([ObjectId()])
    with pytest.raises(JobNotFound, match="24 hexadecimal digits"):
        scheduler.wait_for(["some id"])
    with pytest.raises(InvalidOption, match="id is missing"):
        scheduler.wait_for([None])  # type: ignore[list-item]


def test_removed_jobs_end_the_wait(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo)
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        with pytest.raises(JobNotFound):
            process.wait(timeout=LIMIT)

    with Meanwhile(wait):
        waiting.wait(LIMIT)
        assert scheduler.flush() == 1


def test_many_threads_wait_for_jobs_of_their_own(scheduler: Scheduler, store: Store) -> None:
    processes = scheduler.add_jobs((Echo, number) for number in range(40))
    ended: list[object] = []

    def wait(mine: list[Process]) -> None:
        ended.extend(process.data for process in scheduler.wait_for(mine, timeout=LIMIT))

    threads = [threading.Thread(target=wait, args=(processes[start::8],)) for start in range(8)]
    for thread in threads:
        thread.start()
    for record in take(store):
        end(store, begin(store, record))
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(map(str, ended)) == sorted(map(str, range(40)))


def test_a_thread_that_gives_up_hands_the_listening_over(scheduler: Scheduler, store: Store) -> None:
    first, second = scheduler.add_jobs([(Echo, 1), (Echo, 2)])

    gave_up = threading.Event()

    def give_up() -> None:
        with pytest.raises(WaitTimeout):
            first.wait(timeout=0.3)
        gave_up.set()

    with Meanwhile(give_up), Meanwhile(lambda: second.wait(timeout=LIMIT)) as waiter:
        gave_up.wait(LIMIT)
        play(store)
    assert waiter.result.is_done


@pytest.mark.parametrize("number", [1_500, pytest.param(10_000, marks=pytest.mark.long)])
def test_waiting_for_thousands_of_jobs_reads_what_is_new(scheduler: Scheduler, store: Store, number: int) -> None:
    processes = scheduler.add_jobs((Echo, None) for _ in range(number))

    with Meanwhile(lambda: scheduler.wait_for(processes, timeout=LIMIT)) as waiter:
        while records := take(store, most=1000):
            _settle(store, records)
    assert all(process.is_done for process in waiter.result)


def _settle(store: Store, records: list[Any]) -> None:
    now = store.now()
    store.settle(
        [
            Settlement(claims=one.claims, holder=one.holder, after=ended(one, Done(), Run(node="web-1"), now))
            for one in records
        ],
        now,
    )


@contextmanager
def watching(listener: Listener, ids: Iterable[JobId]) -> Iterator[Watch]:
    watch = Watch(set(ids))
    listener.admit(watch)
    try:
        yield watch
    finally:
        listener.dismiss(watch)


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_listener_that_has_missed_what_was_pruned_looks_at_everything(scheduler: Scheduler, store: Store) -> None:
    ids = {process.id for process in scheduler.add_jobs((Echo, number) for number in range(FEW + 1))}
    listener = scheduler._connections.listener
    with watching(listener, ids) as watch:
        play(store)
        store.prune({}, store.now() + timedelta(days=1), 1000)
        assert listener.take(watch, time.monotonic() + LIMIT) == ids


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_after_a_long_silence_everything_is_looked_at(scheduler: Scheduler) -> None:
    ids = {process.id for process in scheduler.add_jobs((Echo, number) for number in range(FEW + 1))}
    listener = scheduler._connections.listener
    with watching(listener, ids) as watch:
        listener._heard_at -= 2 * LOOK_AGAIN_AFTER
        assert listener.take(watch, time.monotonic() + LIMIT) == ids
        assert listener.take(watch, time.monotonic()) == set()


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_who_waits_for_few_and_who_waits_for_many_hear_of_the_same_ends(scheduler: Scheduler, store: Store) -> None:
    first, *many = scheduler.add_jobs((Echo, number) for number in range(2 * FEW + 1))
    listener = scheduler._connections.listener
    with watching(listener, [first.id]) as few:
        end(store, begin(store, take(store, most=1)[0]))
        with watching(listener, [process.id for process in many]) as others:
            assert listener.take(few, time.monotonic() + LIMIT) == {first.id}  # it ended before anybody read the news

            play(store)

            assert listener.take(others, time.monotonic() + LIMIT) == {process.id for process in many}
            assert listener.take(few, time.monotonic()) == set()


def test_closing_ends_a_wait_with_a_clear_error(url: str) -> None:
    scheduler = Scheduler(url)
    process = scheduler.add_job(Echo)

    def wait() -> None:
        with pytest.raises(StoreUnavailable):
            process.wait(timeout=LIMIT)

    listener = scheduler._connections.listener
    with Meanwhile(wait):
        eventually(lambda: listener._reader is not None)
        scheduler.close()
    assert listener._bell is None


class Deaf(Listener):
    """A listener for which everything ends after the first look, and which hears nothing of it."""

    def take(self, watch: Watch, deadline: float | None, job_wait: object = None) -> set[JobId]:
        """Let all jobs end, and return nothing at the deadline."""
        play(self._store)
        return super().take(Watch(set()), deadline)


def test_a_job_that_ended_in_time_is_found_also_if_its_event_has_not_come(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)

    with closing(Deaf(store)) as listener:
        [found] = ends(store, listener, [process.id], timeout=3.0)

    assert found.status is Status.DONE


class Slow:
    """A store that answers each page of records after ``seconds``, and keeps their ids."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self.pages: list[tuple[str, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def find(self, query: Any, limit: int) -> list[Record]:
        """Return what the store finds, late."""
        self.pages.append(query.value)
        threading.Event().wait(self._seconds)
        return self._store.find(query, limit=limit)


def test_a_timeout_holds_for_more_jobs_than_can_be_read_in_time(blocking: Scheduler, store: Store) -> None:
    ids = [process.id for process in blocking.add_jobs((Echo, None) for _ in range(2 * PAGE + 1))]
    slow: Any = Slow(store, LAST_LOOK)

    with closing(Listener(store)) as listener, pytest.raises(WaitTimeout) as over:
        list(ends(slow, listener, ids, timeout=0))

    assert len(slow.pages) == 1
    assert over.value.open_jobs == tuple(ids)
    assert "and 996 more (501 of them could not be read in time, and may have ended)" in str(over.value)


def test_the_last_look_begins_with_jobs_that_were_not_read(blocking: Scheduler, store: Store) -> None:
    first = [process.id for process in blocking.add_jobs((Echo, None) for _ in range(PAGE))]
    last = blocking.add_job(Echo).id
    slow: Any = Slow(store, 0.3)

    with closing(Listener(store)) as listener, pytest.raises(WaitTimeout) as over:
        list(ends(slow, listener, [*first, last], timeout=0.3))

    first_look, last_look, *others = [str(last) in ids for ids in slow.pages]
    assert (first_look, last_look) == (False, True)
    assert not any(others)  # the rest, unless the machine was too slow for it
    assert over.value.open_jobs == (*first, last)


@pytest.mark.parametrize("calls_back", [False, True])
def test_an_unknown_job_of_thousands_is_said_after_the_first_page(
    scheduler: Scheduler, store: Store, calls_back: bool
) -> None:
    known = [process.id for process in scheduler.add_jobs((Echo, None) for _ in range(PAGE))]
    unknown = [ObjectId() for _ in range(3 * PAGE)]
    if calls_back:
        scheduler.on("done", print)
    with pytest.raises(JobNotFound):
        scheduler.wait_for([*known, *unknown], timeout=LIMIT)

    slow: Any = Slow(store, 0)
    with pytest.raises(JobNotFound, match=str(unknown[0])):
        read(slow, unknown)
    assert len(slow.pages) == 1
