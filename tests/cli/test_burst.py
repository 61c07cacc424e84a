"""``taskqueue run --burst``: a real node runs what is due and what follows from it, and leaves the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskqueue import Limit, Scheduler, Status
from taskqueue.exit_codes import Exit
from tests.nodes import LIMIT
from tests.servers import emptied

APPLICATION = """
from taskqueue import Job, Retry, Snooze

class Counting(Job):
    def start(self):
        if self.data:
            self.scheduler.add_job("app:Counting", self.data - 1)
        return self.data

class Adding(Job):
    def start(self):
        return sum(self.dependencies.values())

class Parent(Job):
    def start(self):
        if self.state is None:
            self.scheduler.add_jobs([("app:Counting", 0, {"parent": self})] * 3)
            self.checkpoint("added")
        return len(self.wait_children())

class Retrying(Job):
    def start(self):
        raise Retry(self.data)

class Dozing(Job):
    def start(self):
        raise Snooze(3600)

class Failing(Job):
    def start(self):
        raise ValueError("no such address")
"""


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    """Return a client of the store that the bursts work on."""
    with Scheduler(url) as scheduler:
        yield scheduler


def burst(url: str, folder: Path, *options: str, application: str = APPLICATION) -> subprocess.CompletedProcess[str]:
    """Run the application once and return how that ended."""
    (folder / "app.py").write_text(application)
    command = [sys.executable, "-m", "taskqueue", "--url", url, "run", "app.py", "--burst", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=2 * LIMIT)


def test_what_is_due_runs_with_what_follows_and_the_rest_stays(scheduler: Scheduler, url: str, tmp_path: Path) -> None:
    counting = scheduler.add_job("app:Counting", 5)
    first = scheduler.add_jobs([("app:Counting", 0, {"priority": number % 3}) for number in range(20)])
    after = scheduler.add_job("app:Adding", depends_on=first)
    last = scheduler.add_job("app:Adding", depends_on=after)
    parent, failing = scheduler.add_job("app:Parent"), scheduler.add_job("app:Failing")
    again = scheduler.add_job("app:Retrying", 0, retry=2)
    later = [
        scheduler.add_job("app:Counting", 0, at="+1 hour"),
        scheduler.add_job("app:Retrying", 3600, retry=1),
        scheduler.add_job("app:Dozing"),
    ]

    ended = burst(url, tmp_path)

    assert ended.returncode == Exit.OK, ended.stderr
    assert [one.refresh().status for one in (counting, after, last)] == [Status.DONE] * 3
    assert parent.refresh().result == 3
    assert failing.refresh().status is Status.FAILED
    assert (again.refresh().status, len(again.attempts)) == (Status.FAILED, 3)
    assert [one.refresh().status for one in later] == [Status.POSTPONED] * 3
    assert {one.id for one in scheduler.get_jobs()} == {one.id for one in later}
    assert scheduler.nodes() == []


def test_on_mongodb_it_does_the_same(mongo_set: str, tmp_path: Path) -> None:
    url = emptied(mongo_set, f"burst_{os.getpid()}")
    with Scheduler(url) as scheduler:
        counting = scheduler.add_job("app:Counting", 3)
        after = scheduler.add_job("app:Adding", depends_on=counting)
        later = scheduler.add_job("app:Counting", 0, at="+1 hour")

        ended = burst(url, tmp_path)

        assert ended.returncode == Exit.OK, ended.stderr
        assert after.refresh().result == 3
        assert {one.id for one in scheduler.get_jobs()} == {later.id}


def test_without_work_it_leaves(scheduler: Scheduler, url: str, tmp_path: Path) -> None:
    scheduler.add_job("app:Counting", 0, at="+1 hour")
    ended = burst(url, tmp_path)
    assert ended.returncode == Exit.OK, ended.stderr
    assert "exiting: no job is due now" in ended.stderr
    assert scheduler.count_jobs({"status": "POSTPONED"}) == 1


def test_a_schedule_whose_time_has_come_starts_its_job(scheduler: Scheduler, url: str, tmp_path: Path) -> None:
    scheduler.schedule("often", "app:Counting", 0, every=0.001, misfire="once", max_runs=1)
    ended = burst(url, tmp_path)
    assert ended.returncode == Exit.OK, ended.stderr
    assert scheduler.count_jobs({"status": "DONE"}) == 1


def test_paused_queues_and_full_limits_are_left(scheduler: Scheduler, url: str, tmp_path: Path) -> None:
    scheduler.pause("mail")
    scheduler.add_job("app:Counting", 0, queue="mail")
    done = scheduler.add_jobs([("app:Counting", 0, {"limits": Limit(1, name="one")})] * 3)

    ended = burst(url, tmp_path)

    assert ended.returncode == Exit.OK, ended.stderr
    assert [one.refresh().status for one in done] == [Status.DONE] * 3
    assert scheduler.count_jobs({"status": "WAITING"}) == 1


def test_a_drained_node_leaves_at_once(scheduler: Scheduler, url: str, tmp_path: Path) -> None:
    scheduler.drain("nightly")
    waiting = scheduler.add_job("app:Counting", 0)

    ended = burst(url, tmp_path, "--name", "nightly")

    assert ended.returncode == Exit.OK, ended.stderr
    assert "exiting: this node is drained" in ended.stderr
    assert waiting.refresh().status is Status.WAITING


def test_two_at_once_share_the_jobs(scheduler: Scheduler, url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    scheduler.add_jobs([("app:Counting", 0)] * 50)
    command = [sys.executable, "-m", "taskqueue", "--url", url, "run", "app.py", "--burst"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    both = [subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(2 * LIMIT) for process in both] == [Exit.OK, Exit.OK]
    assert scheduler.count_jobs({"status": "DONE"}) == 50


def test_an_application_that_cannot_be_imported_is_no_success(url: str, tmp_path: Path) -> None:
    ended = burst(url, tmp_path, application="import nothing_of_this_name")
    assert ended.returncode == Exit.ERROR, ended.stderr
    assert "No module named 'nothing_of_this_name'" in ended.stderr


def test_it_does_not_go_with_reload(url: str, tmp_path: Path) -> None:
    ended = burst(url, tmp_path, "--reload")
    assert ended.returncode == Exit.USAGE
    assert "--burst exits when nothing is due, but --reload waits for changes" in ended.stderr
