"""Running jobs that wait for other jobs, on real nodes and stores: a wait that cannot end raises an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bson import ObjectId as JobId

from taskqueue import Process, Scheduler, Status
from tests.acceptance.conftest import JobFiles
from tests.acceptance.waiting import AsyncParent, Child, ConcurrentParent, Parent
from tests.acceptance.work import Gate
from tests.nodes import LIMIT, eventually, node


def pool(workers: int, *options: str, name: str = "a") -> tuple[str, ...]:
    """Return the options of a node with so many workers."""
    return ("--name", name, "--pm", "dynamic", "--min-children", "1", "--max-children", str(workers), *options)


def error_of(job: Process) -> str:
    """Return the error of a job that has failed."""
    assert job.status is Status.FAILED
    assert job.error is not None
    return f"{job.error.type}: {job.error.message}"


@pytest.mark.parametrize("how", ["wait", "second scheduler", "callbacks", "run_job", "again and again"])
def test_a_wait_that_holds_the_only_worker_fails(url: str, scheduler: Scheduler, tmp_path: Path, how: str) -> None:
    with node(url, tmp_path, *pool(1)):
        parent = scheduler.add_job(Parent, {"how": how, "url": url}).wait(timeout=LIMIT)
        [child] = scheduler.wait_for(list(scheduler.find_jobs({"job": "tests.acceptance.waiting:Child"})), LIMIT)

    assert "taskqueue.errors.WaitDeadlock" in error_of(parent)
    for words in (f"waits for job {child.id}", "queue default (node a)", "depends_on", "--max-children"):
        assert words in error_of(parent)
    assert child.status is Status.DONE


@pytest.mark.parametrize("how", ["wait", "callbacks"])
def test_an_awaited_job_that_has_no_worker_fails_the_wait(
    url: str, scheduler: Scheduler, tmp_path: Path, how: str
) -> None:
    with node(url, tmp_path, *pool(1)):
        parent = scheduler.add_job(AsyncParent, {"how": how, "url": url}).wait(timeout=LIMIT)

    assert "which for 5 s has found no worker" in error_of(parent)


def test_waits_that_hold_all_slots_of_a_class_fail(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path, *pool(1)):
        parents = [scheduler.add_job(ConcurrentParent, {"how": "third", "url": url}) for _ in range(2)]
        scheduler.wait_for(parents, timeout=LIMIT)

    assert any(parent.status is Status.FAILED and "queue default" in error_of(parent) for parent in parents)


def test_waits_of_two_parents_on_two_workers_end(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path, *pool(2)):
        data = {"how": "wait", "together": 2, "folder": str(tmp_path)}
        parents = [scheduler.add_job(Parent, data) for _ in range(2)]
        scheduler.wait_for(parents, timeout=LIMIT)

    assert any(parent.status is Status.FAILED and "queue default" in error_of(parent) for parent in parents)


def test_a_child_that_was_prefetched_fails_the_wait_too(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path, *pool(1)):
        scheduler.wait_for(scheduler.add_jobs([(Child, {})] * 50), timeout=LIMIT)
        parent = scheduler.add_job(Parent, {"how": "wait"}).wait(timeout=LIMIT)

    assert "queue default (node a)" in error_of(parent)


def test_jobs_that_wait_for_each_other_fail(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    one, other = JobId(), JobId()
    with node(url, tmp_path, *pool(3)):
        parents = [
            scheduler.add_job(Parent, {"how": "given", "id": str(awaited)}, id=id, at="+1 s")
            for id, awaited in ((one, other), (other, one))
        ]
        scheduler.wait_for(parents, timeout=LIMIT)

    assert any(
        parent.status is Status.FAILED and "for a job that waits for it" in error_of(parent) for parent in parents
    )


def test_waits_that_hold_a_bounded_queue_fail(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path, *pool(4, "--work-on", "mail=1", "--work-on", "other")):
        data = {"how": "wait", "queue": "mail"}
        parent = scheduler.add_job(Parent, data, queue="mail").wait(timeout=LIMIT)

    assert "queue mail (node a)" in error_of(parent)


@pytest.mark.parametrize(
    ("job", "how", "words"),
    [
        (Parent, "itself", "waits for itself"),
        (AsyncParent, "itself", "waits for itself"),
        (Parent, "pause", "waits for itself"),
        (Parent, "dependent", "which waits for the end of this one"),
    ],
)
def test_a_wait_for_its_own_job_fails_at_once(
    url: str, scheduler: Scheduler, tmp_path: Path, job: type[Parent], how: str, words: str
) -> None:
    with node(url, tmp_path, *pool(2)):
        parent = scheduler.add_job(job, {"how": how, "url": url}).wait(timeout=LIMIT)

    assert words in error_of(parent)


def test_a_wait_in_a_call_that_runs_no_other_job_warns(
    url: str, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    child = scheduler.add_job(Child, {}, at="+1 hour")
    parent = scheduler.add_job(Parent, {"how": "given", "id": str(child.id)})
    with Scheduler(url) as of_thread, ThreadPoolExecutor(1) as thread:
        running = thread.submit(of_thread.run_pending, once=True, ignore_time=False)
        eventually(lambda: parent.refresh().status is Status.PROCESSING)
        scheduler.update_job(child.id, at="+0 s")
        eventually(lambda: "and no node takes queue default: start one, or make" in caplog.text)
        scheduler.run_pending()
        assert [job.id for job in running.result(LIMIT)] == [parent.id]

    assert caplog.text.count(f"this job waits for job {child.id}, but the call that runs this job runs no other") == 1
    assert (parent.refresh().status, child.refresh().status) == (Status.DONE, Status.DONE)


def test_a_child_that_another_node_can_take_ends_its_wait(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    own, others = pool(1, "--work-on", "default"), pool(1, "--work-on", "other", name="b")
    with node(url, tmp_path, *own), node(url, tmp_path, *others):
        parents = [scheduler.add_job(Parent, {"how": "wait", "queue": "other"}) for _ in range(3)]
        scheduler.wait_for(parents, timeout=LIMIT)

    assert [parent.result for parent in parents] == ["done"] * 3


def test_async_waits_of_a_concurrent_class_leave_the_pool_free(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path, *pool(1)):
        parents = [scheduler.add_job(ConcurrentParent, {"how": "child", "url": url}) for _ in range(4)]
        scheduler.wait_for(parents, timeout=LIMIT)

    assert [parent.result for parent in parents] == ["done"] * 4


def test_a_wait_behind_ordinary_work_warns_and_goes_on(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *pool(2)):
        scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        parent = scheduler.add_job(Parent, {"how": "wait"})
        warnings = eventually(lambda: [line.message for line in scheduler.logs(parent.id) if line.level == "warning"])
        [child] = scheduler.find_jobs({"job": "tests.acceptance.waiting:Child"})
        why, why_child = scheduler.why(parent.id), scheduler.why(child.id)
        files.open()
        parent.wait(timeout=LIMIT)

    assert parent.result == "done"
    assert [f"while it waits for job {child.id}" in text for text in warnings] == [True]
    assert f"While it runs it waits for {child.id}" in why
    assert f"Running jobs wait for it, and hold run slots: {parent.id}." in why_child
    assert "WaitDeadlock" not in why + why_child


def test_why_names_a_deadlock_of_both_jobs(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path, *pool(1)):
        parent = scheduler.add_job(Parent, {"how": "wait"})
        child = eventually(lambda: scheduler.find_jobs({"job": "tests.acceptance.waiting:Child"}))[0]
        words = f"Job {child.id} has found no worker, because every worker that takes queue default (node a)"
        eventually(lambda: words in parent.why() and words in child.why())
        parent.wait(timeout=LIMIT)


def test_a_wait_for_a_running_job_goes_on(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path, *pool(2)):
        child = scheduler.add_job(Child, {"gate": files.gate()})
        parent = scheduler.add_job(Parent, {"how": "given", "id": str(child.id)})
        eventually(lambda: "While it runs it waits for" in parent.why())
        files.open()
        parent.wait(timeout=LIMIT)

    assert parent.status is Status.DONE
