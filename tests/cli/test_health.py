"""``taskqueue health`` on real nodes: live and ready, degraded, standing by, stopped, killed and absent."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.exit_codes import Exit
from taskqueue.insight import control_socket
from tests.acceptance.concurrent import Shared
from tests.acceptance.work import Echo
from tests.cli.conftest import Answer
from tests.counting import uncounted
from tests.nodes import LIMIT, Node, eventually, node

ONE = ("--pm", "static", "--min-children", "1")


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the nodes of one test in a folder of their own."""
    folder = tmp_path / "run"
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def running(url: str, tmp_path: Path) -> Iterator[Node]:
    with node(url, tmp_path, "--name", "web-1", *ONE) as started:
        yield started


def says(taskqueue: Callable[..., Answer], code: Exit, words: str = "") -> Answer:
    """Ask until the answer is this one, and return it."""
    answers: list[Answer] = []

    def is_it() -> bool:
        answers.append(taskqueue("health"))
        return answers[-1].code == code and words in answers[-1].out

    eventually(is_it)
    return answers[-1]


def documents(
    taskqueue: Callable[..., Answer], wanted: Callable[[dict[str, Any]], bool], *options: str
) -> list[dict[str, Any]]:
    """Ask until nodes answer what is wanted: one that a busy machine holds up for seconds is said not to be live."""
    return eventually(lambda: [one for one in taskqueue("health", *options, "--json").document if wanted(one)])


def ready(taskqueue: Callable[..., Answer]) -> Answer:
    """Wait until the nodes are ready, and return what they said."""
    return says(taskqueue, Exit.OK)


def test_a_node_says_that_it_is_ready_and_how_old_the_backlog_is(
    running: Node, taskqueue: Callable[..., Answer], url: str
) -> None:
    ready(taskqueue)
    with Scheduler(url) as scheduler:
        scheduler.pause("mail", "a test")
        scheduler.add_job(Echo, 1, queue="mail")

    answer = says(taskqueue, Exit.OK, "1 job waiting, the oldest for")
    assert answer.out.splitlines()[0] == "web-1: live, ready"
    assert "in queue mail" in answer.out
    assert f"store    answers: {url}" in answer.out
    assert "0 busy, 1 idle, at most 1 (static)" in answer.out
    [document] = documents(taskqueue, lambda one: one["ready"], "--node", "web-1")
    assert (document["live"], document["ready"], document["pid"]) == (True, True, running.pid)
    assert document["backlog"]["waiting"] == 1


def test_the_worker_of_a_class_with_concurrency_is_named_as_such(
    running: Node, taskqueue: Callable[..., Answer], url: str, tmp_path: Path
) -> None:
    ready(taskqueue)
    with Scheduler(url) as scheduler:
        job = scheduler.add_job(Shared, {"do": "never", "file": str(tmp_path / "facts")})

        answer = says(taskqueue, Exit.OK, "1 concurrent worker")
        assert "0 busy, 1 idle, at most 1 (static), 1 concurrent worker\n" in answer.out
        assert "force_spawn" not in answer.out
        job.cancel()
        job.wait(timeout=LIMIT)


def test_only_its_user_can_ask(running: Node, runtime_folder: Path) -> None:
    [socket] = runtime_folder.iterdir()
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime_folder.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_to_is_not_looked_into(running: Node, runtime_folder: Path) -> None:
    assert control_socket.is_safe(runtime_folder)
    assert not control_socket.is_safe(runtime_folder / "not-there")
    (runtime_folder / "link").symlink_to(runtime_folder)
    assert not control_socket.is_safe(runtime_folder / "link")


