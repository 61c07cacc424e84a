"""What both clients do on both stores: the calls that wait for a store, for a job and for an event."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from bson import ObjectId

from taskqueue import Scheduler, Status
from taskqueue.errors import InvalidOption, JobFailed, JobNotFound, WaitTimeout
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.store import Note, Store
from tests.nodes import LIMIT
from tests.scheduler.jobs import Broken, Echo
from tests.scheduler.playing import play, take
from tests.store.records import BROKEN, WEB_1

pytestmark = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


def test_a_job_is_added_found_changed_and_canceled(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, {"to": "a"}, queue="mail")

    assert [found.id for found in scheduler.get_jobs({"queue": "mail"})] == [process.id]
    assert scheduler.update_job(process.id, priority=3).priority == 3
    assert scheduler.add_job_once(Echo, {"to": "a"}, queue="mail").existed
    assert process.cancel("no more").status is Status.CANCELED
    assert scheduler.recover_job(process.id).recovered_from == process.id
    assert "no more" in scheduler.why(process.id)
    assert scheduler.stats()["total"] == 2
    assert scheduler.flush() == 2


def test_many_are_added_and_waited_for(scheduler: Scheduler, store: Store) -> None:
    processes = scheduler.add_jobs((Echo, number) for number in range(12))
    play(store)

    waited = scheduler.wait_for([*processes, processes[0].id], timeout=LIMIT)

    assert [process.result for process in waited] == ["played"] * 13
    assert all(process.is_done for process in processes)


def test_a_wait_ends_in_time_or_with_the_failure(scheduler: Scheduler, store: Store) -> None:
    broken = scheduler.add_job(Broken)
    play(store, Failed(failure=BROKEN))
    waiting = scheduler.add_job(Echo)

    with pytest.raises(WaitTimeout) as over:
        scheduler.wait_for([waiting], timeout=0.05)
    with pytest.raises(JobFailed):
        scheduler.wait_for([waiting.id, broken.id], timeout=LIMIT, raise_on_error=True)
    with pytest.raises(JobNotFound):
        scheduler.wait_for(ObjectId())
    assert over.value.open_jobs == (waiting.id,)


def test_a_job_in_steps_of_others_names_its_relatives(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Echo)
    second = scheduler.add_job(Echo, depends_on=[first.id])
    part = scheduler.add_job(Echo, parent=second.id)
    play(store)

    assert second.dependencies == {first.id: "played"}
    assert second.children == [part]


def test_events_are_followed_from_a_cursor_on(scheduler: Scheduler, store: Store) -> None:
    cursor = scheduler.cursor()
    process = scheduler.add_job(Echo)
    play(store)
    heard: list[str] = []

    def note(event: object) -> bool:
        heard.append(event.name)  # type: ignore[attr-defined]
        return len(heard) == 3

    behind = scheduler.listen(note, cursor=cursor, timeout=LIMIT)

    assert sorted(heard) == ["done", "processing", "waiting"]
    assert list(scheduler.events(cursor=behind, timeout=0)) == []
    assert {event.process for event in scheduler.events({"id": str(process.id)}, cursor, 0)} == {process}


def test_schedules_and_controls_are_kept(scheduler: Scheduler) -> None:
    schedule = scheduler.schedule("nightly", Echo, cron="0 3 * * *")
    scheduler.pause("mail", "too many")

    assert [control.name for control in scheduler.paused()] == ["mail"]
    assert schedule.pause("later").stage == "paused"
    assert schedule.resume().refresh().next_run_at is not None
    assert schedule.trigger().job == scheduler.get_schedule("nightly").trigger().job
    assert [one.name for one in scheduler.get_schedules()] == ["nightly"]
    with pytest.raises(InvalidOption):
        schedule.preview(0)


def test_jobs_are_run_here(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo, 1)

    assert scheduler.run_job(Echo, 2).result == 2
    assert [process.result for process in scheduler.run_pending()] == [1]


def test_log_lines_of_a_job_are_read(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    [record] = take(store)
    lines = '2\n[1,7,1782900000500,"info","shop","it begins"]\n'
    store.note(WEB_1, {record.id: Note(lines=lines)})

    [line] = process.logs()
    assert scheduler.logs(process.id) == [line]
    assert (line.level, line.logger, line.message, line.attempt, line.number) == ("info", "shop", "it begins", 2, 7)
    assert line.at == datetime(2026, 7, 1, 10, tzinfo=timezone.utc) + timedelta(seconds=0.5)
    with pytest.raises(JobNotFound):
        scheduler.logs(ObjectId())
