"""``taskqueue reload`` on real nodes: workers are replaced, and a node that is not there is named."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.cli import health
from taskqueue.exit_codes import Exit
from tests.cli.conftest import Answer
from tests.nodes import eventually, node

ONE = ("--pm", "static", "--min-children", "1")


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))


def test_the_workers_of_a_node_are_replaced(taskqueue: Callable[..., Answer], url: str, tmp_path: Path) -> None:
    with node(url, tmp_path, "--name", "web-1", *ONE), Scheduler(url) as scheduler:
        eventually(lambda: taskqueue("health").code == Exit.OK)
        cursor = scheduler.cursor()

        answer = taskqueue("reload")

        assert answer.out == "web-1 loads new code: each worker is replaced after its current job\n"
        eventually(lambda: [event for event in scheduler.read_events(cursor)[0] if event.name == "worker_ended"])
        assert taskqueue("reload", "web-1").code == Exit.OK
        other = taskqueue("reload", "web-2", "web-1")
        assert other.code == Exit.NOT_FOUND
        assert "no node 'web-2' runs on this host: `taskqueue nodes` lists nodes and hosts" in other.complaint


def test_nodes_of_another_store_are_reloaded_only_by_name(
    taskqueue: Callable[..., Answer], url: str, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--name", "web-1", *ONE):
        eventually(lambda: taskqueue("health").code == Exit.OK)
        other = f"sqlite://{tmp_path}/other.db"

        answer = taskqueue("reload", "--url", other)

        assert answer.code == Exit.NOT_FOUND
        assert f"no node of this user and store {other} runs on this host" in answer.complaint
        assert taskqueue("reload", "--url", other, "web-1").code == Exit.OK


@pytest.mark.parametrize(
    ("store", "url", "is_another"),
    [
        ("sqlite:///srv/jobs.db", "/srv/jobs.db", False),
        ("sqlite:///srv/jobs.db", "sqlite:///srv/mail.db?timeout=9", True),
        ("sqlite:///srv/jobs.db", "postgresql://db/shop", True),
        ("postgresql://node@db/shop", "postgresql://admin:x@10.0.0.7/shop?connect_timeout=3", False),
        ("postgresql://db/shop", "postgresql://db/mail", True),
        ("postgresql://db/shop", "postgresql://db", False),
        ("postgresql://db/shop", "mongodb://db/shop", True),
        ("mongodb://a,b/", "mongodb+srv://db/taskqueue", False),
    ],
)
def test_an_address_that_may_be_another_name_of_a_store_is_not_another_store(
    store: str, url: str, is_another: bool
) -> None:
    assert health._is_another(store, url) is is_another


def test_a_node_that_does_not_answer_is_named(
    taskqueue: Callable[..., Answer], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"no node of this user and store {url} runs on this host" in taskqueue("reload").complaint
    with node(url, tmp_path, "--name", "web-1", *ONE) as running:
        eventually(lambda: taskqueue("health").code == Exit.OK)
        os.kill(running.pid, signal.SIGSTOP)
        try:
            answer = taskqueue("reload", "web-1")
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert answer.code == Exit.NOT_LIVE
        assert "web-1 was not reloaded: it did not answer" in answer.complaint
