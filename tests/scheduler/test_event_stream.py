"""Who listens hears everything, in order, as long as wanted, and goes on later where they left off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from taskqueue import Event, Scheduler, Status
from taskqueue.errors import CursorTooOld, InvalidOption, InvalidQuery, JobNotFound, StoreUnavailable, WaitTimeout
from taskqueue.model.events import BECAME_LEADER, EVENTS, JOB_EVENTS, WORKER_ENDED
from taskqueue.model.lifecycle.outcomes import Canceled, Done, Failed, GivenUp, Outcome, Snoozed, TimedOut
from taskqueue.scheduler.event_stream import PAGE
from taskqueue.store import Event as Told
from taskqueue.store import Store
from tests.nodes import LIMIT
from tests.scheduler.jobs import Echo, Mail
from tests.scheduler.playing import begin, end, play, take
from tests.store.records import BROKEN

BOTH = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


def heard(scheduler: Scheduler, cursor: str) -> list[Event]:
    """Return what has happened since the cursor."""
    return list(scheduler.events(cursor=cursor, timeout=0))


def a_node_tells(scheduler: Scheduler, store: Store, name: str) -> None:
    about = {"pid": 7, "exit": "exited with 0"}
    store.record_events([Told(id=f"web-1/a1:1:{name}", name=name, at=store.now(), node="web-1", about=about)])


def test_a_listener_hears_the_life_of_a_job(scheduler: Scheduler) -> None:
    cursor = scheduler.cursor()
    process = scheduler.add_job(Echo, 3)
    scheduler.run_pending()

    events = heard(scheduler, cursor)

    assert names(events) == ["waiting", "processing", "done"]
    assert [event.status for event in events] == [Status.WAITING, Status.PROCESSING, Status.DONE]
    assert {event.job_id for event in events} == {process.id}
    assert [event.id for event in events] == [
        f"{process.id}:0:waiting", f"{process.id}:1:processing", f"{process.id}:1:done",
    ]  # fmt: skip
    assert events[0].at <= events[-1].at
    assert events[-1].process is not None
    assert events[-1].process.result == 3
    assert repr(events[-1]) == f"<Event done {process.id}>"


@contextmanager
def when_heard(scheduler: Scheduler, url: str, act: Callable[[], object]) -> Iterator[None]:
    """Act in another thread as soon as the scheduler hears of events."""
    hears = threading.Event()
    scheduler.on("waiting", lambda event: hears.set())

    def work() -> None:
        with Scheduler(url) as other:
            while not hears.wait(0.01):
                other.add_job(Echo, "do you hear me?")
        act()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(LIMIT)


def test_who_waits_calls_what_is_bound_meanwhile(scheduler: Scheduler, url: str, store: Store) -> None:
    told: list[tuple[str, Any]] = []
    scheduler.on("*", lambda event: told.append((event.name, event.job_id)))
    process = scheduler.add_job(Echo, 3)

    with when_heard(scheduler, url, lambda: play(store)):
        [waited_for] = scheduler.wait_for([process], timeout=LIMIT)

    assert waited_for.status is Status.DONE
    assert [name for name, id in told if id == process.id] == ["waiting", "processing", "done"]


def test_who_waits_in_vain_hears_what_happened(scheduler: Scheduler) -> None:
    told: list[str] = []
    process = scheduler.add_job(Echo, 3)
    unbind = scheduler.on("*", lambda event: told.append(event.name))

    with pytest.raises(WaitTimeout, match=str(process.id)):
        scheduler.wait_for([process], timeout=0.05)
    assert told == []
    scheduler.run_pending()
    assert scheduler.wait_for([process, process.id], timeout=0) == [process, process]

    assert told == ["processing", "done"]
    unbind()
    scheduler.add_job(Echo)
    scheduler.wait_for(process)
    assert told == ["processing", "done"]


@BOTH
def test_a_wait_reports_every_end_since_the_callback_was_bound(scheduler: Scheduler, url: str) -> None:
    told: list[Any] = []
    for _ in range(10):
        told.clear()
        unbind = scheduler.on("done", lambda event: told.append(event.job_id))
        processes = scheduler.add_jobs([(Echo, number) for number in range(3)])

        node = threading.Thread(target=run_all, args=[url])
        node.start()
        scheduler.wait_for(processes, timeout=LIMIT)
        unbind()
        node.join(LIMIT)

        assert sorted(told) == sorted(process.id for process in processes)


def run_all(url: str) -> None:
    with Scheduler(url) as other:
        other.run_pending()


@BOTH
def test_waits_one_after_another_report_each_event_once(scheduler: Scheduler) -> None:
    told: list[tuple[str, Any]] = []
    first = scheduler.add_job(Echo, 1)
    scheduler.on("*", lambda event: told.append((event.name, event.job_id)))
    second = scheduler.add_job(Echo, 2)
    scheduler.on("done", lambda event: told.append(("second callback", event.job_id)))
    scheduler.run_pending()

    scheduler.wait_for(first)
    scheduler.wait_for(second.id)
    scheduler.wait_for([])
    scheduler.listen(timeout=0)

    of_each = [(name, job.id) for name in ("processing", "done", "second callback") for job in (first, second)]
    assert sorted(told) == sorted([("waiting", second.id), *of_each])


@BOTH
def test_waits_of_several_threads_report_each_event_once(scheduler: Scheduler, url: str) -> None:
    told: list[Any] = []
    scheduler.on("done", lambda event: told.append(event.job_id))
    processes = scheduler.add_jobs([(Echo, number) for number in range(30)])
    waits = [threading.Thread(target=scheduler.wait_for, args=[processes[number::3], LIMIT]) for number in range(3)]
    for thread in waits:
        thread.start()

    run_all(url)
    for thread in waits:
        thread.join(LIMIT)

    assert sorted(told) == sorted(process.id for process in processes)


@BOTH
def test_a_wait_looks_out_only_a_moment_for_an_end_that_no_event_tells(blocking: Scheduler, store: Store) -> None:
    told: list[str] = []
    process = blocking.add_job(Echo)
    blocking.on("*", lambda event: told.append(event.name))
    play(store)
    store.prune({}, store.now() + timedelta(hours=1), 100)

    assert blocking.wait_for(process, timeout=0) == [process]


@BOTH
def test_a_callback_hears_nothing_from_before_it_was_bound(scheduler: Scheduler) -> None:
    early: list[str] = []
    late: list[str] = []
    scheduler.on("*", lambda event: early.append(event.name))
    process = scheduler.add_job(Echo)
    scheduler.on("*", lambda event: late.append(event.name))
    scheduler.count_jobs()  # awaited, which ``on`` is not
    scheduler.run_pending()

    scheduler.wait_for(process)

    assert (early, late) == (["waiting", "processing", "done"], ["processing", "done"])


@BOTH
def test_an_event_for_which_a_callback_has_raised_counts_as_heard(scheduler: Scheduler) -> None:
    def refuse(event: Event) -> None:
        raise LookupError(event.name)

    process = scheduler.add_job(Echo)
    scheduler.on("done", refuse)
    scheduler.run_pending()

    with pytest.raises(LookupError, match="done"):
        scheduler.wait_for(process)
    assert scheduler.wait_for(process) == [process]


@BOTH
def test_a_listening_without_a_cursor_calls_what_is_bound_since_then(scheduler: Scheduler) -> None:
    bound: list[str] = []
    own: list[str] = []
    scheduler.on("*", lambda event: bound.append(event.name))
    scheduler.add_job(Echo)
    scheduler.run_pending()

    scheduler.listen(lambda event: own.append(event.name), timeout=0)

    assert (bound, own) == (["waiting", "processing", "done"], [])


@BOTH
def test_a_wait_with_a_callback_ends_with_the_flush_of_its_job(scheduler: Scheduler, url: str) -> None:
    process = scheduler.add_job(Echo)

    def flush() -> None:
        with Scheduler(url) as other:
            other.flush()

    with when_heard(scheduler, url, flush), pytest.raises(JobNotFound, match=str(process.id)):
        scheduler.wait_for(process, timeout=LIMIT)


@BOTH
def test_callbacks_whose_events_were_removed_continue_with_new_ones(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    process = scheduler.add_job(Echo)
    scheduler.on("*", lambda event: told.append(event.name))
    scheduler.count_jobs()
    scheduler.run_pending()
    scheduler.flush()

    with pytest.raises(JobNotFound):
        scheduler.wait_for(process.id)
    [record] = [one for one in caplog.records if one.name == "taskqueue.scheduler.event_stream"]
    assert "bound callbacks missed the events" in record.getMessage()

    again = scheduler.add_job(Echo)
    scheduler.run_pending()
    scheduler.wait_for(again)
    assert told == ["waiting", "processing", "done"]


@BOTH
def test_a_listener_hears_of_a_flush_and_continues(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo)
    cursor = scheduler.cursor()
    scheduler.flush()
    scheduler.add_job(Echo)

    assert names(heard(scheduler, cursor)) == ["store_flushed", "waiting"]


def test_what_a_bound_function_raises_comes_out_where_one_waits(scheduler: Scheduler, url: str) -> None:
    def refuse(event: Event) -> None:
        raise LookupError(event.name)

    scheduler.on("canceled", refuse)
    process = scheduler.add_job(Echo, 3)

    with when_heard(scheduler, url, process.cancel), pytest.raises(LookupError, match="canceled"):
        scheduler.wait_for(process, timeout=LIMIT)


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (Done(), "done"),
        (Failed(failure=BROKEN), "retried"),
        (GivenUp(failure=BROKEN), "failed"),
        (TimedOut(failure=BROKEN), "timeout"),
        (Canceled(), "canceled"),
        (Snoozed(seconds=60), "postponed"),
        (Snoozed(seconds=0), "waiting"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_callback_is_bound_to_one_event(scheduler: Scheduler, store: Store, outcome: Outcome, name: str) -> None:
    # PW-4: canceled and timeout are not mixed up, and * hears all.
    scheduler.add_job(Mail, retry_on_timeout=name != "timeout")
    cursor = scheduler.cursor()
    own: list[str] = []
    others: list[str] = []
    every: list[str] = []
    scheduler.on(name, lambda event: own.append(event.name))
    for other in set(EVENTS) - {name, "processing"}:
        scheduler.on(other, lambda event: others.append(event.name))
    scheduler.on("*", lambda event: every.append(event.name))

    play(store, outcome)
    scheduler.listen(cursor=cursor, timeout=0)

    assert (own, others, every) == ([name], [], ["processing", name])


def test_progress_is_heard(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Echo)
    [record] = take(store)
    cursor = scheduler.cursor()

    begin(store, record, progress=40.0, progress_at=store.now())

    [event] = heard(scheduler, cursor)
    assert (event.name, event.process and event.process.progress) == ("progress", 40.0)


def test_every_status_has_an_event_of_its_name() -> None:
    assert {status.name.lower() for status in Status} < set(JOB_EVENTS)


def test_what_nodes_tell_of_themselves_is_heard(scheduler: Scheduler, store: Store) -> None:
    cursor = scheduler.cursor()
    told: list[Event] = []
    scheduler.on(WORKER_ENDED, told.append)

    a_node_tells(scheduler, store, WORKER_ENDED)
    a_node_tells(scheduler, store, BECAME_LEADER)
    scheduler.listen(cursor=cursor, timeout=0)

    [event] = told
    assert (event.node, event.about) == ("web-1", {"pid": 7, "exit": "exited with 0"})
    assert (event.job_id, event.status, event.process) == (None, None, None)
    assert repr(event) == "<Event worker_ended web-1>"


def test_a_binding_can_be_undone(scheduler: Scheduler) -> None:
    told: list[Event] = []
    cursor = scheduler.cursor()
    unbind = scheduler.on("*", told.append)

    unbind()
    unbind()
    scheduler.add_job(Echo)
    scheduler.listen(cursor=cursor, timeout=0)

    assert told == []


def test_only_events_of_jobs_that_match_are_heard(scheduler: Scheduler, store: Store) -> None:
    # PW-8: the query is about the job, not about the event.
    cursor = scheduler.cursor()
    mail = scheduler.add_job(Mail, {"to": "a@example.org"})
    scheduler.add_job(Echo, {"to": "b@example.org"})
    a_node_tells(scheduler, store, BECAME_LEADER)

    [event] = scheduler.events({"data.to": "a@example.org"}, cursor, timeout=0)

    assert (event.job_id, event.process) == (mail.id, mail)
    assert [each.job_id for each in scheduler.events({"id": mail.id}, cursor, timeout=0)] == [mail.id]


def test_the_cursor_moves_on_over_events_that_do_not_match(scheduler: Scheduler, store: Store) -> None:
    cursor = scheduler.cursor()
    scheduler.add_job(Echo)
    a_node_tells(scheduler, store, BECAME_LEADER)

    reached = scheduler.listen(query={"queue": "mail"}, cursor=cursor, timeout=0)

    assert reached == scheduler.cursor() != cursor


def test_a_callback_that_returns_true_ends_the_listening(scheduler: Scheduler) -> None:
    # PTS-19
    cursor = scheduler.cursor()
    scheduler.add_job(Echo)
    scheduler.run_pending()
    told: list[str] = []

    def until_it_runs(event: Event) -> bool:
        told.append(event.name)
        return event.name == "processing"

    reached = scheduler.listen(until_it_runs, cursor=cursor)

    assert told == ["waiting", "processing"]
    assert names(heard(scheduler, reached)) == ["done"]


def test_who_goes_on_with_the_cursor_of_the_last_event_misses_nothing(scheduler: Scheduler) -> None:
    # a listener that ends after every few events, and starts anew, has heard all in order.
    cursor = scheduler.cursor()
    added = [process.id for process in scheduler.add_jobs([(Echo, n) for n in range(450)])]
    seen = []

    while True:
        part = []
        for event in scheduler.events(cursor=cursor, timeout=0):
            part.append(event.job_id)
            cursor = event.cursor
            if len(part) == 7:
                break
        if not part:
            break
        seen += part

    assert seen == added


def test_what_a_callback_raises_comes_out_and_its_event_comes_again(scheduler: Scheduler) -> None:
    cursor = scheduler.cursor()
    scheduler.add_job(Echo)

    def broken(event: Event) -> None:
        raise LookupError(event.name)

    with pytest.raises(LookupError, match="waiting"):
        scheduler.listen(broken, cursor=cursor)
    assert names(heard(scheduler, cursor)) == ["waiting"]


def test_a_listener_is_woken_by_what_others_do(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Echo)
    begins = scheduler.cursor()
    told: list[str] = []
    first = threading.Event()

    def note(event: Event) -> bool:
        told.append(event.name)
        first.set()
        return event.name == "done"

    listener = threading.Thread(target=scheduler.listen, args=(note,), kwargs={"cursor": begins})
    listener.start()
    [record] = take(store)
    assert first.wait(LIMIT)
    end(store, begin(store, record))
    listener.join(LIMIT)

    assert told == ["processing", "done"]


def test_a_listener_in_another_thread_is_stopped(scheduler: Scheduler) -> None:
    listening = threading.Event()
    scheduler.on("*", lambda _: listening.set())
    listener = threading.Thread(target=scheduler.listen, kwargs={"cursor": scheduler.cursor()})
    listener.start()
    scheduler.add_job(Echo)
    assert listening.wait(LIMIT)

    scheduler.stop_listening()
    listener.join(LIMIT)

    assert not listener.is_alive()


def test_a_listener_that_hears_nothing_ends_in_time(scheduler: Scheduler) -> None:
    assert list(scheduler.events(timeout=0.1)) == []


def test_without_a_cursor_events_begin_when_they_are_asked_for(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo)
    events = scheduler.events(timeout=0)
    later = scheduler.add_job(Mail)

    assert [event.job_id for event in events] == [later.id]


def test_the_oldest_cursor_brings_all_that_is_kept(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo)
    scheduler.run_pending()

    assert names(heard(scheduler, "oldest")) == ["waiting", "processing", "done"]


def test_a_job_that_was_removed_is_told_without_its_process(scheduler: Scheduler, store: Store) -> None:
    cursor = scheduler.cursor()
    scheduler.add_job(Echo)
    play(store)
    store.prune({Status.DONE: store.now() + timedelta(seconds=1)}, store.now() - timedelta(hours=1), 10)

    assert [event.process for event in heard(scheduler, cursor)] == [None] * 3


def test_a_listener_ends_in_time_although_there_is_always_more_to_hear(scheduler: Scheduler) -> None:
    cursor = scheduler.cursor()
    scheduler.add_job(Echo)

    behind = scheduler.listen(lambda _: scheduler.add_job(Echo), cursor=cursor, timeout=0.1)

    assert len(heard(scheduler, behind)) > 0


def test_with_no_time_all_that_has_happened_is_read_page_by_page(scheduler: Scheduler) -> None:
    cursor = scheduler.cursor()
    scheduler.add_jobs([(Echo, number) for number in range(2 * PAGE + 1)])

    assert len(heard(scheduler, cursor)) == 2 * PAGE + 1


@pytest.mark.parametrize("wrong", ["5", True, -1, float("nan")])
def test_a_timeout_that_is_no_time_is_refused(scheduler: Scheduler, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=r"timeout=.*: pass (seconds|a duration)"):
        scheduler.listen(timeout=wrong)


@pytest.mark.parametrize("wrong", [5, "x", "", "7.x"])
def test_what_never_was_a_cursor_is_refused(scheduler: Scheduler, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=r"cursor=.*pass a cursor of this store"):
        scheduler.events(cursor=wrong)


@BOTH
def test_a_flush_of_unread_events_ends_a_listening_with_an_error(scheduler: Scheduler) -> None:
    cursor = scheduler.cursor()
    scheduler.add_job(Echo)
    scheduler.flush()

    with pytest.raises(CursorTooOld):
        scheduler.listen(cursor=cursor, timeout=0)


@pytest.mark.parametrize(("name", "says"), [("finished", "use '\\*' or one of"), ("cancel", "did you mean canceled")])
def test_an_unknown_event_is_refused(scheduler: Scheduler, name: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        scheduler.on(name, print)


def test_a_callback_that_cannot_be_called_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="pass a function"):
        scheduler.on("done", "print")  # type: ignore[arg-type]


def test_a_query_is_checked_before_anything_is_awaited(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidQuery):
        scheduler.events({"no such field": 1})


def test_a_closed_scheduler_does_not_listen(scheduler: Scheduler) -> None:
    scheduler.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        scheduler.listen()


def test_events_behind_a_cursor_are_read_at_once(scheduler: Scheduler) -> None:
    cursor = scheduler.cursor()
    first, second = scheduler.add_job(Echo, 1), scheduler.add_job(Echo, 2)

    events, behind = scheduler.read_events(cursor, 1)
    others, end = scheduler.read_events(behind)

    assert [event.job_id for event in (*events, *others)] == [first.id, second.id]
    assert scheduler.read_events(end) == ([], end)
    with pytest.raises(InvalidOption):
        scheduler.read_events("nothing")
