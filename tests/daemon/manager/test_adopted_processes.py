"""Processes that outlive their parents are reaped when they die, and die with the worker whose job left them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from taskqueue.daemon.protocol.messages import Ended, Started, WorkerChanged
from taskqueue.daemon.runtime.child_process import CHILDREN_FOR
from tests.daemon.fake_node import FakeNode, Fifo, fifos, is_gone
from tests.nodes import eventually, no_descriptors

ORPHANS = 20


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


def has_dead(fake_node: FakeNode) -> bool:
    """Return whether the manager or one of its workers has a child that is dead and not reaped."""
    family = psutil.Process(fake_node.manager.pid).children(recursive=True)
    return any(is_gone(process.pid) for process in family)


def is_reaped(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_the_orphans_of_many_jobs_are_reaped_while_their_worker_lives() -> None:
    with FakeNode(max_children=1) as fake_node:
        ended = [fake_node.expect(Ended, fake_node.run("Orphaning", {})) for _ in range(ORPHANS)]

        assert len({one.pid for one in ended}) == 1
        eventually(lambda: fake_node.workers() == [ended[0].pid] and not has_dead(fake_node))


def test_orphans_are_reaped_while_the_job_runs_that_left_them(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("Orphaning", {"count": ORPHANS, "runs": runs.path, "go": go.path})
        left = [int(pid) for pid in runs.hear().split()]

        eventually(lambda: all(map(is_reaped, left)))

        go.tell()
        assert fake_node.result(run) == left


def test_the_orphans_of_a_command_are_reaped_while_it_runs(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    command = f"sh -c 'sleep 0 > /dev/null & echo $! > {runs.path}'; read line < {go.path}"
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("taskqueue:ShellJob", {"argv": command, "shell": True})
        left = int(runs.hear())

        eventually(lambda: is_reaped(left))

        go.tell()
        assert fake_node.result(run)["exit_code"] == 0


def test_the_orphans_of_a_job_among_others_in_a_worker_are_reaped(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with FakeNode() as fake_node:
        data = {"runs": runs.path, "go": go.path}
        run = fake_node.run("tests.daemon.concurrent_jobs:Orphaning", data, concurrency=2)
        left = int(runs.hear())

        eventually(lambda: is_reaped(left))

        go.tell()
        fake_node.result(run)


def test_a_job_gets_the_exit_status_of_all_that_it_started_itself() -> None:
    with FakeNode(max_children=1) as fake_node:
        assert fake_node.result(fake_node.run("Collecting")) == [3, 4, 5, 6, 7]


def test_an_orphan_that_outlives_its_job_for_long_ends_with_its_worker() -> None:
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("Orphaning", {"seconds": 1000})
        [left] = fake_node.result(run)
        ended = fake_node.expect(Ended, run)

        told = fake_node.expect(WorkerChanged, pid=ended.pid, exit="exited with status 0")

        named = f"a process outlived the job that had started it by {CHILDREN_FOR:g} s: sleep, pid {left}"
        assert (told.reason, told.job) == (named, run.id)
        eventually(lambda: is_reaped(left))


def test_a_manager_without_free_descriptors_looks_after_orphans_later(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("Orphaning", {"count": 2, "seconds": 1000, "runs": runs.path, "go": go.path})
        died, left = (int(pid) for pid in runs.hear().split())

        with no_descriptors(fake_node.manager.pid):
            os.kill(died, signal.SIGKILL)
            go.tell()
            fake_node.result(run)
            time.sleep(CHILDREN_FOR + 1)  # nobody can see that it looks

        fake_node.expect(WorkerChanged, pid=fake_node.expect(Ended, run).pid, exit="exited with status 0")
        eventually(lambda: is_reaped(died) and is_reaped(left))


def test_an_orphan_of_a_running_job_survives_the_death_of_another_worker(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    data = {"seconds": 1000, "runs": runs.path, "go": go.path}
    with FakeNode(min_children=2) as fake_node:
        living = fake_node.run("Orphaning", data)
        kept = int(runs.hear())
        dying = fake_node.run("Orphaning", data)
        lost = int(runs.hear())

        os.kill(fake_node.expect(Started, dying).pid, signal.SIGKILL)

        assert fake_node.expect(Ended, dying).outcome == "Crashed"
        eventually(lambda: is_reaped(lost))
        assert not is_gone(kept)
        go.tell()
        assert fake_node.result(living) == [kept]
