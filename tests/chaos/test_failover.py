"""What a cluster goes through: a primary or a leader that dies, and nodes that are stopped or cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from taskqueue import Process, Scheduler
from taskqueue.errors import StoreUnavailable
from taskqueue.store.open import open_store
from tests.acceptance.work import Echo
from tests.chaos.process_fault import ProcessFault
from tests.chaos.proxied import ProxiedCluster
from tests.chaos.work import Pulse
from tests.nodes import LIMIT, eventually, node
from tests.servers import prepared

SLACK = 20.0
"""Seconds that a busy machine may add to a bound."""

ELECTION = 2.0


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Start a set of three members that the tests of this file may hurt."""
    with ProxiedCluster(tmp_path_factory.mktemp("failover"), size=3, election_timeout=ELECTION) as cluster:
        yield cluster


@pytest.fixture
def whole(replicas: ProxiedCluster) -> Iterator[ProxiedCluster]:
    """Return the set, which is whole again afterwards."""
    yield replicas
    for member in replicas.reached:
        member.proxy.heal()
        if member.process is None or member.process.poll() is not None:
            member.start()
    replicas.primary()


def kill(cluster: ProxiedCluster) -> None:
    """End the primary like a power cut."""
    cluster.kill_primary()


def step_down(cluster: ProxiedCluster) -> None:
    """Have the primary give up."""
    cluster.step_down()


def cut_off(cluster: ProxiedCluster) -> None:
    """Cut the primary off from clients and from those that look to it."""
    primary = cluster.primary()
    next(member for member in cluster.reached if member is primary).proxy.cut()


@pytest.mark.parametrize("harm", [kill, step_down, cut_off])
def test_work_goes_on_after_the_primary_has_gone(
    whole: ProxiedCluster, tmp_path: Path, harm: Callable[[ProxiedCluster], None]
) -> None:
    url = prepared(whole.url, harm.__name__)
    seen: list[Process] = []

    opened = threading.Event()

    def wait_through() -> None:
        with Scheduler(url) as other:
            other.get_job(late.id)
            opened.set()
            seen.extend(other.wait_for([late], timeout=LIMIT))

    with Scheduler(url) as scheduler, node(url, tmp_path, "--lease", "30"):
        before = [scheduler.add_job(Echo, number) for number in range(20)]
        late = scheduler.add_job(Echo, "late", at="+6 seconds")
        waiter = threading.Thread(target=wait_through)
        waiter.start()
        assert opened.wait(LIMIT)
        harm(whole)
        began_at = time.monotonic()
        after = add_at_last(scheduler)
        scheduler.wait_for([*before, after], timeout=LIMIT)
        assert time.monotonic() - began_at < 10 + SLACK
        waiter.join(LIMIT)

    assert [process.result for process in before] == list(range(20))
    assert [process.result for process in seen] == ["late"]


def add_at_last(scheduler: Scheduler) -> Process:
    """Add a job, again and again until the store takes it."""

    def add() -> list[Process]:
        try:
            return [scheduler.add_job(Echo, "after")]
        except StoreUnavailable:
            return []

    [process] = eventually(add)
    return process


def leaders(url: str) -> list[str]:
    """Return the seat that holds the cluster lead, if one does."""
    store = open_store(url)
    try:
        return [lease.holder.seat for lease in store.leases() if lease.name == "lead" and lease.until > store.now()]
    finally:
        store.close()


def test_another_node_leads_soon_after_the_leader_was_killed(new_url: Callable[[], str], tmp_path: Path) -> None:
    url = new_url()
    with node(url, tmp_path, "--name", "a", "--lease", "2") as a:
        eventually(lambda: leaders(url) == ["a"])
        with node(url, tmp_path, "--name", "b", "--lease", "2"):
            a.process.kill()
            began_at = time.monotonic()
            eventually(lambda: leaders(url) == ["b"])
            assert time.monotonic() - began_at < 2 + 2 + SLACK


@pytest.mark.parametrize("fault", [ProcessFault.SIGSTOP, ProcessFault.SIGKILL])
def test_the_runs_of_a_job_do_not_overlap_when_its_node_is_lost(
    new_url: Callable[[], str], tmp_path: Path, fault: ProcessFault
) -> None:
    url, file = new_url(), tmp_path / "pulses"
    options = ("--lease", "6", "--grace", "1", "--pm", "static", "--min-children", "1")
    with Scheduler(url) as scheduler, node(url, tmp_path, "--name", "a", *options) as first:
        process = scheduler.add_job(Pulse, {"file": str(file)})
        eventually(lambda: pulses(file))
        fault.send(psutil.Process(first.pid))
        with node(url, tmp_path, "--name", "b", *options):
            eventually(lambda: len(pulses(file)) == 2)
            scheduler.cancel_job(process.id)
            scheduler.wait_for([process], timeout=LIMIT)

    (_, first_ended), (second_began, _) = sorted(pulses(file).values())
    assert first_ended < second_began


def pulses(file: Path) -> dict[str, tuple[float, float]]:
    """Return the first and the last sign of life of each run."""
    signs: dict[str, list[float]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        key, moment = line.split()
        signs.setdefault(key, []).append(float(moment))
    return {key: (min(moments), max(moments)) for key, moments in signs.items()}
