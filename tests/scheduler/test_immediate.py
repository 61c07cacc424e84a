"""Immediate mode: a job has run when its add returns, and what needs time or a node is refused by name."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskqueue import AsyncScheduler, Job, Limit, Scheduler, Snooze, Status, workflows
from taskqueue.errors import ConfigError, InvalidOption, TooManyRuns
from taskqueue.model.ids import JobId
from taskqueue.scheduler import immediate as modes
from taskqueue.scheduler.connection import StoreOpener, standing_in
from taskqueue.store.open import open_store
from tests.scheduler.awaited import awaited
from tests.scheduler.jobs import Broken, Collecting, Dividing, Echo, Lucky, Sleepy, Working


@pytest.fixture(params=["blocking", "asyncio"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    """Return a client in immediate mode, blocking or of asyncio."""
    if request.param == "blocking":
        with Scheduler(immediate=True) as scheduler:
            yield scheduler
        return
    scheduler, end_loop = awaited(None, immediate=True)
    with scheduler:
        yield scheduler
    assert end_loop() == []


class Chaining(Job):
    """Adds the next one until its number is 0, and returns the status of that one."""

    def start(self) -> str:
        if self.data == 0:
            return "last"
        return str(self.scheduler.add_job(Chaining, self.data - 1).status.name)


class Endless(Job):
    """Adds the next one of its kind, for ever."""

    def start(self) -> None:
        self.scheduler.add_job(Endless)


class Dozing(Job):
    """Snoozes, for ever."""

    def start(self) -> None:
        raise Snooze(60)


class Waiting(Job):
    """Returns the result of the job that its data name."""

    def start(self) -> Any:
        [process] = self.scheduler.wait_for(self.data)
        return process.result


class Canceling(Job):
    """Cancels itself."""

    def start(self) -> None:
        self.scheduler.cancel_job(self.id)


class CancelingAll(Job):
    """Cancels all jobs."""

    def start(self) -> None:
        self.scheduler.cancel_jobs({"job": {"$exists": True}})


class Limited(Job):
    """Has one place."""

    options = {"limits": Limit(1)}  # noqa: RUF012 - as users write it

    def start(self) -> int:
        return os.getpid()


class Recurring(Job):
    """Recurs."""

    options = {"interval": "1h"}  # noqa: RUF012

    def start(self) -> None:
        return None


class Async(Job):
    """Adds a job from a coroutine."""

    async def start(self) -> Any:
        await asyncio.sleep(0)
        return self.scheduler.add_job(Echo, self.data).result


def test_a_job_has_run_when_it_was_added(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, {"a": [1, 2]}, tags="t")

    assert (process.status, process.result, process.attempts[0].pid) == (Status.DONE, {"a": [1, 2]}, os.getpid())
    assert scheduler.get_job(process.id).result == {"a": [1, 2]}
    assert [found.id for found in scheduler.find_jobs({"tags": "t"})] == [process.id]
    assert process.wait(timeout=0) == process


def test_every_way_to_add_runs_the_job(scheduler: Scheduler) -> None:
    assert [one.result for one in scheduler.add_jobs([(Echo, 1), (Echo, 2)])] == [1, 2]
    assert scheduler.add_job_once(Echo, 3).result == 3
    assert scheduler.run_job(Echo, 4).result == 4
    assert scheduler.add_jobs([]) == []
    failed = scheduler.add_job(Lucky, 2, retry=0)
    assert scheduler.recover_job(failed.id).is_failed
    assert [copy.is_failed for copy in scheduler.recover_jobs({"id": str(failed.id)})] == []
    assert scheduler.run_pending() == []


def test_an_error_is_in_the_record_after_all_retries_without_their_pauses(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Broken, retry=2, retry_interval="1h")
    lucky = scheduler.add_job(Lucky, 3, retry=5, retry_interval="1d")
    assert (process.status, len(process.attempts)) == (Status.FAILED, 3)
    assert process.error is not None
    assert process.error.message == "no such address, attempt 3"
    assert lucky.result == 3
    assert scheduler.add_job(Sleepy).result == "snoozed, attempt 1"


def test_events_tell_what_has_run(scheduler: Scheduler) -> None:
    cursor = scheduler.cursor()
    process = scheduler.add_job(Echo)

    events, _ = scheduler.read_events(cursor)
    assert [event.name for event in events if event.job_id == process.id][-1] == "done"


def test_dependencies_and_workflows_run_in_their_order(scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo, 1)
    assert scheduler.add_job(Collecting, depends_on=first).result == [1]
    with Scheduler(immediate=True) as blocking:
        chained = workflows.chain(blocking, (Echo, 2), [(Echo, 3), (Echo, workflows.RESULT)], Collecting)
        assert sorted(chained.processes[-1].result) == [2, 3]


def test_children_have_run_before_their_parent_continues(scheduler: Scheduler) -> None:
    assert scheduler.add_job(Dividing, {"parts": [1, 2, 3]}).result == 6


def test_a_unique_key_is_free_again_when_the_job_has_run(scheduler: Scheduler) -> None:
    first, second = (scheduler.add_job(Echo, number, unique="key") for number in range(2))
    assert (first.result, second.result, second.existed) == (0, 1, False)


def test_jobs_that_jobs_add_run_within_them_or_when_these_are_too_deep_after_them(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Chaining, 3)
    assert process.result == "DONE"
    scheduler.add_job(Chaining, 3 * modes.DEEPEST)
    ended = scheduler.find_jobs({"status": "DONE"}, limit=200)
    assert len(ended) == scheduler.count_jobs() == 3 * modes.DEEPEST + 5
    assert "WAITING" in {one.result for one in ended}


def test_a_job_of_asyncio_adds_jobs(scheduler: Scheduler) -> None:
    assert scheduler.add_job(Async, 7).result == 7


def test_a_job_waits_for_one_that_was_added_after_it(scheduler: Scheduler) -> None:
    later = JobId()
    waiting, _ = scheduler.add_jobs([(Waiting, str(later)), (Echo, "later", {"id": later})])
    assert waiting.result == "later"


def test_limits_have_room_and_paths_are_loaded(scheduler: Scheduler) -> None:
    assert scheduler.add_job(Limited).result == os.getpid()
    assert scheduler.add_job(f"{Limited.__module__}:Limited").result == os.getpid()
    assert scheduler.add_job("no_such_module:Mail").is_failed


class Interrupting(Job):
    """Somebody presses Ctrl-C while it runs."""

    def start(self) -> None:
        """Be interrupted."""
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("job", [Endless, Dozing])
def test_jobs_that_never_come_to_an_end_are_an_error_and_are_canceled(job: Any) -> None:
    scheduler = AsyncScheduler(immediate=True).blocking
    mode = scheduler.connections.immediate
    assert mode is not None
    mode.max_runs = 30

    with scheduler:
        with pytest.raises(TooManyRuns, match=f"of them of {job.__module__}:{job.__name__}"):
            scheduler.add_job(job)
        assert scheduler.add_job(Echo, 5).result == 5

    with Scheduler(mode.url) as other:
        assert other.count_jobs({"status": "CANCELED"}) == 1
        assert other.count_jobs({"status": {"$lt": "DONE"}}) == 0


def test_a_job_that_was_interrupted_from_the_keyboard_does_not_run_with_the_next_add() -> None:
    with Scheduler(immediate=True) as scheduler:
        with pytest.raises(KeyboardInterrupt):
            scheduler.add_job(Interrupting)
        assert scheduler.add_job(Echo, 5).result == 5
        assert scheduler.count_jobs({"status": "CANCELED"}) == 1


def test_each_thread_gets_its_jobs_back_when_they_have_run() -> None:
    results: dict[int, list[Any]] = {}
    with Scheduler(immediate=True) as scheduler:

        def add(thread: int) -> None:
            results[thread] = [scheduler.add_job(Echo, (thread, number)).result for number in range(10)]

        threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {thread: [[thread, number] for number in range(10)] for thread in range(4)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda it: it.add_job(Echo, at="+1 hour"), r"tests.scheduler.jobs:Echo: at=\+1 hour needs"),
        (lambda it: it.add_jobs([(Echo, 1), (Echo, 2, {"at": "+1 hour"})]), r"at=\+1 hour needs"),
        (lambda it: it.add_job_once(Echo, at="+1 hour"), r"at=\+1 hour needs"),
        (lambda it: it.add_job(Echo, interval="1h"), "Echo: interval needs"),
        (lambda it: it.add_job(Recurring), "Recurring: interval needs"),
        (lambda it: it.run_job(Recurring), "Recurring: interval needs"),
        (lambda it: it.add_job(Echo, session=object()), "session=<object .* needs"),
        (lambda it: it.recover_job(it.add_job(Echo).id, at="+1 hour"), r"at=\+1 hour needs"),
        (lambda it: it.recover_jobs({"status": "DONE"}, at="+1 hour"), r"at=\+1 hour needs"),
        (lambda it: it.update_job(it.add_job(Echo).id, at="+1 hour"), r"at=\+1 hour needs"),
        (lambda it: it.schedule("nightly", Echo, cron="0 3 * * *"), r"schedule\(\) needs"),
        (lambda it: it.pause("mail"), r"pause\(\) needs"),
        (lambda it: it.drain("web-1"), r"drain\(\) needs"),
        (lambda it: it.stack(it.add_job(Echo).id), r"stack\(\) needs"),
    ],
)
def test_what_needs_time_or_a_node_is_refused(
    scheduler: Scheduler, call: Callable[[Scheduler], object], words: str
) -> None:
    with pytest.raises(InvalidOption, match=rf"{words} time or a node: immediate=True runs .*: leave it out, or use"):
        call(scheduler)
    assert scheduler.count_jobs({"job": {"$exists": True}, "status": {"$lte": "PROCESSING"}}) == 0


def test_a_time_that_has_passed_is_fine(scheduler: Scheduler) -> None:
    assert scheduler.add_job(Echo, 1, at="2020-01-01T00:00:00Z").result == 1


@pytest.mark.parametrize("job", [Canceling, CancelingAll])
def test_a_running_job_cannot_be_canceled(scheduler: Scheduler, job: Any) -> None:
    process = scheduler.add_job(job)
    assert process.error is not None
    assert f"a cancel of job {process.id}, which is running, needs time or a node" in process.error.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"url_or_database": "jobs.db", "immediate": True}, "immediate=True has a store of its own"),
        ({"immediate": "yes"}, "immediate='yes': pass True or False"),
    ],
)
def test_an_address_beside_it_is_refused(arguments: Any, words: str) -> None:
    for kind in (Scheduler, AsyncScheduler):
        with pytest.raises(ConfigError, match=words):
            kind(**arguments)


def test_schedulers_with_the_address_share_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_URL", "immediate:")
    with Scheduler() as first, Scheduler() as second, Scheduler("immediate:") as third:
        process = first.add_job(Echo, 5)
        assert [one.get_job(process.id).result for one in (first, second, third)] == [5, 5, 5]
        with pytest.raises(InvalidOption, match="the address immediate: runs each job"):
            first.add_job(Echo, at="+1 hour")
        with Scheduler(immediate=True) as own:
            assert own.count_jobs() == 0


def test_no_other_process_opens_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_URL", "immediate:")
    with pytest.raises(ConfigError, match="immediate: does not name a store"):
        open_store()


def test_the_store_is_removed_by_the_process_that_made_it(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(
        "import os, sys\n"
        "from taskqueue import Job, Scheduler\n"
        "class Mail(Job):\n"
        "    def start(self):\n"
        "        return 'sent'\n"
        "if __name__ == '__main__':\n"
        "    scheduler = Scheduler()\n"
        "    child = os.fork()\n"
        "    os.write(1, f'{scheduler.add_job(Mail).result}\\n'.encode())  # in one piece\n"
        "    if child:\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "        print(scheduler.count_jobs(), len(os.listdir(os.environ['TMPDIR'])))\n"
        "    scheduler.close()\n"
    )
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {**os.environ, "TASKQUEUE_URL": "immediate:", "TMPDIR": str(folder)}
    ran = subprocess.run([sys.executable, "-W", "error", script], env=environment, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("sent\nsent\n2 1\n", "")
    assert list(folder.iterdir()) == []


def test_a_test_store_stands_in_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_URL", "immediate:")
    with Scheduler() as application:
        opener = StoreOpener(open=lambda: open_store(f"{tmp_path}/test.db"))
        with standing_in(opener):
            assert application.add_job(Echo).is_waiting
        assert application.add_job(Echo).is_done


def test_a_job_in_steps_runs_to_its_end(scheduler: Scheduler) -> None:
    assert scheduler.add_job(Working).is_final
