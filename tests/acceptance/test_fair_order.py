"""Real nodes share their runs among queues, or take the first job of all queues, as they are told."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from taskqueue import Scheduler, Status
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Gate, Trace
from tests.nodes import LIMIT, eventually, node

ONE_WORKER = ("--pm", "static", "--min-children", "1")
MAILS = 12
HEARD_WITHIN = 2
"""Runs of a backlog that may begin before a node has heard of a job that was added to another queue."""


def mails_before_the_invoice(scheduler: Scheduler, files: JobFiles, nodes: int, priority: int, behind: int = 0) -> int:
    """Return how many mails of a backlog begin before a later job of another queue does."""
    gates = {}
    for number in range(MAILS):
        data = {"file": files.file, "gate": files.gate(f"gate-{number}")}
        gates[str(scheduler.add_job(Gate, data, queue="mail").id)] = f"gate-{number}"
    for first in range(0, behind, 1000):
        scheduler.add_jobs([(Trace, {"file": files.file}, {"queue": "mail"})] * min(1000, behind - first))
    files.heed(nodes)
    invoice = scheduler.add_job(Trace, {"file": files.file}, queue="invoice", priority=priority)
    opened: set[str] = set()

    def go_on() -> bool:
        """Let the next mail end once its worker waits for that; return whether the invoice has run."""
        started = [line.split()[1] for line in files.lines() if line.startswith("started")]
        for id in started:
            if id not in opened:
                opened.add(id)
                files.open(gates[id])
                return False
        return scheduler.get_job(invoice.id).status is Status.DONE

    eventually(go_on)
    lines = files.lines()
    before = lines[: lines.index(f"{invoice.id} 1")]
    for id, gate in gates.items():
        if id not in opened:
            files.open(gate)  # which waits until the mail is there
    return sum(line.startswith("started") for line in before) - nodes


@pytest.mark.parametrize(("priority", "behind"), [(0, 0), (-20, 0), pytest.param(0, 100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_backlog_does_not_delay_the_job_of_an_idle_queue(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, count: int, priority: int, behind: int
) -> None:
    with ExitStack() as nodes:
        for number in range(count):
            nodes.enter_context(node(url, tmp_path, *ONE_WORKER, "--name", f"web-{number}"))

        assert mails_before_the_invoice(scheduler, files, count, priority, behind) <= HEARD_WITHIN


def test_a_strict_node_takes_the_first_job_of_all_queues(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *ONE_WORKER, TASKQUEUE_ORDER="strict"):
        assert mails_before_the_invoice(scheduler, files, 1, 0) == MAILS - 1


def test_queues_with_backlogs_take_turns(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    jobs = [scheduler.add_job(Trace, {"file": files.file}, queue=queue) for queue in ("a", "b") for _ in range(40)]
    queues = {str(job.id): job.queue for job in jobs}

    with node(url, tmp_path, *ONE_WORKER):
        scheduler.wait_for(jobs, timeout=LIMIT)

    order = [queues[line.split()[0]] for line in files.lines()]
    assert [order[at : at + 20].count("a") for at in range(0, 80, 20)] == [10, 10, 10, 10]