def test_a_node_with_the_seat_of_another_is_live_and_not_ready(
    running: Node, taskqueue: Callable[..., Answer], url: str, tmp_path: Path
) -> None:
    ready(taskqueue)
    with node(url, tmp_path, "--name", "web-1", *ONE, ready="stands by") as second:
        [waiting] = documents(taskqueue, lambda one: one["pid"] == second.pid and one["live"])
        assert (waiting["live"], waiting["ready"]) == (True, False)
        assert waiting["reason"].startswith("it stands by: seat web-1 is held by ")
        eventually(lambda: taskqueue("health", "--node", "web-1").code == Exit.OK)  # the one with the seat works


def test_an_outage_of_the_store_is_no_death(taskqueue: Callable[..., Answer], url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LOCK, str(tmp_path / "jobs.db")]
    with (
        node(f"{url}?timeout=0.2", tmp_path, "--name", "web-1", *ONE),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        try:
            answer = says(taskqueue, Exit.UNREADY)
            assert answer.out.startswith("web-1: live, not ready: its store does not answer: ")
            eventually(lambda: taskqueue("health", "--live").code == Exit.OK)
        finally:
            other.communicate(b"")
        ready(taskqueue)


_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_node_that_is_stopped_or_was_killed_is_not_live(
    running: Node, taskqueue: Callable[..., Answer], runtime_folder: Path, url: str, tmp_path: Path
) -> None:
    ready(taskqueue)
    [socket] = runtime_folder.iterdir()
    running.process.send_signal(signal.SIGSTOP)
    assert control_socket.ask(socket, 0.05).silence is control_socket.Silence.HUNG
    running.kill()

    answer = taskqueue("health", "--node", "web-1")
    assert answer.code == Exit.NOT_LIVE
    assert answer.out.startswith("web-1: not live: its process is gone")
    with node(url, tmp_path, "--name", "web-1", *ONE) as successor:
        assert ready(taskqueue).code == Exit.OK
        assert len(list(runtime_folder.iterdir())) == 1  # that of the dead one is removed
        assert successor.stop() == Exit.OK
    assert list(runtime_folder.iterdir()) == []


def test_without_a_node_the_way_out_is_named(taskqueue: Callable[..., Answer]) -> None:
    answer = taskqueue("health")
    assert answer.code == Exit.NOT_FOUND
    assert answer.complaint.startswith("taskqueue health: no node of this user runs on this host: start one with")
    assert "no node 'web-9'" in taskqueue("health", "--node", "web-9").complaint
    assert taskqueue("health", "--json").document == []


def test_the_program_asks_without_importing_what_other_commands_need(running: Node, tmp_path: Path) -> None:
    asked = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "taskqueue", "health", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**uncounted(), "PYTHONPATH": str(Path.cwd())},
        cwd=tmp_path,
    )
    assert "web-1" in [one["node"] for one in json.loads(asked.stdout)]  # nodes outside these tests are found, too
    imported = {line.rpartition("|")[2].strip() for line in asked.stderr.splitlines()}
    assert "click" in imported
    heavy = {"bson", "pymongo", "sqlite3", "rich", "psutil", "taskqueue.store", "taskqueue.model.record", "asyncio"}
    assert heavy & imported == set()


@pytest.mark.parametrize(
    "arguments", [["--url", "{url}", "health"], ["health", "--url", "{url}"], ["health", "--url={url}"]]
)
def test_the_program_asks_the_nodes_whatever_store_is_named(
    running: Node, url: str, tmp_path: Path, arguments: list[str]
) -> None:
    running.heed("works")
    asked = subprocess.run(
        [sys.executable, "-m", "taskqueue", *(each.format(url=url) for each in arguments), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        cwd=tmp_path,
    )
    assert asked.stderr == ""
    assert [health["node"] for health in json.loads(asked.stdout)] == ["web-1"]


@pytest.mark.parametrize("arguments", [["--bogus"], ["extra"]])
def test_a_mistake_on_its_command_line_is_said_as_by_other_commands(arguments: list[str], tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "taskqueue", "health", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        cwd=tmp_path,
    )
    assert said.returncode == Exit.USAGE
    assert said.stderr.startswith("taskqueue: ")
    assert "see taskqueue health --help" in said.stderr
