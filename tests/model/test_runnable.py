"""What no worker could run is refused when it is added, with the reason and the way out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar, cast

import pytest

from taskqueue import ClassOptions, Job, Scheduler, StepwiseJob, task
from taskqueue.errors import InvalidJob
from taskqueue.model import runnable
from taskqueue.model.query import EVERYTHING
from taskqueue.store import Store


class Awaiting(Job):
    async def start(self) -> None:
        pass


class Yielding(Job):
    def start(self) -> Iterator[int]:
        yield 1


class AwaitingAndYielding(Job):
    async def start(self) -> AsyncIterator[int]:
        yield 1


class Idle(Job):
    pass


class Wanting(Job):
    def __init__(self, customer: str) -> None:
        self.customer = customer

    def start(self) -> None:
        pass


class Content(Job):
    def __init__(self, customer: str = "ann", *more: str, **others: str) -> None:
        self.customer = customer

    def start(self) -> str:
        return self.customer


class TakingTwo(Job):
    def start(self, source: str, target: str) -> None: ...


class TakingKeywords(Job):
    def start(self, *, source: str, target: str) -> None: ...


class TakingTwoOfTheClass(Job):
    @classmethod
    def start(cls, source: str, target: str) -> None: ...


class SteppingWithData(StepwiseJob):
    def iterate(self, page: int) -> bool:  # type: ignore[override]
        return page > 1


class AskedWithData(Job):
    def start(self) -> None: ...

    def is_ready(self, data: object) -> bool:  # type: ignore[override]
        return bool(data)


class UnawareOfErrors(Job):
    def start(self) -> None: ...

    def on_failure(self) -> None: ...  # type: ignore[override]


class TakingMoreThanNeeded(Job):
    def start(self, data: object, again: bool = False, *more: object, **named: object) -> None: ...

    def on_failure(self, error: Exception, *, quiet: bool = False) -> None: ...


class Stepping(StepwiseJob):
    def iterate(self) -> bool:
        return True


@task
async def awaiting() -> None:
    pass


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (AwaitingAndYielding, "AwaitingAndYielding.start is a generator, so none of its code would run"),
        (Yielding, "Yielding.start is a generator, so none of its code would run: return a value"),
        (Idle, "Idle has no start(): define it to do the work"),
        (Wanting, "Wanting() needs 'customer', but a worker creates it without arguments: pass it as data"),
        (TakingTwo, "TakingTwo.start() needs 'target', but a worker passes only the data: take it from self.data, or"),
        (TakingTwo, "or write a function with @task, which gets its data as arguments"),
        (TakingKeywords, "TakingKeywords.start() needs 'source' and 'target', but a worker passes nothing: take them "),
        (TakingTwoOfTheClass, "TakingTwoOfTheClass.start() needs 'target', but a worker passes only the data: take"),
        (SteppingWithData, "SteppingWithData.iterate() needs 'page', but a worker passes nothing: take it"),
        (AskedWithData, "AskedWithData.is_ready() needs 'data', but a worker passes nothing: take it from self.data"),
        (UnawareOfErrors, "UnawareOfErrors.on_failure() does not take the error that a worker passes: write"),
        (UnawareOfErrors, "a worker passes: write on_failure(self, error)"),
        (lambda: None, "a lambda has no name that a worker could import: write it with def"),
    ],
)  # fmt: skip
def test_what_no_worker_could_run_is_refused(scheduler: Scheduler, store: Store, job: Any, words: str) -> None:
    calls = (scheduler.add_job, scheduler.add_job_once, scheduler.run_job, lambda it: scheduler.add_jobs([(it, None)]))
    for add in calls:
        with pytest.raises(InvalidJob) as refused:
            add(job)
        assert words in str(refused.value)
    assert store.count(EVERYTHING) == 0


def test_what_a_worker_can_run_is_taken(scheduler: Scheduler) -> None:
    assert scheduler.add_job(Content).is_waiting
    assert scheduler.add_job(Stepping).is_waiting
    assert scheduler.add_job(TakingMoreThanNeeded, 1).is_waiting
    assert scheduler.add_job(Awaiting).is_waiting
    assert scheduler.add_job(awaiting).is_waiting


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("delay", "at='[+]5 seconds'"), ("countdown", "at='[+]5 seconds'"), ("eta", "at='[+]5 seconds'"),
        ("max_retries", "retry"), ("retries", "retry"), ("expire", "expires"),
        ("retry_backoff", "retry"), ("time_limit", "timeout"), ("rate_limit", "limits"), ("task_id", "id"),
    ],
)  # fmt: skip
def test_an_option_of_another_system_leads_to_ours(scheduler: Scheduler, option: str, ours: str) -> None:
    with pytest.raises(InvalidJob, match=rf"there is no option '{option}': did you mean {ours}\?"):
        scheduler.add_job(Content, **cast(Any, {option: 5}))


class OfAnotherSystem(Job):
    crash_retries = 1
    tags: ClassVar[dict[str, str]] = {"of": "its own"}
    timeout = property(lambda self: 3)
    options: ClassVar[ClassOptions] = {"queue": "mail"}
    queue = "mail"

    def start(self) -> None: ...


def test_an_attribute_that_looks_like_an_option_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="OfAnotherSystem") as warned:
        runnable.check(OfAnotherSystem)

    [said] = [str(one.message) for one in warned]
    assert said.endswith(
        "OfAnotherSystem.crash_retries = 1 is an attribute, not an option of its jobs: "
        "write options = {'crash_retries': 1}, or rename the attribute"
    )


@task
def plain(to: str, subject: str = "") -> None: ...


@task
def by_name(*, to: str) -> None: ...


@task
def by_place(to: str, /, subject: str = "") -> None: ...


@task
def by_place_or_not(to: str = "", /) -> None: ...


@task
def anything(to: str, *others: str, **more: str) -> None: ...


@pytest.mark.parametrize("function", [plain, by_name, by_place, by_place_or_not, anything])
@pytest.mark.parametrize(
    "data", [None, {}, {"to": 1}, {"subject": 1}, {"to": 1, "subject": 2}, {"to": 1, "cc": 2}, {1: 2}]
)
def test_a_task_is_refused_the_data_that_its_function_cannot_be_called_with(function: Any, data: Any) -> None:
    try:
        function(**(data or {}))
    except TypeError:
        with pytest.raises(InvalidJob, match=r"cannot be called with this data: "):
            runnable.check_arguments(function, data)
    else:
        runnable.check_arguments(function, data)
