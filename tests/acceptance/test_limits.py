"""Limits among real nodes, measured by the jobs themselves: never one more than declared (X-22)."""

from __future__ import annotations

import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Limit, Process, Rate, Scheduler, Status
from taskqueue.model.limits import limit_keys_of
from taskqueue.model.query import parse
from taskqueue.store import ClaimRequest
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Clock, Crowd, Echo, Gate
from tests.nodes import LIMIT, eventually, node
from tests.store.records import WEB_1, claim

IN_EITHER_ORDER = pytest.mark.parametrize("order", ["fair", pytest.param("strict", marks=pytest.mark.long)])

LOADS = 1.0
"""Seconds that a class takes to load."""

PERIOD = 0.4
"""Seconds over which a rate counts: less than a class takes to load."""

SLOW_TO_LOAD = f"""
import time

from taskqueue import Job

time.sleep({LOADS})
LOADED_AT = time.time()


class Slow(Job):
    def start(self):
        return LOADED_AT
"""
FIRST_IS_SLOW = f"""
import pathlib
import time

from taskqueue import Job, Rate

try:
    pathlib.Path(__file__).with_suffix(".loading").touch(exist_ok=False)
    time.sleep({LOADS})
except FileExistsError:
    pass
LOADED_AT = time.time()


class Quick(Job):
    def start(self):
        return time.time()


class Declared(Quick):
    options = {{"limits": Rate(1, per={PERIOD})}}


class Concurrent(Job):
    options = {{"concurrency": 2}}

    async def start(self):
        return time.time()


class Checked(Quick):
    def is_ready(self):
        return True
"""
"""The first process that imports it takes ``LOADS`` for that."""

AROUND_EACH_RUN = """
async def around_run(job, proceed):
    return await proceed()
"""

POOL = ("--pm", "static", "--min-children", "4")


@IN_EITHER_ORDER
def test_three_nodes_never_run_more_than_a_limit_together(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, order: str
) -> None:
    data = {"file": files.file, "seconds": 0.03}
    with ExitStack() as nodes:
        for name in "abc":
            nodes.enter_context(node(url, tmp_path, *POOL, "--name", name, "--order", order))
        jobs = scheduler.add_jobs(
            [
                (Crowd, {**data, "key": f"k{n % 2}"}, {"limits": Limit(3, by="key"), "queue": f"q{n % 4}"})
                for n in range(80)
            ]
        )
        quiet = scheduler.add_job(Crowd, {**data, "key": "quiet"}, limits=Limit(3, by="key"))
        scheduler.wait_for([*jobs, quiet], timeout=LIMIT)

    assert {job.status for job in jobs} == {Status.DONE}
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for line in files.lines():
        _, change, key = line.split()
        running[key] += int(change)
        most[key] = max(most[key], running[key])
    assert max(most.values()) <= 3
    assert most["k0"] > 1
    assert len({job.attempts[0].node for job in jobs}) > 1


def test_a_job_that_runs_in_the_caller_and_those_of_a_node_keep_to_one_limit(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    license_ = Limit(1, name="license")
    with node(url, tmp_path, *POOL, "--work-on", "default"):
        first = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate("node")}, limits=license_)
        files.heed(1)
        second = scheduler.run_job(Echo, 2, limits=license_)
        assert (second.status, second.attempts) == (Status.WAITING, ())
        files.open("node")
        scheduler.wait_for([first, second], timeout=LIMIT)
        store = scheduler._connections.store
        [license_key] = limit_keys_of(store.find(parse({}), limit=1)[0].lane)
        eventually(lambda: not store.limit_usage([license_key.key], store.now())[license_key.key])

        with ThreadPoolExecutor(1) as thread:
            data = {"file": files.file, "gate": files.gate("caller")}
            third = thread.submit(scheduler.run_job, Gate, data, limits=license_, queue="here")
            files.heed(3)
            fourth = scheduler.add_job(Echo, 4, limits=license_)
            scheduler.wait_for([scheduler.add_job(Echo, 5)], timeout=LIMIT)
            assert fourth.refresh().is_waiting
            files.open("caller")
            assert third.result(LIMIT).attempts[0].pid == os.getpid()
        scheduler.wait_for([fourth], timeout=LIMIT)

    assert (first.result, second.result, fourth.result) == ("through", 2, 4)


