"""A node is killed beside a living one of the same host: what it held is taken over at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from taskqueue import Scheduler, Status
from taskqueue.store import Lease
from taskqueue.store.open import open_store
from tests.acceptance.work import Echo, Trace
from tests.chaos.gate import Gate
from tests.chaos.work import Mark
from tests.nodes import LIMIT, Node, eventually, node

OPTIONS = ("--lease", "600", "--pm", "static", "--min-children", "1")


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    with Scheduler(url) as scheduler:
        yield scheduler


def leases(url: str) -> dict[str, Lease]:
    with closing(open_store(url)) as store:
        return {lease.name: lease for lease in store.leases() if lease.until > store.now()}


def leader(url: str) -> str:
    lead = leases(url).get("lead")
    return "" if lead is None else lead.holder.seat


def kill(running: Node, which: str) -> None:
    """Kill the node, alone or with its manager."""
    manager = running.manager()
    running.process.send_signal(signal.SIGKILL)
    if which == "both":
        with suppress(psutil.NoSuchProcess):  # it follows its node, and may have been sooner
            manager.kill()


def shown(url: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "taskqueue.cli.main", "--url", url, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout


@pytest.mark.parametrize("which", ["node", "both"])
def test_jobs_lead_and_schedules_of_a_node_that_was_killed_go_on_at_once_on_another_of_its_host(
    url: str, scheduler: Scheduler, tmp_path: Path, which: str
) -> None:
    file, gate = tmp_path / "lines", Gate(tmp_path / "gate")
    file.touch()
    with node(url, tmp_path, "--name", "a", *OPTIONS) as a:
        eventually(lambda: leader(url) == "a")
        job = scheduler.add_job(Mark, {"file": str(file), "gate": gate.path})
        eventually(lambda: file.read_text().count("started") == 1)
        eventually(lambda: scheduler.get_job(job.id).started_at)  # a run counts from when its start is in the store
        with node(url, tmp_path, "--name", "b", *OPTIONS) as b:
            b.heed("works")
            kill(a, which)
            eventually(lambda: file.read_text().count("started") == 2)
            eventually(lambda: leader(url) == "b")
            gate.open()
            scheduler.wait_for([job], timeout=LIMIT)
            scheduler.schedule("often", Trace, {"file": str(tmp_path / "fired")}, every="0.2 s", max_runs=1)
            eventually((tmp_path / "fired").exists)
            assert "seat:a" not in leases(url)
    gate.close()

    assert [attempt.node for attempt in job.attempts] == ["a", "b"]


def test_a_node_notices_the_death_of_one_that_came_after_it(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    file, gate = tmp_path / "lines", Gate(tmp_path / "gate")
    file.touch()
    with node(url, tmp_path, "--name", "a", *OPTIONS, "--work-on", "none") as a:
        a.heed("works")
        with node(url, tmp_path, "--name", "b", *OPTIONS, "--work-on", "default") as b:
            b.heed("works")
            job = scheduler.add_job(Mark, {"file": str(file), "gate": gate.path})
            eventually(lambda: file.read_text().count("started") == 1)
            kill(b, "both")
            assert eventually(lambda: job.refresh().status is not Status.PROCESSING)
            assert eventually(lambda: "seat:b" not in leases(url))
    gate.close()


def test_what_lists_and_explains_calls_no_dead_node_alive(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    file, gate = tmp_path / "lines", Gate(tmp_path / "gate")
    file.touch()
    with node(url, tmp_path, "--name", "a", *OPTIONS) as a:
        eventually(lambda: leader(url) == "a")
        job = scheduler.add_job(Mark, {"file": str(file), "gate": gate.path})
        eventually(lambda: file.read_text().count("started") == 1)
        a.kill()
    waiting = scheduler.add_job(Echo, 1)
    gate.close()

    assert "gone" in shown(url, "nodes")
    assert [seat["live"] for seat in json.loads(shown(url, "nodes", "--json"))] == [False]
    assert "no node leads" in shown(url, "nodes", "--leader")
    assert "its processes have ended" in scheduler.why(job.id)
    assert "No node is running" in scheduler.why(waiting.id)
