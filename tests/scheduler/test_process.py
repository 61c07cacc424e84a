"""Handles on jobs, looking jobs up, canceling, counting and removing them."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from bson import ObjectId

from taskqueue import Process, Scheduler, Status
from taskqueue.errors import InvalidOption, InvalidQuery, JobNotFound
from taskqueue.model.lifecycle.outcomes import Canceled, Failed, TimedOut
from taskqueue.model.record import Failure
from taskqueue.store import Store
from tests.scheduler.jobs import Broken, Echo, Mail
from tests.scheduler.playing import begin, end, play, take

FAILURE = Failure(type="ValueError", message="no such address")


def test_a_handle_is_what_was_last_looked_at(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    play(store)

    assert process.is_waiting
    assert process.refresh() is process
    assert process.is_done


def test_one_job_is_got_by_its_id_whatever_became_of_it(scheduler: Scheduler, store: Store, url: str) -> None:
    ended = scheduler.add_job(Echo, "ended")
    play(store)
    others = [scheduler.add_job(Echo, number, at=f"+{number} hours") for number in (1, 2, 3)]

    with Scheduler(url) as another:
        for job in (ended, *others):
            assert another.get_job(job.id).snapshot == another.get_job(str(job.id)).snapshot == job.refresh().snapshot
        assert (another.get_job(ended.id).result, another.get_job(others[1].id).data) == ("played", 2)


def test_a_handle_answers_each_question_about_the_status(scheduler: Scheduler, store: Store) -> None:
    waiting, later = scheduler.add_job(Echo, queue="left"), scheduler.add_job(Echo, at="+1 hour")
    assert (waiting.is_waiting, waiting.is_pending, waiting.is_final) == (True, True, False)
    assert (later.is_postponed, later.is_waiting) == (True, False)

    failed, timed_out, done = scheduler.add_jobs([(Broken, None, {"priority": -n}) for n in (3, 2, 1)])
    records = take(store, most=3)
    end(store, begin(store, records[0]), Failed(failure=FAILURE))
    end(store, begin(store, records[1]), TimedOut(failure=FAILURE))
    running = begin(store, records[2], progress=40.0, progress_message="half", progress_at=store.now())
    assert (done.refresh().is_processing, done.node) == (True, "web-1")
    assert (done.progress, done.progress_message) == (40.0, "half")
    end(store, running)

    assert (failed.refresh().is_failed, failed.is_final, failed.error) == (True, True, FAILURE)
    assert timed_out.refresh().is_timeout
    assert done.refresh().is_done
    assert done.started_at is not None
    assert done.ended_at is not None
    assert done.started_at <= done.ended_at


def test_handles_of_one_job_are_equal(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo)

    assert {process, scheduler.get_job(process.id)} == {process}
    assert process != scheduler.add_job(Echo)
    assert process != process.id
    assert repr(process) == f"<Process {process.id} tests.scheduler.jobs:Echo WAITING>"


def test_an_unknown_job_is_an_error(scheduler: Scheduler) -> None:  # PTS-13
    id = ObjectId()

    with pytest.raises(JobNotFound, match=f"there is no job {id}"):
        scheduler.get_job(id)
    with pytest.raises(JobNotFound):
        scheduler.cancel_job(str(id))
    with pytest.raises(JobNotFound):
        scheduler.why(id)
    for asked in (scheduler.get_job, scheduler.cancel_job, scheduler.why, scheduler.wait_for, scheduler.recover_job):
        with pytest.raises(JobNotFound, match="there is no job 'nope': no job has this text as its id"):
            asked("nope")
    with pytest.raises(InvalidOption, match="24 hexadecimal digits"):
        scheduler.get_job(1234)  # type: ignore[arg-type]


def test_a_status_and_a_cause_are_printed_by_their_names(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Echo)

    assert (str(process.status), f"{process.status:>6}", f"{process.cause}") == ("DONE", "  DONE", "returned")
    assert process.status == 3
    assert json.dumps([process.status, process.cause]) == '[3, "returned"]'


def test_a_decimal_comes_back_as_one(scheduler: Scheduler) -> None:
    price = {"price": Decimal("1.10"), "all": [Decimal(3)]}
    process = scheduler.run_job(Echo, price)

    assert process.data == process.result == scheduler.get_job(process.id).result == price
    assert {type(one) for one in (process.data["price"], process.result["all"][0])} == {Decimal}


def test_a_pending_job_is_canceled_at_once(scheduler: Scheduler) -> None:  # PTS-15
    process = scheduler.add_job(Echo)

    assert process.cancel("not needed") is process
    assert process.is_canceled
    assert process.error is not None
    assert process.error.message == "not needed"
    assert process.cancel().is_canceled
    assert process.ended_at == scheduler.get_job(process.id).ended_at


def test_a_running_job_is_asked_to_end(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    [record] = take(store)

    assert process.cancel().is_processing
    end(store, begin(store, record), Canceled())
    assert process.refresh().is_canceled


def test_an_ended_job_stays_as_it_is(scheduler: Scheduler, store: Store) -> None:  # PW-10
    process = scheduler.add_job(Echo)
    play(store)

    assert process.cancel().is_done


def test_jobs_are_found_by_query(scheduler: Scheduler, store: Store) -> None:
    mails = scheduler.add_jobs([(Mail, {"to": "a"}), (Mail, {"to": "b"})])
    echo = scheduler.add_job(Echo, {"to": "a"}, tags=["x"])

    assert list(scheduler.get_jobs({"queue": "mail"})) == mails
    assert list(scheduler.get_jobs({"data.to": "a"})) == [mails[0], echo]
    assert list(scheduler.get_jobs({"tags": "x"})) == [echo]
    assert list(scheduler.get_jobs({})) == [*mails, echo]
    play(store)
    assert list(scheduler.get_jobs()) == []
    assert list(scheduler.get_jobs({"status": "done"})) == [*mails, echo]


def test_without_a_query_all_pending_jobs_are_found(scheduler: Scheduler, store: Store) -> None:  # PTS-14
    running, waiting = scheduler.add_job(Echo, priority=-1), scheduler.add_job(Echo)
    later = scheduler.add_job(Echo, at="+1 hour")
    scheduler.add_job(Echo).cancel()
    take(store, most=1)

    assert [process.status.name for process in scheduler.get_jobs()] == ["PROCESSING", "WAITING", "POSTPONED"]
    assert list(scheduler.get_jobs()) == [running, waiting, later]


def test_many_jobs_are_read_as_they_are_needed(scheduler: Scheduler) -> None:
    added = scheduler.add_jobs((Echo, number) for number in range(450))
    found = scheduler.get_jobs()

    assert next(found) == added[0]
    scheduler.cancel_job(added[449].id)
    assert list(found) == added[1:449]


def test_a_wrong_query_is_an_error_at_once(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidQuery, match="cannot name 'colour'"):
        scheduler.get_jobs({"colour": "red"})


def test_jobs_are_counted_by_status_and_queue(scheduler: Scheduler, store: Store) -> None:
    statuses = {status.name: 0 for status in Status}
    assert scheduler.stats() == {"total": 0, "statuses": statuses, "queues": {}, "waiting_since": {}}

    scheduler.add_jobs([(Echo, 1), (Mail, {"to": "a"}), (Echo, 2, {"at": "+1 hour"})])
    play(store)
    stats = scheduler.stats()
    assert stats["total"] == 3
    assert stats["statuses"]["DONE"] == 2
    assert stats["queues"]["default"]["POSTPONED"] == 1
    assert stats["queues"]["mail"]["DONE"] == 1


def test_flushing_removes_everything(scheduler: Scheduler, store: Store) -> None:  # PTS-16
    process: Process = scheduler.add_job(Echo)
    scheduler.add_job(Echo)
    play(store)
    scheduler.add_job(Echo)

    assert scheduler.flush() == 3
    assert scheduler.stats()["total"] == 0
    with pytest.raises(JobNotFound):
        process.refresh()
