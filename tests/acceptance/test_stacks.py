"""Where a running job is, asked of its node from outside; a kill meanwhile loses nothing and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue import Process, Scheduler
from taskqueue.errors import StackUnavailable, WrongStatus
from taskqueue.store.open import open_store
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Awaiting, Gate, Hanging
from tests.nodes import LIMIT, eventually, node, title


def begun(scheduler: Scheduler, files: JobFiles) -> Process:
    """Return a job that waits at a gate."""
    process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()}, crash_retries=5)
    files.heed(1)
    return process


def stack_with(process: Process, wanted: str) -> str:
    """Ask again until the stack has the words: on a slow machine nobody answers in time, or C code alone."""

    def ask() -> str:
        try:
            stack = process.stack()
        except StackUnavailable as unavailable:
            if "did not answer within" not in str(unavailable):
                raise
            return ""
        return stack if wanted in stack else ""

    return eventually(ask)


def left_behind(url: str) -> list[str]:
    """Return the names of requests and answers that are in the store."""
    with closing(open_store(url)) as store:
        return [lease.name for lease in store.leases() if lease.name.startswith("stack")]


def test_a_running_job_says_where_it_is_and_goes_on(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path):
        process = begun(scheduler, files)

        first, *frames = stack_with(process, "start").split("\n")
        assert first == "Main thread (most recent call first):"
        assert any('tests/acceptance/work.py", line' in frame and "start" in frame for frame in frames)
        assert stack_with(process, "start")
        assert eventually(lambda: not left_behind(url))

        files.open()
        process.wait(timeout=LIMIT)
        assert len(process.attempts) == 1
        with pytest.raises(WrongStatus, match="is DONE: a job can show its stack while it is PROCESSING"):
            process.stack()


def test_each_of_many_runs_in_one_worker_shows_its_own_tasks(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path):
        jobs = [scheduler.add_job(Awaiting, {"file": files.file, "as": name}) for name in ("one", "two")]
        files.heed(2)

        for mine, other in (jobs, reversed(jobs)):
            stack = stack_with(mine, f" of job {mine.id} (most recent call first):\n")
            assert str(other.id) not in stack
        for process in jobs:
            process.cancel()
        scheduler.wait_for(jobs, timeout=LIMIT)


def test_a_node_that_ends_its_jobs_in_peace_still_answers(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path) as running:
        process = begun(scheduler, files)
        running.process.send_signal(signal.SIGQUIT)
        running.heed("STOPPING=1")

        assert stack_with(process, "Main thread")
        files.open()
        process.wait(timeout=LIMIT)


def test_a_stopped_worker_is_the_reason_that_is_given(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path) as running:
        process = begun(scheduler, files)
        [busy] = [worker for worker in running.workers() if str(process.id) in title(worker)]
        busy.send_signal(signal.SIGSTOP)
        eventually(lambda: busy.status() == "stopped")

        assert eventually(lambda: "its worker is stopped (SIGSTOP)" in asked(url, process))
        busy.send_signal(signal.SIGCONT)
        files.open()
        process.wait(timeout=LIMIT)


def asked(url: str, process: Process) -> str:
    """Return the stack of the job, or why there is none."""
    with Scheduler(url) as scheduler:
        try:
            return scheduler.stack(process.id)
        except (StackUnavailable, WrongStatus) as error:
            return str(error)


@pytest.mark.parametrize("who", ["node", "manager"])
def test_a_kill_while_a_stack_is_asked_for_loses_nothing_and_leaves_nothing(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, who: str
) -> None:
    with node(url, tmp_path, "--lease", "600") as running:
        process, asker, answers = hanging(url, scheduler, files)
        victims = {"node": running.pid, "manager": running.manager().pid}
        os.kill(victims[who], signal.SIGKILL)
        asker.join(LIMIT)
        running.process.wait()

    with node(url, tmp_path, "--lease", "600"):
        files.heed(2)
        files.open()
        process.wait(timeout=LIMIT)
        assert answers
        assert eventually(lambda: not left_behind(url))  # an answer that nobody waited for ends by itself


def test_a_worker_that_is_killed_while_a_stack_is_asked_for_has_crashed(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path):
        process, asker, answers = hanging(url, scheduler, files)
        os.kill(int(files.lines()[0]), signal.SIGKILL)
        asker.join(LIMIT)
        [crash] = eventually(lambda: process.refresh().attempts)

        assert (crash.outcome, process.is_pending) == ("Crashed", True)
        process.cancel()
        assert answers
        assert eventually(lambda: not left_behind(url))


def hanging(url: str, scheduler: Scheduler, files: JobFiles) -> tuple[Process, threading.Thread, list[str]]:
    """Return a job that hangs in C code, and a thread that has just asked for its stack, with its answer."""
    process = scheduler.add_job(Hanging, {"file": files.file, "gate": files.gate()}, crash_retries=5)
    files.heed(1)
    answers: list[str] = []
    asker = threading.Thread(target=lambda: answers.append(asked(url, process)))
    asker.start()
    eventually(lambda: left_behind(url) or answers)
    return process, asker, answers
