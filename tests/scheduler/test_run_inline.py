"""Running pending jobs in the calling process (X-38): the order, the lifecycle, and what surrounds a job."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Job, Process, Scheduler, Snooze, Status
from taskqueue.errors import InvalidOption, TooManyRuns
from taskqueue.model.record import Cause
from taskqueue.scheduler import run_inline
from taskqueue.scheduler.run_inline import PROGRESS_EVERY
from taskqueue.store import Store
from tests.scheduler import jobs, stepping
from tests.scheduler.jobs import (
    Broken,
    CannotBegin,
    Echo,
    Fanning,
    Giving,
    Hooked,
    Impatient,
    Lucky,
    Quitting,
    Sleepy,
    Unkept,
    WithoutStart,
    Working,
    Writing,
)
from tests.scheduler.playing import begin, end, take
from tests.scheduler.stepping import Counting
from tests.store.children import in_child


def run(scheduler: Scheduler, job: Any, data: Any = None, **options: Any) -> Process:
    """Add one job, run it to its end, and return it."""
    process = scheduler.add_job(job, data, **options)
    assert scheduler.run_pending() == [process]
    return process.refresh()


def test_a_job_is_run_and_its_result_kept(scheduler: Scheduler) -> None:
    process = run(scheduler, Echo, {"a": [1, 2]})

    assert (process.status, process.cause, process.result) == (Status.DONE, Cause.RETURNED, {"a": [1, 2]})
    assert process.progress == 100
    [attempt] = process.attempts
    assert (attempt.number, attempt.outcome, attempt.pid) == (1, "Done", os.getpid())
    assert process.node is None


def test_nothing_pending_is_nothing_run(scheduler: Scheduler) -> None:
    assert scheduler.run_pending() == []


def test_tasks_and_methods_get_the_data_as_arguments(scheduler: Scheduler) -> None:
    assert run(scheduler, jobs.add, {"x": 1, "y": 2}).result == 3
    assert run(scheduler, jobs.plain).result == "plain"
    assert (
        run(scheduler, "tests.scheduler.jobs:Reports.monthly", {"year": 2030, "month": 2}).result == "report of 2030-02"
    )
    assert run(scheduler, "tests.scheduler.jobs:Reports.nothing").result == "done without data"
    assert run(scheduler, "tests.scheduler.jobs:Reports.one", 7).result == 7
    assert run(scheduler, "tests.scheduler.jobs:Echo.start", 7).result == 7


def test_jobs_run_in_the_order_of_due_time_priority_and_id(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "order"

    def add(word: str, **options: Any) -> None:
        scheduler.add_job(Writing, {"file": str(file), "word": word}, **options)

    add("in two hours, urgent", at="+2 hours", priority=-20)
    add("in one hour, later id", at="2100-01-01T00:00:00Z")
    add("in one hour, last id", at="2100-01-01T00:00:00Z")
    add("in one hour, urgent", at="2100-01-01T00:00:00Z", priority=-1)
    add("now, lazy", priority=20)
    scheduler.run_pending()

    assert file.read_text().splitlines() == [
        "now, lazy",
        "in two hours, urgent",
        "in one hour, urgent",
        "in one hour, later id",
        "in one hour, last id",
    ]


def test_without_ignoring_time_only_what_is_due_runs(scheduler: Scheduler) -> None:
    now, later = scheduler.add_job(Echo, 1), scheduler.add_job(Echo, 2, at="+1 hour")

    assert scheduler.run_pending(ignore_time=False) == [now]
    assert later.refresh().is_postponed
    assert later.attempts == ()


def test_jobs_that_jobs_add_are_run_too(scheduler: Scheduler) -> None:
    scheduler.add_job(Fanning, 3)

    assert [process.data for process in scheduler.run_pending()] == [3, 0, 1, 2]
    assert list(scheduler.get_jobs()) == []


def test_once_runs_what_was_pending_one_time(scheduler: Scheduler) -> None:
    fanning = scheduler.add_job(Fanning, 2)
    lucky = scheduler.add_job(Lucky, 3, retry=5, retry_interval=0)
    later = scheduler.add_job(Echo, at="+1 hour")

    assert scheduler.run_pending(once=True) == [fanning, lucky, later]
    assert len(lucky.refresh().attempts) == 1
    assert [process.data for process in scheduler.get_jobs()] == [3, 0, 1]
    assert all(process.is_waiting and not process.node for process in scheduler.get_jobs())


def test_once_without_ignoring_time_leaves_what_is_due_later(scheduler: Scheduler) -> None:
    later = scheduler.add_job(Echo, at="+1 hour")

    assert scheduler.run_pending(ignore_time=False, once=True) == []
    assert later.refresh().is_postponed


def test_a_failing_job_is_tried_again_and_keeps_its_id(scheduler: Scheduler) -> None:
    process = run(scheduler, Lucky, 3, retry=2)

    assert (process.status, process.result) == (Status.DONE, 3)
    assert [attempt.outcome for attempt in process.attempts] == ["Failed", "Failed", "Done"]


def test_retry_n_means_n_further_attempts(scheduler: Scheduler) -> None:  # X-9, PTS vector 6
    process = run(scheduler, Broken, retry=2, retry_interval=0)

    assert (process.status, process.cause, len(process.attempts)) == (Status.FAILED, Cause.EXHAUSTED, 3)
    assert process.error is not None
    assert (process.error.type, process.error.message) == ("ValueError", "no such address, attempt 3")
    assert "jobs.py" in process.error.traceback
    assert "execution.py" not in process.error.traceback
    assert process.error.bases == ("Exception", "BaseException")


def test_between_attempts_a_job_is_postponed_with_its_last_error(scheduler: Scheduler) -> None:  # X-3, vector 6
    process = scheduler.add_job(Broken, retry=-1)
    scheduler.run_pending(ignore_time=False)

    assert (process.refresh().status, process.cause) == (Status.POSTPONED, Cause.RETRY)
    assert process.error is not None
    assert process.ready_at is not None
    assert process.ready_at - process.attempts[0].ended_at == timedelta(seconds=300)


def test_a_job_can_give_up_ask_for_its_pause_and_snooze(scheduler: Scheduler) -> None:
    giving = run(scheduler, Giving, retry=5)
    assert (giving.status, len(giving.attempts)) == (Status.FAILED, 1)

    impatient = scheduler.add_job(Impatient, retry=1)
    scheduler.run_pending(ignore_time=False)
    assert impatient.refresh().ready_at == impatient.attempts[0].ended_at + timedelta(seconds=7)
    scheduler.run_pending()
    assert impatient.refresh().is_failed

    sleepy = run(scheduler, Sleepy)
    assert (sleepy.status, sleepy.result) == (Status.DONE, "snoozed, attempt 1")


def test_what_ends_badly_without_an_exception_of_the_work(scheduler: Scheduler) -> None:
    words = {
        Quitting: "SystemExit: 3",
        CannotBegin: "RuntimeError: no disk",
        WithoutStart: "TypeError: tests.scheduler.jobs.WithoutStart has no start(): define it to do the work",
        Unkept: "taskqueue.errors.InvalidJob: result is builtins.object, which cannot be stored",
    }
    for job, expected in words.items():
        process = run(scheduler, f"tests.scheduler.jobs:{job.__name__}")
        assert process.is_failed
        assert process.error is not None
        assert f"{process.error.type}: {process.error.message}".startswith(expected)


def test_a_result_that_cannot_be_kept_fails_for_good(scheduler: Scheduler) -> None:
    assert len(run(scheduler, Unkept, retry=5).attempts) == 1


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("tests.scheduler.nowhere:Job", "No module named 'tests.scheduler.nowhere'"),
        ("tests.scheduler.jobs:Missing", "module tests.scheduler.jobs has no Missing"),
        ("tests.scheduler.jobs:Reports", "is not a subclass of Job"),
        ("tests.scheduler.jobs:Reports.yearly", "class Reports has no method yearly"),
        ("tests.scheduler.jobs:undecorated", "is neither a class nor a function with @task"),
    ],
)
def test_what_cannot_be_loaded_fails_at_once(scheduler: Scheduler, path: str, words: str) -> None:
    process = run(scheduler, path, retry=5)

    assert (process.status, process.cause) == (Status.FAILED, Cause.UNLOADABLE)
    assert process.error is not None
    assert words in process.error.message


def test_what_ends_a_job_is_raised_if_that_is_wanted(scheduler: Scheduler) -> None:
    first, last = scheduler.add_job(Broken), scheduler.add_job(Echo, priority=1)

    with pytest.raises(ValueError, match="no such address, attempt 1"):
        scheduler.run_pending(reraise=True)

    assert first.refresh().status is Status.FAILED
    assert last.refresh().status is Status.WAITING
    assert scheduler.run_pending(reraise=True) == [last]


class Replacing(Job):
    """Adds the next one of its kind, for ever."""

    def start(self) -> None:
        self.scheduler.add_job(Replacing)


class Dozing(Job):
    """Snoozes, for ever."""

    def start(self) -> None:
        raise Snooze(self.data)


@pytest.mark.parametrize("ignore_time", [True, False])
@pytest.mark.parametrize(
    ("job", "data", "options"),
    [(Replacing, None, {}), (Dozing, 0, {}), (Broken, None, {"retry": -1, "retry_interval": 0})],
)
def test_jobs_that_never_come_to_an_end_are_an_error(
    scheduler: Scheduler, job: Any, data: Any, options: dict[str, Any], ignore_time: bool
) -> None:
    echo = scheduler.add_job(Echo, priority=-1)
    scheduler.add_job(job, data, **options)

    with pytest.raises(TooManyRuns, match=rf"^20 more runs .* 21 of them of {job.__module__}:{job.__name__}.*max_runs"):
        scheduler.run_pending(ignore_time, max_runs=20)

    assert echo.refresh().status is Status.DONE
    [left] = scheduler.get_jobs()
    assert left.status in (Status.WAITING, Status.POSTPONED)


def test_more_jobs_than_the_bound_run_if_they_were_pending(scheduler: Scheduler) -> None:
    scheduler.add_jobs([(Echo, number) for number in range(30)])

    assert len(scheduler.run_pending(max_runs=1)) == 30


@pytest.mark.parametrize("max_runs", [0, -1, True, 1.5, None])
def test_a_bound_that_is_none_is_refused(scheduler: Scheduler, max_runs: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"max_runs={max_runs}: pass a whole number"):
        scheduler.run_pending(max_runs=max_runs)


def test_what_a_retry_made_good_is_not_raised(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Lucky, 2, retry=1)
    counting = scheduler.add_job(Counting, {"to": 2})

    scheduler.run_pending(reraise=True)

    assert process.refresh().is_done
    assert counting.refresh().is_done
    scheduler.add_job(Broken, retry=1)
    with pytest.raises(ValueError, match="no such address, attempt 2"):
        scheduler.run_pending(reraise=True)


def test_what_ended_a_job_in_steps_is_raised_when_it_has_cleaned_up(scheduler: Scheduler) -> None:
    stepping.done.clear()
    process = scheduler.add_job(Counting, {"to": 3, "fails": 2})

    with pytest.raises(ValueError, match="no 2"):
        scheduler.run_pending(reraise=True)

    assert process.refresh().status is Status.FAILED
    assert stepping.done.pop() == ("clean up", {"count": 1}, "no 2")


def test_a_job_has_what_surrounds_it(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    process = run(scheduler, Working)
    result = process.result
    progress, took = result.pop("progress"), result.pop("took")

    assert progress == 10.0 or took >= PROGRESS_EVERY  # PTS-21: further calls within that time are not written
    assert result == {
        "key": str(process.id),
        "run_key": f"{process.id}:1",
        "attempt": 1,
        "last": True,
        "stopping": False,
        "status": "PROCESSING",
    }
    [line] = [record for record in caplog.records if record.name.startswith("tests.")]
    fields = vars(line)
    assert (line.name, line.message, fields["job_id"]) == ("tests.scheduler.jobs", "works", str(process.id))
    assert (fields["job"], fields["queue"], fields["attempt"]) == ("tests.scheduler.jobs:Working", "default", 1)


class Reporting(Job):
    def start(self) -> None:
        self.progress(*self.data)
        raise OSError("the end")


class ReportingFiles(Job):
    def start(self) -> None:
        self.progress(1, os.fsdecode(b"caf\xe9.txt"))


def test_the_last_progress_is_kept_with_a_failure(scheduler: Scheduler) -> None:
    process = run(scheduler, Reporting, [33.333, "a third"])

    assert (process.progress, process.progress_message) == (33.33, "a third")


def test_a_progress_message_has_the_length_that_it_has_in_a_worker(scheduler: Scheduler) -> None:
    assert len(run(scheduler, Reporting, [1, "ü" * 1000]).progress_message) == 500


def test_a_message_that_is_no_unicode_is_written_out(scheduler: Scheduler) -> None:
    process = run(scheduler, ReportingFiles)

    assert (process.status, process.progress_message) == (Status.DONE, "caf\\udce9.txt")


@pytest.mark.parametrize("percent", [True, "5", None])
def test_progress_that_is_no_number_is_an_error(scheduler: Scheduler, percent: Any) -> None:
    process = run(scheduler, Reporting, [percent])

    assert process.error is not None
    assert (process.error.type, process.error.message) == (
        "ValueError", f"progress({percent!r}): pass a number from 0 to 100",
    )  # fmt: skip


@pytest.mark.parametrize("percent", [-0.1, 101, float("nan")])
def test_progress_outside_its_range_is_an_error(scheduler: Scheduler, percent: float) -> None:  # PTS-21
    class_path = f"{Progressing.__module__}:Progressing"
    process = run(scheduler, class_path, str(percent))

    assert process.error is not None
    assert process.error.type == "ValueError"
    assert "pass a number from 0 to 100" in process.error.message


class Progressing(Job):
    def start(self) -> None:
        self.progress(float(self.data))


class Keeping(Job):
    def start(self) -> None:
        self.checkpoint(object())


def test_a_checkpoint_that_cannot_be_kept_is_refused(scheduler: Scheduler) -> None:
    process = run(scheduler, Keeping)

    assert process.error is not None
    assert process.error.type == "taskqueue.errors.CheckpointRefused"
    assert process.error.message.startswith("checkpoint is builtins.object")


def test_hooks_run_after_the_outcome(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "hooks"
    assert run(scheduler, Hooked, {"file": str(file)}).is_done
    assert run(scheduler, Hooked, {"file": str(file), "error": "no"}, retry=1).is_failed

    assert file.read_text().splitlines() == [
        "success",
        "finalize",
        "failure no",
        "failure no",
        "last failure no",
        "finalize",
    ]


class CancelingItself(Job):
    def start(self) -> None:
        self.scheduler.cancel_job(self.id, "enough")
        raise OSError("tries again in vain")


class CancelingAnother(Job):
    def start(self) -> None:
        self.scheduler.cancel_job(self.data)


class Flushing(Job):
    def start(self) -> None:
        self.scheduler.flush()


def test_a_canceled_job_does_not_run_again(scheduler: Scheduler) -> None:
    process = run(scheduler, CancelingItself, retry=5)

    assert (process.status, len(process.attempts)) == (Status.CANCELED, 1)


def test_a_job_that_another_one_cancels_does_not_begin(scheduler: Scheduler) -> None:
    at = "2100-01-01T00:00:00Z"
    victim = scheduler.add_job(Echo, at=at)
    canceling = scheduler.add_job(CancelingAnother, victim.id, at=at, priority=-1)

    assert scheduler.run_pending() == [canceling]
    assert (victim.refresh().status, victim.attempts) == (Status.CANCELED, ())


def test_a_job_that_is_removed_while_it_runs_leaves_nothing(scheduler: Scheduler) -> None:
    scheduler.add_job(Flushing)
    scheduler.add_job(Echo)

    assert scheduler.run_pending() == []
    assert scheduler.stats()["total"] == 0


class Settling(Job):
    """Changes the process that runs it, and says so in its result."""

    def start(self) -> list[int]:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        return [os.getpid(), os.umask(0o027)]


class Looping(Job):
    async def start(self) -> bool:
        return asyncio.get_running_loop() is not None


def in_a_process_of_its_own(url: str) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    os.umask(0o022)
    with Scheduler(url) as scheduler:
        scheduler.add_job(Looping)
        scheduler.add_job(Settling)
        looping, settling = scheduler.run_pending()
        assert (looping.result, settling.result[0]) == (True, os.getpid())
        assert scheduler.run_job(Settling).result == [os.getpid(), 0o027]
    assert os.umask(0) == 0o027
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    assert asyncio.get_event_loop() is loop
    loop.close()


def test_a_job_changes_the_process_of_its_caller_as_a_function_does_and_an_async_one_leaves_its_loop(url: str) -> None:
    in_child(partial(in_a_process_of_its_own, url))


class PressingControlC(Job):
    def start(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_control_c_hands_everything_back(scheduler: Scheduler) -> None:
    pressing = scheduler.add_job(PressingControlC)
    waiting = scheduler.add_job(Echo)

    with pytest.raises(KeyboardInterrupt):
        scheduler.run_pending()
    assert (pressing.refresh().status, pressing.cause) == (Status.WAITING, Cause.INTERRUPTED)
    assert (waiting.refresh().status, waiting.cause) == (Status.WAITING, Cause.HANDED_BACK)
    assert waiting.attempts == ()


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_control_c_leaves_jobs_of_another_day_for_that_day(scheduler: Scheduler, store: Store) -> None:
    later = [scheduler.add_job(job, at="+30 days") for job in (PressingControlC, Echo, Echo)]

    with pytest.raises(KeyboardInterrupt):
        scheduler.run_pending()
    assert [(one.refresh().status, one.cause) for one in later] == [(Status.POSTPONED, Cause.SCHEDULED)] * 3
    assert take(store) == []


def test_claims_that_are_held_for_long_are_renewed(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    line = run_inline._InlineRunner(scheduler, store, lambda: None)
    line._renewed_at -= run_inline.LEASE
    line.work(run_inline.Due.NOW, run_inline.Mode.UNTIL_EMPTY)

    assert process.refresh().is_done
    assert store.now() - line._renewed_at < run_inline.LEASE / 2


class Outlasting(Job):
    """Run until the lease of all that waits behind it is nearly over."""

    def start(self) -> None:
        lines[0]._renewed_at -= run_inline.LEASE
        self.progress(50)


lines: list[run_inline._InlineRunner] = []


def test_progress_of_a_long_job_renews_what_waits_behind_it(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Outlasting)
    lines[:] = [run_inline._InlineRunner(scheduler, store, lambda: None)]
    lines[0].work(run_inline.Due.NOW, run_inline.Mode.UNTIL_EMPTY)

    assert store.now() - lines[0]._renewed_at < run_inline.LEASE / 2


def test_what_a_node_has_is_left_to_it(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    take(store)

    assert scheduler.run_pending() == []
    assert process.refresh().node == "web-1"


def test_a_job_behind_another_runs_after_it(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job_once(Echo, 1)
    [claimed] = take(store)
    second = scheduler.add_job_once(Echo, 1, priority=1)
    assert scheduler.run_pending() == []

    end(store, begin(store, claimed))
    assert scheduler.run_pending() == [second]
    assert first.refresh().is_done


def test_of_those_whose_time_is_over_the_longest_due_comes_first(scheduler: Scheduler) -> None:  # LZQ-5
    now = scheduler.add_job(Echo)
    later, sooner = (scheduler.add_job(Echo, at=time) for time in ("2024-05-02T00:00:00Z", "2024-05-01T00:00:00Z"))
    changed = scheduler.update_job(scheduler.add_job(Echo, at="+1 hour").id, at="2024-05-01T12:00:00Z")

    assert scheduler.run_pending() == [sooner, changed, later, now]


def test_what_is_relative_counts_from_now_where_the_time_is_over(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, at="2024-05-02T00:00:00Z", expires="+1 hour")

    assert process.expires_at is not None
    assert process.expires_at > process.created_at
    assert scheduler.run_pending() == [process]


def test_a_job_that_was_not_started_in_time_is_not_run(scheduler: Scheduler) -> None:
    early = scheduler.add_job(Echo, at="2090-01-01T00:00:00Z")
    late = scheduler.add_job(Echo, at="2080-01-01T00:00:00Z", expires="2081-01-01T00:00:00Z")

    assert scheduler.run_pending() == [late, early]


def test_of_a_series_one_occurrence_is_run(scheduler: Scheduler) -> None:
    process = run(scheduler, Echo, 1, interval="1h")
    [following] = scheduler.get_jobs()

    assert (following.status, process.status) == (Status.POSTPONED, Status.DONE)
    assert f"The next occurrence is job {following.id}." in scheduler.why(process.id)
    assert f"It is occurrence 2 of series {process.id}: every 3600 s from the end of a run." in scheduler.why(
        following.id
    )
    assert scheduler.run_pending() == [following]


def test_a_next_occurrence_that_is_not_to_come_is_not_promised(scheduler: Scheduler) -> None:
    process = run(scheduler, Echo, 1, interval="1h", unique="k")
    [following] = scheduler.get_jobs()
    scheduler.add_job_once(Echo, 2, unique="k")

    why = scheduler.why(process.id)
    assert f"The next occurrence, job {following.id}, is CANCELED: a changed job was added in its place" in why


def test_the_end_of_a_series_is_told(scheduler: Scheduler) -> None:
    process = run(scheduler, Echo, 1, interval=-1, max_runs=1)

    assert "The series ended with it: max_runs=1 is reached." in scheduler.why(process.id)
    assert list(scheduler.get_jobs()) == []
