"""The job that runs, as a task has it: ``current_job()`` and ``@task(context=True)``, in the caller's process."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import threading
from decimal import Decimal
from typing import Any

import pytest

from taskqueue import AsyncScheduler, Fail, Job, Retry, RunningJob, Scheduler, Status, current_job, task
from taskqueue.errors import InvalidJob, InvalidOption, NoCurrentJob, TaskqueueError

LEFT: list[Any] = []


def facts() -> dict[str, Any]:
    """Return what code far below a job knows of it."""
    job = current_job()
    return {"id": job.id, "job": job.job, "queue": job.queue, "attempt": job.attempt, "key": job.key, "data": job.data}


@task(queue="mail")
def plain(value: int) -> dict[str, Any]:
    return {**facts(), "twice": value * 2}


@task
async def awaiting(value: int) -> list[Any]:
    tasks = [asyncio.create_task(asyncio.to_thread(lambda: current_job().id)) for _ in range(value)]
    return [current_job().id, *[await one for one in tasks]]


@task(retry=1, retry_interval=0)
def resuming(items: int) -> list[int]:
    """Fail at the second item of the first attempt, with a checkpoint; finish in the second."""
    job = current_job()
    seen: list[int] = []
    for item in job.each(range(items)):
        if item == 1 and job.attempt == 1:
            job.checkpoint({"seen": seen})
            raise ConnectionError
        seen.append(item)
        job.progress(100 * item / items, f"item {item}")
        job.log.warning("item %s", item)
    return [*job.state["seen"], *seen]


@task
def ending(how: str) -> str:
    current_job().end_with(Fail("had enough") if how == "fail" else Retry(7, "busy"))
    return "not kept"


@task(context=True, retry=2)
def told(job: RunningJob, to: str, amount: Decimal = Decimal(1)) -> list[str]:
    """Return what the job knows, and who is told how much."""
    return [str(job.id), f"{amount} to {to}"]


@task(context=True)
async def told_async(job: RunningJob, /, **rest: int) -> list[Any]:
    await asyncio.sleep(0)
    return [job.id == current_job().id, rest]


@task(context=True)
def told_all(*arguments: Any, **rest: Any) -> int:
    return len(arguments) + len(rest)


@task
def outer() -> list[Any]:
    """Run a job within this one, and call a task that wants its job."""
    before = current_job().id
    inner = current_job().scheduler.run_job(plain, {"value": 1})
    return [before, inner.result["id"], current_job().id, told("ann")[0]]


@task
def leaving() -> None:
    """Leave the context of the run, and the job, to whoever comes later."""
    LEFT[:] = [contextvars.copy_context(), current_job()]


@task
def threaded() -> Any:
    """Return what a thread finds that was started with the context of the run."""
    found: list[Any] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=[lambda: found.append(current_job().id)])
    thread.start()
    thread.join()
    return found[0]


class Classic(Job):
    def start(self) -> list[Any]:
        return [facts()["id"] == self.id, current_job().state, current_job().data]

    def on_success(self) -> None:
        LEFT[:] = [current_job().id]


class Elsewhere:
    """No job: its method is one."""

    def work(self) -> list[Any]:
        return [str(facts()["id"])]


def test_a_task_knows_its_job(scheduler: Scheduler) -> None:
    process = scheduler.run_job(plain, {"value": 4})

    path = f"{__name__}:plain"
    known = {"id": process.id, "job": path, "queue": "mail", "attempt": 1, "key": str(process.id), "data": {"value": 4}}
    assert process.result == {**known, "twice": 8}


def test_an_async_task_its_tasks_and_their_threads_know_their_job(scheduler: Scheduler) -> None:
    process = scheduler.run_job(awaiting, {"value": 3})

    assert process.result == [process.id] * 4


async def run_both(url: str) -> list[Any]:
    """Return ids and results of two jobs that run in one event loop."""
    async with AsyncScheduler(url) as scheduler:
        ran = await asyncio.gather(*[scheduler.run_job(awaiting, {"value": 2}) for _ in range(2)])
        return [[one.id, one.result] for one in ran]


def test_jobs_that_run_at_the_same_time_know_their_own(url: str) -> None:
    for id, result in asyncio.run(run_both(url)):
        assert result == [id] * 3


def test_a_task_has_loops_checkpoints_progress_and_a_log(scheduler: Scheduler) -> None:
    process = resuming.add(scheduler, 3)
    scheduler.run_pending()

    assert process.refresh().result == [0, 1, 2]
    assert (process.progress, process.progress_message) == (100.0, "item 2")
    assert [line.message for line in process.logs() if "item" in line.message] == ["item 0", "item 1", "item 2"]


@pytest.mark.parametrize(("how", "words"), [("fail", "had enough"), ("retry", "busy")])
def test_a_task_ends_as_it_says(scheduler: Scheduler, how: str, words: str) -> None:
    process = scheduler.run_job(ending, {"how": how})

    assert process.status is Status.FAILED
    assert process.error is not None
    assert process.error.message == words


def test_a_job_within_a_job_is_the_current_one_while_it_runs(scheduler: Scheduler) -> None:
    process = scheduler.run_job(outer)

    before, inner, after, called = process.result
    assert before == after == process.id != inner
    assert called == str(process.id)


def test_code_that_classes_and_methods_call_knows_the_job(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Classic, {"to": "ann"})
    method = scheduler.run_job(f"{__name__}:Elsewhere.work")

    assert process.result == [True, None, {"to": "ann"}]
    assert [process.id] == LEFT
    assert method.result == [str(method.id)]


def test_there_is_no_job_outside_of_runs() -> None:
    with pytest.raises(NoCurrentJob, match=r"^no job is running here: call current_job\(\) in a task") as refused:
        current_job()
    assert isinstance(refused.value, (TaskqueueError, RuntimeError))
    with pytest.raises(NoCurrentJob):
        told("ann")


def test_a_thread_with_the_context_of_the_run_knows_the_job(scheduler: Scheduler) -> None:
    process = scheduler.run_job(threaded)

    assert process.result == process.id


def test_code_that_outlives_its_job_is_told_so(scheduler: Scheduler) -> None:
    process = scheduler.run_job(leaving)
    context = LEFT.pop(0)
    LEFT.clear()
    gc.collect()

    with pytest.raises(NoCurrentJob, match=f"^job {process.id} has ended, but this code is still running"):
        context.run(current_job)


def test_a_task_with_context_gets_its_job_first(scheduler: Scheduler) -> None:
    first = told.add(scheduler, "ann", amount=Decimal(5))
    second = scheduler.add_job(told_async, {"x": 1})
    third = scheduler.add_job(told_all, {"x": 1, "y": 2})
    scheduler.run_pending()

    assert first.data == {"to": "ann", "amount": Decimal(5)}
    assert first.refresh().result == [str(first.id), "5 to ann"]
    assert second.refresh().result == [True, {"x": 1}]
    assert third.refresh().result == 3


def test_the_job_is_no_argument_of_the_data(scheduler: Scheduler) -> None:
    assert list(inspect.signature(told).parameters) == ["to", "amount"]
    with pytest.raises(InvalidJob, match=r"told\(\) cannot be called with this data: got an unexpected keyword"):
        scheduler.add_job(told, {"job": "x", "to": "ann"})
    with pytest.raises(InvalidJob, match=r"data\['to'\]: 5 is not a str"):
        scheduler.add_job(told, {"to": 5})
    with pytest.raises(TypeError, match="too many positional arguments"):
        told.add(scheduler, "ann", Decimal(1), 5)  # type: ignore[call-overload]


def without() -> None:
    """Take nothing."""


def named_only(*, job: RunningJob) -> None:
    """Take nothing by position."""


@pytest.mark.parametrize("function", [without, named_only])
def test_a_function_that_cannot_take_its_job_is_refused_when_it_is_declared(function: Any) -> None:
    words = f"task {function.__name__} has context=True, but its function has no parameter for the job: write def"
    with pytest.raises(InvalidJob, match=words):
        task(context=True)(function)


def test_context_is_true_or_false() -> None:
    with pytest.raises(InvalidOption, match=r"task\(context='yes'\): pass True or False"):
        task(context="yes")  # type: ignore[call-overload]
