"""A worker in which all jobs fail at once is replaced, but not for a deployment in which they fail everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskqueue.daemon.manager.failing_workers import AT_ONCE, FAILED_RUNS, FIRST_PAUSE, LONGEST_PAUSE, FailingWorkers
from taskqueue.daemon.manager.worker_handle import WorkerHandle
from taskqueue.daemon.protocol.messages import Ended, WorkerChanged
from tests.daemon.fake_node import FakeNode
from tests.nodes import eventually

REASON = f"its last {FAILED_RUNS} runs, of 2 classes, all failed at once"


def logging_node(folder: Path) -> FakeNode:
    """Return a node with one worker whose manager writes the file ``log`` in the folder."""
    handler = "import logging\nlogging.getLogger('taskqueue').addHandler(logging.FileHandler('log'))\n"
    (folder / "failing_watch.py").write_text(handler)
    return FakeNode(chdir=folder, preload=["failing_watch"], max_children=1)


def fail(fake_node: FakeNode, data: Any = None) -> Iterator[Ended]:
    """Run jobs of two classes in turn, and yield their ends."""
    for job in itertools.cycle(["FailingFirst", "FailingSecond"]):
        yield fake_node.expect(Ended, fake_node.run(job, data))


def replacements(fake_node: FakeNode) -> list[WorkerChanged]:
    return [one for one in fake_node.heard if isinstance(one, WorkerChanged) and one.reason == REASON]


def test_a_worker_that_a_job_has_spoiled_is_replaced_and_the_log_says_that_it_was_the_worker(tmp_path: Path) -> None:
    with logging_node(tmp_path) as fake_node:
        spoiling = fake_node.run("Spoiling")
        fake_node.result(spoiling)
        spoiled = fake_node.expect(Ended, spoiling).pid

        ended = next(one for one in fail(fake_node) if one.outcome == "Done")

        assert ended.pid != spoiled
        assert [one.pid for one in replacements(fake_node)] == [spoiled]
        told = f"something that a job left in the previous one was at fault: pid {spoiled}"
        assert eventually(lambda: told in (tmp_path / "log").read_text())


def test_workers_are_not_replaced_again_and_again_for_jobs_that_fail_everywhere(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with logging_node(tmp_path) as fake_node:
        ends = fail(fake_node, "always")
        next(one for one in ends if log.exists() and "the jobs are at fault" in log.read_text())
        for _ in range(4 * FAILED_RUNS):
            assert next(ends).outcome == "Failed"

        assert len(replacements(fake_node)) == 1
        assert "jobs succeed in a new worker" not in log.read_text()


class Pool:
    """Workers that were forked at given times, and which of them were replaced."""

    def __init__(self) -> None:
        self.replaced: list[WorkerHandle] = []
        self.failing = FailingWorkers(lambda worker, _: self.replaced.append(worker))

    def worker(self, forked_at: float) -> WorkerHandle:
        worker = WorkerHandle.__new__(WorkerHandle)
        worker.pid, worker.forked_at, worker.failed_jobs, worker.to_be_replaced = 1, forked_at, [], False
        return worker

    def fail(self, worker: WorkerHandle, now: float, *jobs: str, outcome: str = "Failed", took: float = 0.0) -> None:
        for job in jobs:
            self.failing.on_ended(worker, job, outcome, took, now)


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.mark.parametrize(
    ("jobs", "took"), [("abab", 0.0), ("aaaaaaa", 0.0), ("ababab", 2 * AT_ONCE)], ids=["few", "one class", "later"]
)
def test_other_failures_are_no_reason(pool: Pool, jobs: str, took: float) -> None:
    pool.fail(pool.worker(0.0), 1000.0, *jobs, took=took)

    assert pool.replaced == []


def test_a_success_in_between_begins_the_count_anew(pool: Pool) -> None:
    worker = pool.worker(0.0)
    pool.fail(worker, 1000.0, *"abab")
    pool.fail(worker, 1000.0, "a", outcome="Done")
    pool.fail(worker, 1000.0, *"abab")

    assert pool.replaced == []


def test_the_pauses_between_replacements_grow_and_are_short_again_after_a_quiet_time(pool: Pool) -> None:
    now = 1000.0
    waited: list[float] = []
    for _ in range(12):
        old, begun = pool.worker(0.0), now
        while len(pool.replaced) <= len(waited):
            pool.fail(old, now, *"ababa")
            now += FIRST_PAUSE / 2
        waited.append(now - begun)
    pauses = waited[1:]

    assert pauses[0] >= FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE, abs=FIRST_PAUSE)

    now += 3 * LONGEST_PAUSE
    for _ in range(2):
        pool.fail(pool.worker(0.0), now, *"ababa")
        now += FIRST_PAUSE
    assert len(pool.replaced) == len(waited) + 2


def test_a_success_in_a_new_worker_allows_replacements_again(pool: Pool) -> None:
    pool.fail(pool.worker(0.0), 1000.0, *"ababa")
    new = pool.worker(1000.5)
    pool.fail(new, 1010.0, *"ababa")
    pool.fail(pool.worker(0.0), 1020.0, *"ababa")
    assert len(pool.replaced) == 1

    pool.fail(new, 1030.0, "a", outcome="Done")
    pool.fail(new, 1040.0, *"ababa")
    assert len(pool.replaced) == 2
