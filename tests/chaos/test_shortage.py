"""The system has no descriptors left for a while: what runs goes on, and what waits runs when there are some again."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from taskqueue import Scheduler, Status
from tests.acceptance.work import Echo, Gate
from tests.nodes import LIMIT, Node, eventually, node, title

OPTIONS = ("--pm", "dynamic", "--min-children", "1", "--max-children", "2", "--lease", "6")


@contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Let a process open no more files in the block."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def idle(started: Node) -> list[psutil.Process]:
    return [worker for worker in started.workers() if title(worker) == "taskqueue: worker idle"]


def open_gate(path: Path) -> None:
    with path.open("w") as gate:
        gate.write("go")


@pytest.mark.parametrize("short", ["node", "manager"])
def test_a_shortage_of_descriptors_ends_nothing_and_is_over_by_itself(tmp_path: Path, url: str, short: str) -> None:
    os.mkfifo(tmp_path / "gate")
    facts = {"file": str(tmp_path / "facts"), "gate": str(tmp_path / "gate")}
    with Scheduler(url) as scheduler, node(url, tmp_path, *OPTIONS) as started:
        scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
        long = scheduler.add_job(Gate, facts)
        eventually((tmp_path / "facts").exists)
        scheduler.wait_for([scheduler.add_job(Echo, 2)], timeout=LIMIT)
        with no_descriptors(started.pid if short == "node" else started.manager().pid):
            [other] = eventually(lambda: idle(started))
            other.kill()
            waiting = [scheduler.add_job(Echo, number) for number in range(10)]
            if short == "manager":
                started.heed("no worker can be started")
                eventually(lambda: {process.refresh().status for process in waiting} == {Status.WAITING})
        scheduler.wait_for(waiting, timeout=LIMIT)

        assert {process.status for process in waiting} == {Status.DONE}
        assert long.refresh().status is Status.PROCESSING
        open_gate(tmp_path / "gate")
        scheduler.wait_for([long], timeout=LIMIT)
        assert [attempt.outcome for attempt in long.attempts] == ["Done"]
        assert ("raise the limit of open files" in started.log.read_text()) == (short == "manager")
        assert ("workers can be started again" in started.log.read_text()) == (short == "manager")
        assert started.stop() == 0
