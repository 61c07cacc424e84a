"""``taskqueue reload`` on real nodes: workers are replaced, and a node that is not there is named."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from taskqueue import Scheduler
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


def test_a_node_that_does_not_answer_is_named(
    taskqueue: Callable[..., Answer], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no node of this user runs on this host" in taskqueue("reload").complaint
    with node(url, tmp_path, "--name", "web-1", *ONE) as running:
        eventually(lambda: taskqueue("health").code == Exit.OK)
        os.kill(running.pid, signal.SIGSTOP)
        try:
            answer = taskqueue("reload", "web-1")
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert answer.code == Exit.NOT_LIVE
        assert "web-1 was not reloaded: it did not answer" in answer.complaint