@IN_EITHER_ORDER
def test_a_rate_is_not_exceeded_in_any_window(url: str, scheduler: Scheduler, tmp_path: Path, order: str) -> None:
    jobs = scheduler.add_jobs([(Clock, None, {"limits": Rate(4, per=1), "queue": f"q{n % 3}"}) for n in range(12)])

    with ExitStack() as nodes:
        for name in "ab":
            nodes.enter_context(node(url, tmp_path, *POOL, "--name", name, "--order", order))
        scheduler.wait_for(jobs, timeout=LIMIT)

    starts = sorted(began(job) for job in jobs)
    assert all(round(later - sooner, 3) >= 1 for sooner, later in zip(starts, starts[4:], strict=False)), told(jobs)
    assert all(job.result > began(job) - 0.01 for job in jobs)  # by its own clock, no job began before


def test_a_rate_counts_from_when_a_job_begins_however_long_its_class_takes_to_load(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    (tmp_path / "slow_to_load.py").write_text(SLOW_TO_LOAD)
    jobs = [scheduler.add_job("slow_to_load:Slow", limits=Rate(1, per=1.2)) for _ in range(2)]

    with node(url, tmp_path, "--pm", "static", "--min-children", "1"):
        scheduler.wait_for(jobs, timeout=LIMIT)

    first, second = sorted(jobs, key=began)
    assert round(began(second) - began(first), 3) >= 1.2
    assert began(first) > first.result - LOADS / 2  # it was loaded by then: the result says when


@pytest.mark.parametrize(
    ("job", "given"),
    [
        ("Quick", {}),
        ("Quick", {"on_crash": "fail"}),
        ("Declared", {}),
        ("Concurrent", {}),
        ("Checked", {}),
    ],
)
def test_a_rate_holds_when_one_process_takes_longer_to_load_a_class_than_another(
    url: str, scheduler: Scheduler, tmp_path: Path, job: str, given: dict[str, Any]
) -> None:
    (tmp_path / "first_is_slow.py").write_text(FIRST_IS_SLOW)
    (tmp_path / "bootstrap.py").write_text(AROUND_EACH_RUN)
    if job != "Declared":
        given = {**given, "limits": Rate(1, per=PERIOD)}
    jobs = [scheduler.add_job(f"first_is_slow:{job}", **given) for _ in range(4)]

    with node(url, tmp_path, *POOL, "--bootstrap", "bootstrap.py"):
        scheduler.wait_for(jobs, timeout=LIMIT)

    starts = sorted(began(job) for job in jobs)
    assert all(round(later - sooner, 3) >= PERIOD for sooner, later in pairwise(starts)), told(jobs)
    assert all(job.result > began(job) - 0.01 for job in jobs)  # by its own clock, no job began before


def test_a_job_that_runs_in_the_caller_counts_under_a_rate_from_when_its_class_is_loaded(
    scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"first_is_slow_{tmp_path.name}_{os.getpid()}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(FIRST_IS_SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    limits = Rate(1, per=3600)
    first, second = (scheduler.run_job(f"{name}:Quick", limits=limits) for _ in range(2))

    assert (first.status, second.status) == (Status.DONE, Status.WAITING)
    store = scheduler._connections.store
    claimed = store.claim(WEB_1, ClaimRequest(pooled=1), store.now(), store.now())
    assert claimed.next_at is not None
    assert claimed.next_at.timestamp() - began(first) >= 3600
    assert began(first) > sys.modules[name].LOADED_AT - 0.01


def began(job: Process) -> float:
    """Return when the only attempt of the job began, as rates count it: in whole milliseconds."""
    [attempt] = job.attempts
    assert attempt.started_at is not None
    return attempt.started_at.timestamp()


def test_a_full_limit_is_said_by_why(scheduler: Scheduler) -> None:
    store = scheduler._connections.store
    scheduler.add_job(Echo, limits="1")
    waiting = scheduler.add_job(Echo, limits="1")
    claim(store, 1, now=store.now())

    assert (
        "It is held back by a limit that is used up: at most 1 at once of tests.acceptance.work:Echo." in waiting.why()
    )


def told(jobs: list[Process]) -> str:
    """Return when each job began, by the store's clock and by that of its own process, and at which node."""
    return "\n".join(f"{began(job):.3f} {job.result:.3f} {job.attempts[0].node}" for job in sorted(jobs, key=began))
