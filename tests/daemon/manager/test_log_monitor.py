"""The lines on a worker's page are reported once, and again only when there are new ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from taskqueue.daemon.manager.progress_monitor import LogMonitor
from taskqueue.daemon.manager.runs import CurrentRun, QueuedRun, ReportQueue
from taskqueue.daemon.manager.worker_handle import WorkerHandle
from taskqueue.daemon.manager.worker_output import WorkerOutput
from taskqueue.daemon.manager.workers import Workers
from taskqueue.daemon.protocol.channel import Channel, pair
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.messages import Logged, Started
from taskqueue.daemon.protocol.shared_memory import StartLog
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.execution.run import Run
from taskqueue.model.log_lines import lines_of, written
from tests.daemon.fake_node import settings

RUN = Run(
    id=f"{1:024x}", claims=3, job="app:Mail", data="null", state=None, attempt=2, is_last=True, timeout=None,
    force_spawn=False,
)  # fmt: skip


@pytest.fixture
def worker(marked_as_manager: None) -> Iterator[WorkerHandle]:
    """A worker that has run number 7, and is played by the test."""
    output = WorkerOutput(Loop())
    workers = Workers(settings(), url="sqlite:///dev/null/nowhere", keep=(), start_log=StartLog(), output=output)
    worker = workers.spawn(now=0.0, max_runs=0, is_forced=False)
    queued = QueuedRun(RUN, encode(RUN), 0.0, 0)
    worker.slot.current = CurrentRun(queued, 7, Started(id=RUN.id, claims=3, pid=worker.pid, at=0.0), 0.0)
    yield worker
    worker.channel.close()
    worker.child.reap()
    workers.close(worker)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """The channel to a node, and its end."""
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        yield ours, theirs


def reported(reports: ReportQueue, node: Channel) -> list[Logged]:
    """Return what the node hears now."""
    reports.send()
    found = []
    while (payload := node.wait(0)) is not None:
        message = decode(payload)
        assert isinstance(message, Logged)
        found.append(message)
    return found


def test_new_lines_of_the_present_run_are_reported(worker: WorkerHandle, ends: tuple[Channel, Channel]) -> None:
    reports = ReportQueue(ends[0])
    assert worker.slot.current is not None
    with closing(Loop()) as loop:
        monitor = LogMonitor(loop, reports)

        monitor.read(worker.slot, worker.slot.current)
        worker.slot.page.write_line(written(6, 1, 0.0, "info", "shop", "of an earlier run"))
        monitor.read(worker.slot, worker.slot.current)
        assert reported(reports, ends[1]) == []

        worker.slot.page.write_line(written(7, 1, 0.0, "info", "shop", "it begins"))
        monitor.read(worker.slot, worker.slot.current)
        monitor.read(worker.slot, worker.slot.current)
        [report] = reported(reports, ends[1])

    assert (report.id, report.claims) == (RUN.id, 3)
    assert [(line.attempt, line.message) for line in lines_of(3, report.lines)] == [(2, "it begins")]
