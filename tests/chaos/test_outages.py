"""A node whose MongoDB server is away: its jobs run on, it says what is wrong, and it comes back by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskqueue import Process, Scheduler, Status
from taskqueue.errors import StoreUnavailable
from taskqueue.exit_codes import Exit
from taskqueue.store.mongodb.driver_errors import DEADLINE
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Echo, Gate, Keeper
from tests.chaos.proxied import ProxiedCluster, ProxiedServer
from tests.nodes import LIMIT, Node, eventually, node
from tests.servers import prepared

SLACK = 15.0
"""Seconds that a busy machine may add to a bound."""

DEGRADED = "degraded"
ONE_JOB = ("--pm", "static", "--min-children", "1")


@pytest.fixture(scope="module")
def only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Start a set of one member that the tests of this file may hurt."""
    with ProxiedCluster(tmp_path_factory.mktemp("outages"), size=1) as cluster:
        yield cluster


@pytest.fixture
def server(only: ProxiedCluster) -> Iterator[ProxiedServer]:
    """Return the server, which is well again afterwards."""
    [server] = only.reached
    yield server
    server.proxy.heal()
    only.primary()


@pytest.fixture
def url(only: ProxiedCluster, server: ProxiedServer, tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    return prepared(only.url, tmp_path.name[-40:])


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    """Return a scheduler on the store."""
    with Scheduler(url) as scheduler:
        yield scheduler


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    """Return fresh files and gates."""
    (tmp_path / "files").mkdir()
    return JobFiles(tmp_path / "files")


def add_gate(scheduler: Scheduler, files: JobFiles) -> Process:
    """Add a job and return when it stands at its gate."""
    process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
    files.heed(1)
    return process


def until_degraded(running: Node) -> None:
    """Wait until the node says that it cannot reach its store."""
    running.statuses.clear()
    running.heed(DEGRADED)


def until_well(running: Node) -> None:
    """Wait until the node says something else."""
    running.statuses.clear()
    while DEGRADED in running.heed("STATUS="):
        running.statuses.clear()


def test_a_job_runs_on_while_the_server_is_dead_and_is_settled_when_it_is_back(
    server: ProxiedServer, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *ONE_JOB, "--lease", "60") as running:
        process = add_gate(scheduler, files)
        server.kill()
        until_degraded(running)
        files.open()
        files.heed(2)
        server.start()
        scheduler.wait_for([process], timeout=LIMIT)
        until_well(running)
        [after] = scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)

    assert [attempt.outcome for attempt in process.attempts] == ["Done"]
    assert after.result == 1


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_a_job_runs_on_while_the_server_cannot_be_reached(
    server: ProxiedServer, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, how: str
) -> None:
    with node(url, tmp_path, *ONE_JOB, "--lease", "60") as running:
        process = add_gate(scheduler, files)
        {"cut": server.proxy.cut, "stall": server.proxy.stall}[how]()
        began_at = time.monotonic()
        with pytest.raises(StoreUnavailable):
            scheduler.add_job(Echo)
        assert time.monotonic() - began_at < DEADLINE + SLACK
        until_degraded(running)
        files.open()
        files.heed(2)
        server.proxy.heal()
        scheduler.wait_for([process], timeout=LIMIT)
        until_well(running)

    assert [attempt.outcome for attempt in process.attempts] == ["Done"]


def test_a_node_ends_the_work_that_it_may_no_longer_hold_and_does_it_again_when_it_can(
    server: ProxiedServer, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *ONE_JOB, "--lease", "3", "--grace", "0.5") as running:
        process = scheduler.add_job(Keeper, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        [worker] = running.workers()
        server.proxy.cut()
        eventually(lambda: not worker.is_running())
        server.proxy.heal()
        scheduler.wait_for([process], timeout=LIMIT)

    assert process.status is Status.DONE
    assert process.result["reason"] == "lost"


def test_a_slow_server_makes_jobs_slow_and_breaks_nothing(
    server: ProxiedServer, url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    with node(url, tmp_path) as running:
        server.proxy.slow(0.03)
        jobs = [scheduler.add_job(Echo, number) for number in range(5)]
        scheduler.wait_for(jobs, timeout=LIMIT)
        assert not [status for status in running.statuses if DEGRADED in status]

    assert [job.result for job in jobs] == list(range(5))


def test_a_node_that_is_asked_to_leave_during_an_outage_leaves_in_time_and_loses_nothing(
    server: ProxiedServer, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    options = (*ONE_JOB, "--lease", "5", "--finish", "0", "--grace", "0.5")
    with node(url, tmp_path, *options) as running:
        process = add_gate(scheduler, files)
        server.proxy.cut()
        until_degraded(running)
        began_at = time.monotonic()
        assert running.stop() in (Exit.OK, Exit.LOST, Exit.KILLED)
        assert time.monotonic() - began_at < 5 + 3 * DEADLINE + SLACK
    server.proxy.heal()

    with node(url, tmp_path, *options):
        files.heed(2)
        files.open()
        scheduler.wait_for([process], timeout=LIMIT)

    assert process.status is Status.DONE


def test_a_node_that_is_asked_to_leave_settles_all_it_can_when_the_server_returns_in_time(
    server: ProxiedServer, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *ONE_JOB, "--lease", "60") as running:
        process = add_gate(scheduler, files)
        server.proxy.cut()
        until_degraded(running)
        files.open()
        files.heed(2)
        running.process.terminate()
        running.heed("STOPPING=1")
        server.proxy.heal()
        assert running.wait() == Exit.OK

    assert scheduler.get_job(process.id).status is Status.DONE
