"""The system has no descriptors or processes left for a while: what runs goes on, and what waits runs later."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from taskqueue import Process, Scheduler, Status
from tests.acceptance.work import Echo, Gate
from tests.chaos.fleet import Kind
from tests.chaos.storm import Storm, StormSettings
from tests.nodes import LIMIT, Node, eventually, no_descriptors, node, title

MOST_PROCESSES = 60
OTHERS = """
import threading
for _ in range(100):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("all", flush=True)
input()
"""

OPTIONS = ("--pm", "dynamic", "--min-children", "1", "--max-children", "2", "--lease", "6")


def of_a_user() -> list[str]:
    """Return the command that starts another one for a user for whom the limit of processes holds: not for root."""
    if os.getuid() != 0:
        return []
    return ["setpriv", "--ruid", str(100_000 + os.getpid()), "--bounding-set", "-sys_resource,-sys_admin"]


def bounded() -> list[str]:
    """Return the command that starts a node which cannot fork while its user has many threads."""
    return [*of_a_user(), *(["prlimit", f"--nproc={MOST_PROCESSES}"] if os.getuid() == 0 else [])]


@contextmanager
def no_processes(pid: int) -> Iterator[None]:
    """Let a bounded process fork no more in the block."""
    if os.getuid() != 0:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
        resource.prlimit(pid, resource.RLIMIT_NPROC, (1, hard))
        yield
        with suppress(ProcessLookupError):  # it may have been killed in the block
            resource.prlimit(pid, resource.RLIMIT_NPROC, (soft, hard))
        return
    command = [*of_a_user(), sys.executable, "-c", OTHERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as others:
        assert others.stdin is not None
        assert others.stdout is not None
        assert others.stdout.readline() == b"all\n"
        yield
        others.stdin.close()
        others.kill()


def idle(started: Node) -> list[psutil.Process]:
    return [worker for worker in started.workers() if title(worker) == "taskqueue: worker idle"]


def all_goes_on(scheduler: Scheduler, waiting: list[Process], long: Process, gate: Path) -> None:
    """Check that jobs which waited run now, beside one that has run on and ends when its gate is opened."""
    scheduler.wait_for(waiting, timeout=LIMIT)
    assert {process.status for process in waiting} == {Status.DONE}
    assert long.refresh().status is Status.PROCESSING
    with gate.open("w") as opened:
        opened.write("go")
    scheduler.wait_for([long], timeout=LIMIT)
    assert [attempt.outcome for attempt in long.attempts] == ["Done"]


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
            for _ in range(2):  # the first renewal may have begun before
                renewed_at = scheduler.nodes()[0].lease.until
                eventually(lambda: scheduler.nodes()[0].lease.until > renewed_at)  # noqa: B023 - used in this turn
        all_goes_on(scheduler, waiting, long, tmp_path / "gate")
        assert ("raise the limit of open files" in started.log.read_text()) == (short == "manager")
        assert ("workers can be started again" in started.log.read_text()) == (short == "manager")
        assert started.stop() == 0


def test_a_shortage_of_processes_ends_nothing_and_is_over_by_itself(tmp_path: Path, url: str) -> None:
    os.mkfifo(tmp_path / "gate")
    facts = {"file": str(tmp_path / "facts"), "gate": str(tmp_path / "gate")}
    with Scheduler(url) as scheduler, node(url, tmp_path, *OPTIONS, wrapper=bounded()) as started:
        long = scheduler.add_job(Gate, facts)
        eventually((tmp_path / "facts").exists)
        scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
        with no_processes(started.manager().pid):
            [other] = eventually(lambda: idle(started))
            other.kill()
            waiting = [scheduler.add_job(Echo, number) for number in range(10)]
            started.heed("no worker can be started (Resource temporarily unavailable): raise the limit of processes")
            eventually(lambda: {process.refresh().status for process in waiting} == {Status.WAITING})
            eventually(lambda: "raise the limit of processes" in waiting[0].why())
        all_goes_on(scheduler, waiting, long, tmp_path / "gate")
        assert "workers can be started again" in started.log.read_text()
        assert started.stop() == 0


@pytest.mark.parametrize(("jobs", "kills"), [(30, 3), pytest.param(200, 20, marks=pytest.mark.long)])
def test_every_job_ends_once_in_a_storm_whose_user_has_too_few_processes(tmp_path: Path, jobs: int, kills: int) -> None:
    settings = StormSettings(jobs=jobs, kills=kills, seed=7, wrapper=bounded())

    def kill_in_a_shortage(kind: Kind) -> str | None:
        manager, process = storm.one(Kind.MANAGER), storm.one(kind)
        if manager is None or process is None:
            return None
        with suppress(psutil.NoSuchProcess, ProcessLookupError), no_processes(manager.pid):
            process.kill()
            time.sleep(chance.uniform(0, 1))
        return f"{kind.value} killed in a shortage"

    chance = random.Random(7)
    with closing(Storm(settings, f"sqlite://{tmp_path}/jobs.db", tmp_path)) as storm:
        storm.strikes = [partial(kill_in_a_shortage, kind) for kind in Kind]
        report = storm.run()

    print(report.figures)
    assert report.complaints == []
