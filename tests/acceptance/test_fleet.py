"""What an operator decides reaches real nodes: those that work, those that drain, and those that come back (X-47)."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest

from taskqueue import Limit, Scheduler, Status
from taskqueue.errors import WaitTimeout
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Echo, Gate
from tests.nodes import LIMIT, eventually, node

ONE = ("--name", "a", "--pm", "static", "--min-children", "1")


def gate(files: JobFiles) -> dict[str, str]:
    """Return the data of a job that waits at a gate."""
    return {"file": files.file, "gate": files.gate()}


def test_a_paused_queue_rests_while_others_are_worked_on(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *ONE):
        running = scheduler.add_job(Gate, gate(files), queue="mail")
        files.heed(1)
        scheduler.pause("mail", "the relay is down", by="ann")
        mail = scheduler.add_job(Echo, 1, queue="mail")
        with pytest.raises(WaitTimeout, match=str(running.id)):
            scheduler.pause("mail", wait=0.05)
        waiter = Thread(target=lambda: scheduler.pause("mail", "still down", by="ann", wait=LIMIT))
        waiter.start()
        files.open()
        waiter.join(LIMIT)
        assert not waiter.is_alive()
        assert running.refresh().status is Status.DONE

        scheduler.wait_for([scheduler.add_job(Echo, 2)], timeout=LIMIT)
        assert mail.refresh().status is Status.WAITING
        assert "Queue mail is paused since " in mail.why()
        assert " by ann (still down): `taskqueue resume mail` lets its jobs start." in mail.why()

        assert scheduler.resume("mail")
        scheduler.wait_for([mail], timeout=LIMIT)
    assert scheduler.paused() == []


def test_a_pause_holds_for_nodes_that_come_later(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    scheduler.pause()
    jobs = [scheduler.add_job(Echo, number) for number in range(3)]
    with node(url, tmp_path, *ONE) as started:
        eventually(lambda: "every queue is paused, by " in started.log.read_text())
        assert {job.refresh().status for job in jobs} == {Status.WAITING}
        scheduler.resume()
        scheduler.wait_for(jobs, timeout=LIMIT)


def test_jobs_that_were_claimed_and_have_not_begun_go_back(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *ONE):
        scheduler.wait_for(scheduler.add_jobs([(Echo, number) for number in range(200)]), timeout=LIMIT)
        blocked = scheduler.add_job(Gate, gate(files), priority=-20)
        rest = scheduler.add_jobs([(Echo, number) for number in range(20)])
        files.heed(1)
        scheduler.drain("a")

        eventually(lambda: all(job.refresh().status is Status.WAITING for job in rest))
        files.open()
        scheduler.wait_for([blocked], timeout=LIMIT)
        assert {job.refresh().status for job in rest} == {Status.WAITING}


def test_a_drained_node_stays_so_when_it_returns_and_the_other_goes_on(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with ExitStack() as nodes:
        first = nodes.enter_context(node(url, tmp_path, *ONE))
        running = scheduler.add_job(Gate, gate(files))
        files.heed(1)
        scheduler.drain("a", "new disk", by="ann")
        first.heed("is drained")
        files.open()
        scheduler.wait_for([running], timeout=LIMIT)
        assert running.refresh().status is Status.DONE
        waiting = scheduler.add_job(Echo, 1)
        eventually(lambda: "Every node that takes jobs of this queue is drained: a since " in waiting.why())

        assert first.stop() == 0
        again = nodes.enter_context(node(url, tmp_path, *ONE))
        again.heed("is drained")
        assert waiting.refresh().status is Status.WAITING

        nodes.enter_context(node(url, tmp_path, "--name", "b"))
        scheduler.wait_for([waiting], timeout=LIMIT)
        assert waiting.attempts[-1].node == "b"


def test_a_drained_node_works_again_when_it_is_let(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    scheduler.drain("a", wait=LIMIT)
    job = scheduler.add_job(Echo, 1)
    with node(url, tmp_path, *ONE) as started:
        started.heed("is drained")
        assert scheduler.undrain("a")
        scheduler.wait_for([job], timeout=LIMIT)
        assert "no longer active: node a is drained" in started.log.read_text()
    assert not scheduler.undrain("a")


def test_a_pause_reaches_a_node_that_is_stopping(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *ONE, "--finish", "60") as stopping:
        running = scheduler.add_job(Gate, gate(files), queue="mail")
        files.heed(1)
        stopping.process.send_signal(signal.SIGTERM)
        stopping.heed("is stopping")
        waiter = Thread(target=lambda: scheduler.pause("mail", wait=LIMIT))
        waiter.start()
        files.open()
        assert stopping.wait() == 0
        waiter.join(LIMIT)
        assert not waiter.is_alive()
    assert running.refresh().status is Status.DONE


def test_a_drained_leader_of_a_hot_standby_makes_way(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    leads = ("--lead", "cluster", "--lease", "3")
    with ExitStack() as nodes:
        first = nodes.enter_context(node(url, tmp_path, *ONE, *leads))
        first.heed("leads the cluster")
        second = nodes.enter_context(node(url, tmp_path, "--name", "b", *leads))
        scheduler.drain("a")
        second.heed("leads the cluster")
        job = scheduler.add_job(Echo, 1)
        scheduler.wait_for([job], timeout=LIMIT)
        assert job.attempts[-1].node == "b"


def test_a_limit_is_raised_while_jobs_wait_for_it(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--name", "a", "--pm", "static", "--min-children", "3"):
        gates = [{"file": files.file, "gate": files.gate(name)} for name in "abc"]
        jobs = [scheduler.add_job(Gate, data, limits=Limit(1)) for data in gates]
        files.heed(1)
        assert "at most 1 at once" in jobs[-1].why()
        scheduler.set_limit(Gate, 2, "a second licence", by="ann")
        files.heed(2)
        eventually(lambda: "at most 2 at once of tests.acceptance.work:Gate, a number set " in jobs[-1].why())
        assert jobs[-1].refresh().status is Status.WAITING
        scheduler.set_limit(Gate, None)
        assert scheduler.controls() == []
        for name in "abc":
            files.open(name)
        scheduler.wait_for(jobs, timeout=LIMIT)
    assert {job.refresh().status for job in jobs} == {Status.DONE}
