"""One scheduler in threads and forks, its address, and what importing the package costs."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

import taskqueue
from taskqueue import AsyncScheduler, Scheduler
from taskqueue.errors import ConfigError, StoreUnavailable, TaskqueueError
from tests.forking import fork
from tests.scheduler.jobs import Echo
from tests.scheduler.playing import LIMIT


def test_threads_share_one_scheduler(scheduler: Scheduler) -> None:
    def add(number: int) -> None:
        for turn in range(10):
            scheduler.add_job(Echo, [number, turn])

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert scheduler.stats()["total"] == 80


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_forked_application_goes_on_with_its_scheduler(scheduler: Scheduler) -> None:
    before = scheduler.add_job(Echo, "before")
    waited_for = scheduler.add_job(Echo, "waited for")
    child = fork()
    if child == 0:
        status = 1
        try:
            assert scheduler.get_job(before.id).data == "before"
            scheduler.add_job(Echo, "in the child")
            waited_for.wait(timeout=LIMIT)
            scheduler.close()
            status = 0
        finally:
            os._exit(status)

    scheduler.add_job(Echo, "in the parent")
    waited_for.cancel()
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(process.data for process in scheduler.get_jobs()) == ["before", "in the child", "in the parent"]


@pytest.mark.parametrize("address", [":memory:", "sqlite:///:memory:", "sqlite:///file::memory:"])
def test_a_database_in_memory_is_refused_and_no_file_of_its_name_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"names a database in memory, .*: name a file; for tests one in a temporary"):
        Scheduler(address)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_address_is_refused_and_opens_no_other_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_URL", str(tmp_path / "jobs.db"))

    for kind in (Scheduler, AsyncScheduler):
        with pytest.raises(ConfigError, match="the address of the store is empty: name the store, or leave"):
            kind("")
    assert list(tmp_path.iterdir()) == []


def test_a_scheduler_that_is_left_open_warns_with_the_way_out(url: str) -> None:
    def leave_open() -> None:
        scheduler = Scheduler(url)
        waited_for = scheduler.add_job(Echo)
        scheduler.run_pending()
        waited_for.wait(timeout=LIMIT)

    def leave_open_and_collect() -> None:
        leave_open()
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"unclosed Scheduler on sqlite.*: write 'with Scheduler") as warned:
        leave_open_and_collect()
    assert len(warned) == 1


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_a_fork_while_others_wait_and_add_does_no_harm(scheduler: Scheduler) -> None:
    opened = scheduler.add_job(Echo)
    over = threading.Event()

    def add() -> None:
        while not over.is_set():
            scheduler.add_job(Echo)

    threads = [threading.Thread(target=add), threading.Thread(target=lambda: opened.wait(timeout=LIMIT))]
    for thread in threads:
        thread.start()
    for _ in range(5):
        child = fork()
        if child == 0:
            status = 1
            try:
                process = scheduler.add_job(Echo)
                process.cancel()
                process.wait(timeout=LIMIT)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    over.set()
    opened.cancel()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_a_closed_scheduler_says_so(url: str) -> None:
    with Scheduler(url) as scheduler:
        scheduler.add_job(Echo)
    scheduler.close()

    with pytest.raises(StoreUnavailable, match="store of this scheduler: it was closed: create a new"):
        scheduler.add_job(Echo)


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "missing" / "jobs.db")

    assert repr(scheduler) == "<Scheduler not opened>"
    with pytest.raises(StoreUnavailable, match="there is no folder"):
        scheduler.stats()
    assert repr(scheduler) == "<Scheduler not opened>"
    del scheduler
    gc.collect()  # without a warning: nothing is open


def test_an_address_is_a_path_or_a_url(tmp_path: Path) -> None:
    with Scheduler(tmp_path / "jobs.db") as by_path, Scheduler(f"sqlite://{tmp_path}/jobs.db") as by_url:
        process = by_path.add_job(Echo)
        assert by_url.get_job(process.id) == process
        assert repr(by_url) == f"<Scheduler sqlite://{tmp_path}/jobs.db>"


def test_a_mongodb_database_of_the_application_is_an_address_too(mongo_set: str) -> None:
    name = f"scheduler-{ObjectId()}"
    with MongoClient[dict[str, Any]](mongo_set) as client:
        with Scheduler(client[name]) as scheduler:
            process = scheduler.add_job(Echo, 5)
            assert scheduler.run_pending() == [process]
        assert client[name].list_collection_names()
        client.drop_database(name)


def test_what_names_no_store_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="42 does not name a store"):
        Scheduler(42)
    with pytest.raises(ConfigError, match="has the option 'color'"):
        Scheduler("sqlite:///tmp/jobs.db?color=red")


def test_a_relative_path_means_the_folder_of_the_time_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Scheduler("jobs.db") as scheduler:
        monkeypatch.chdir("/")
        scheduler.add_job(Echo)
    assert (tmp_path / "jobs.db").exists()


def test_the_environment_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_URL", str(tmp_path / "one.db"))
    with Scheduler() as scheduler:
        monkeypatch.setenv("TASKQUEUE_URL", str(tmp_path / "two.db"))
        scheduler.add_job(Echo)
    assert (tmp_path / "one.db").exists()
    assert not (tmp_path / "two.db").exists()


def test_without_an_address_the_jobs_of_this_user_are_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Scheduler() as scheduler:
        scheduler.add_job(Echo)

    assert (tmp_path / "taskqueue" / "jobs.db").exists()


ACTION = {"action": "deploy", "target": "shop", "by": "ana"}


@pytest.mark.parametrize(
    ("call", "arguments", "said"),
    [
        ("add_jobs", {"jobs": 5}, "jobs=5 of add_jobs: pass a list of"),
        ("find_jobs", {"order": 5}, "order=5: pass the name of a field"),
        ("find_jobs", {"limit": 5.5}, "limit=5.5: pass how many jobs"),
        ("find_jobs", {"after": 5}, "after=5: pass the last job of the previous page"),
        ("read_events", {"cursor": "oldest", "limit": None}, "limit=None: pass a whole number from 1 to"),
        ("listen", {"callback": 5}, r"listen\(5\): pass a function that takes an event"),
        ("get_schedule", {"name": b"x"}, "name=b'x': pass the name of a schedule"),
        *(("record_action", {**ACTION, name: 5}, f"{name}=5 of an action: pass text") for name in ACTION),
        ("record_action", {**ACTION, "source": None}, "source=None of an action: pass text"),
        ("record_action", {**ACTION, "about": [5]}, r"about=\[5\] of an action: pass a mapping of texts"),
        ("record_action", {**ACTION, "about": {"x": b"x"}}, "about={'x': b'x'} of an action: pass a mapping"),
        ("audit", {"before": 5}, "5 is not a cursor of the audit: pass the cursor of an entry"),
        ("audit", {"limit": "5"}, "limit='5': pass a whole number from 1 to"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_the_way_out(
    scheduler: Scheduler, call: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(TaskqueueError, match=said):
        getattr(scheduler, call)(**arguments)


def test_every_public_name_is_there_and_no_other() -> None:
    assert all(getattr(taskqueue, name) is not None for name in taskqueue.__all__)
    assert set(taskqueue.__all__) <= set(dir(taskqueue))
    with pytest.raises(AttributeError, match="no attribute 'Handler'"):
        _ = taskqueue.Handler


LOOK = """
import json, sys, taskqueue
at_first = list(sys.modules)
taskqueue.Scheduler, taskqueue.Job
print(json.dumps([at_first, list(sys.modules)]))
"""


def test_importing_the_package_loads_nothing_that_is_not_needed() -> None:
    said = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    at_first, after_use = json.loads(said.stdout)

    assert not [name for name in at_first if name.startswith("taskqueue.")]
    heavy = {"click", "croniter", "psutil", "pymongo", "rich", "setproctitle"}
    assert not heavy & {name.partition(".")[0] for name in after_use}
