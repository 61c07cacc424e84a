"""Notifications of real nodes: a worker of the leader sends them, whatever happens to jobs, workers and nodes."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from taskqueue import Scheduler
from taskqueue.exit_codes import Exit
from tests.acceptance.test_leading import resign
from tests.acceptance.test_metrics import heed, page, port_of, value
from tests.nodes import LIMIT, Node, eventually, node
from tests.notifications.receivers import KEY, Hook, command, hook


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the key of webhooks, and have the nodes of one test in a folder of their own."""
    monkeypatch.setenv("TASKQUEUE_NOTIFY_KEY", KEY)
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def watcher(started: Node) -> psutil.Process:
    """Return the worker that sends notifications."""

    def found() -> list[psutil.Process]:
        return [worker for worker in started.workers() if "notifications" in " ".join(worker.cmdline())]

    [worker] = eventually(found)
    return worker


def ids(got: Hook) -> list[str]:
    """Return the ids of all requests, in order."""
    return [headers["webhook-id"] for headers, _ in list(got.requests)]


def test_a_worker_of_the_leader_sends_what_needs_somebody_and_no_job_is_there(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    with hook() as got:
        scheduler.pause(reason="everything is paused")
        receivers = ("--notify", got.url, "--notify", command(tmp_path))
        limits = ("--work-on", "other", "--allow", "nothing")
        with node(url, tmp_path, *receivers, *limits) as started:
            eventually(lambda: bool(got.requests and any(tmp_path.glob("msg_*.json"))))
            assert started.stop(signal.SIGQUIT) == Exit.OK  # which waits for every job, however long

    assert got.said("began")[0].startswith("every queue is paused since")
    assert scheduler.stats()["total"] == 0
    assert "secret-path" not in started.log.read_text()
    assert "notify     http://127.0.0.1:" in started.log.read_text()


def test_a_worker_that_is_killed_in_a_delivery_leaves_it_to_the_next_one(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    scheduler.pause("mail", "a test")
    with hook() as got:
        got.hold = threading.Event()
        with node(url, tmp_path, "--notify", got.url) as started:
            eventually(lambda: got.requests)
            killed = watcher(started)
            killed.kill()
            got.hold.set()
            eventually(lambda: len(got.requests) > 1)
            eventually(lambda: "accepted notification" in started.log.read_text())

    assert len(set(ids(got))) == 1
    assert "the search for findings failed: taskqueue.WorkerCrashed" in started.log.read_text()


def test_the_next_leader_sends_what_the_last_one_has_not_sent(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with hook([500]) as got:
        options = ("--notify", got.url, "--lease", "10")
        with node(url, tmp_path, "--name", "a", *options) as a:
            a.heed("leads the cluster")
            scheduler.pause("mail", "a test")
            eventually(lambda: got.requests)
            with node(url, tmp_path, "--name", "b", *options) as b:
                assert resign(url) == "a"
                b.heed("leads the cluster")
                eventually(lambda: len(got.requests) > 1)
                eventually(lambda: "accepted notification" in b.log.read_text())

    assert len(set(ids(got))) == 1


@pytest.mark.long
def test_a_leader_that_is_killed_in_a_delivery_leaves_it_to_the_next_one(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    scheduler.pause("mail", "a test")
    with hook() as got:
        got.hold = threading.Event()
        options = ("--notify", got.url, "--lease", "4")
        with node(url, tmp_path, "--name", "a", *options) as a:
            eventually(lambda: got.requests)
            a.kill()
            got.hold.set()
            with node(url, tmp_path, "--name", "b", *options) as b:
                eventually(lambda: "accepted notification" in b.log.read_text(), 4 * LIMIT)

    assert len(set(ids(got))) == 1


@contextmanager
def dripping() -> Iterator[str]:
    """Serve a webhook that answers a byte at a time, and never ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                connection, _ = server.accept()
                with connection:
                    try:
                        while not is_over.wait(1.0):
                            connection.sendall(b"H")
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        finally:
            is_over.set()
            with socket.create_connection(server.getsockname()):
                thread.join(LIMIT)


@pytest.mark.long
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_receiver_that_never_ends_its_answer_keeps_no_other_from_its_messages(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    scheduler.pause("mail", "a test")
    with dripping() as slow, hook() as got, node(url, tmp_path, "--notify", slow, "--notify", got.url) as started:
        worker = watcher(started)
        eventually(lambda: got.requests, 3 * LIMIT)
        eventually(lambda: " did not accept it within 20 s" in started.log.read_text(), 3 * LIMIT)
        assert watcher(started) == worker
        log = started.log.read_text()

    assert "stopping it" not in log
    assert len(set(ids(got))) == 1


def test_a_node_whose_workers_cannot_start_leaves_with_the_exit_code_that_says_so(url: str, tmp_path: Path) -> None:
    broken = tmp_path / "boot.py"
    broken.write_text("raise RuntimeError('no such pager')\n")
    options = ("--pm", "ondemand", "--bootstrap", str(broken), "--notify", command(tmp_path))
    with node(url, tmp_path, *options, ready="STATUS=") as started:
        assert started.wait() == Exit.BOOTSTRAP


def test_the_metrics_count_what_was_sent_and_say_when_the_leader_last_looked(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    scheduler.pause("mail", "a test")
    with hook([503]) as got, node(url, tmp_path, "--metrics", "0", "--notify", got.url) as started:
        port = port_of(started)
        text = heed(port, 'taskqueue_notifications_total{outcome="failed"}', 1)
        assert value(text, "taskqueue_notifications_waiting") == 1
        text = heed(port, 'taskqueue_notifications_total{outcome="sent"}', 1)
        assert value(text, "taskqueue_notifications_waiting") == 0
        assert value(text, 'taskqueue_findings{severity="warning"}') == 1
        looked = value(text, "taskqueue_findings_looked_timestamp_seconds") or 0
        eventually(
            lambda: (value(page(port, "/metrics")[1], "taskqueue_findings_looked_timestamp_seconds") or 0) > looked
        )


@pytest.mark.parametrize(
    ("receiver", "says"),
    [
        ("http://127.0.0.1:1/x", "a webhook of --notify needs a key: set TASKQUEUE_NOTIFY_KEY"),
        (
            "mailto:ops@example.org?smtp=smtps://ann@mail.example.org",
            "--notify mailto:ops@example.org: user ann of mail.example.org needs a password",
        ),
        ("/nowhere/page", "--notify /nowhere/page is not a program that this user can run"),
        ("ops@example.org", "--notify ops@example.org is not a program that this user can run"),
        ("gopher://example.org", "--notify 'gopher://example.org' is not a receiver"),
    ],
)
def test_a_receiver_that_cannot_be_reached_is_refused_at_the_start(receiver: str, says: str, tmp_path: Path) -> None:
    started = Node(f"sqlite:///{tmp_path}/jobs.db", tmp_path, ("--notify", receiver), {"TASKQUEUE_NOTIFY_KEY": ""})
    try:
        assert started.wait() == Exit.CONFIG
    finally:
        started.close()
    assert re.search(f"^taskqueue-node: {re.escape(says)}", started.log.read_text(), re.MULTILINE)
