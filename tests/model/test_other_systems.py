"""Words of other job systems: each is none here, and leads to a word or a way that there is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from taskqueue import (
    AsyncScheduler,
    Cron,
    Every,
    Fail,
    Job,
    Limit,
    Process,
    Rate,
    Retry,
    RunningJob,
    Scheduler,
    Snooze,
    current_job,
    retry,
    task,
)
from taskqueue.errors import InvalidOption
from taskqueue.model import other_systems
from taskqueue.model.options.table import OPTIONS


@task
def shop() -> None:
    """Do as a task of Celery does that is bound."""
    current_job().retry(countdown=60)  # type: ignore[attr-defined]


class Shop(Job):
    def start(self) -> Any:
        return self.request.retries  # type: ignore[attr-defined]


class Own(Job):
    """Has another mistake of its own."""

    def start(self) -> Any:
        return self.data.retry


def test_no_word_of_another_system_is_one_here() -> None:
    assert not OPTIONS.keys() & (other_systems.OPTIONS.keys() | other_systems.WAYS.keys())
    assert set(other_systems.OPTIONS.values()) <= OPTIONS.keys()
    for words, kinds in (
        (other_systems.OF_JOBS, (Job, RunningJob)),
        (other_systems.OF_PROCESSES, (Process,)),
        (other_systems.OF_SCHEDULERS, (Scheduler, AsyncScheduler)),
        (other_systems.OF_TASKS, (type(shop),)),
    ):
        assert not [word for word in words for kind in kinds if hasattr(kind, word)]


@pytest.mark.parametrize("option", other_systems.OPTIONS)
def test_an_option_leads_to_the_option_here(scheduler: Scheduler, option: str) -> None:
    ours = other_systems.OPTIONS[option]
    written = r"at='\+5 seconds'" if ours == "at" else ours
    with pytest.raises(InvalidOption, match=rf"there is no option '{option}': did you mean {written}\?$"):
        scheduler.add_job(shop, **{option: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", other_systems.WAYS)
def test_an_option_without_an_equal_leads_to_a_way(scheduler: Scheduler, option: str) -> None:
    way = re.escape(other_systems.WAYS[option])
    with pytest.raises(InvalidOption, match=rf"there is no option '{option}': {way}$"):
        scheduler.add_job(shop, **{option: True})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (shop, "'RunningJob' object has no attribute 'retry': raise Retry(60), with the option retry, to run it again"),
        (Shop, "'Shop' object has no attribute 'request': a job has id, attempt and meta by itself"),
        (Own, "'NoneType' object has no attribute 'retry'"),
    ],
)
def test_a_job_that_uses_an_attribute_of_another_system_fails_with_the_way(
    scheduler: Scheduler, job: Any, words: str
) -> None:
    process = scheduler.run_job(job)

    assert process.error is not None
    assert process.error.message == words


@pytest.mark.parametrize("word", other_systems.OF_PROCESSES)
def test_a_handle_of_a_job_names_the_way(scheduler: Scheduler, word: str) -> None:
    process = scheduler.add_job(shop)
    way = re.escape(other_systems.OF_PROCESSES[word])
    with pytest.raises(AttributeError, match=f"'Process' object has no attribute '{word}': {way}$"):
        getattr(process, word)
    with pytest.raises(AttributeError, match=r"'Process' object has no attribute 'stattus'$"):
        process.stattus  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("word", other_systems.OF_TASKS)
def test_a_task_names_the_way(word: str) -> None:
    way = re.escape(other_systems.OF_TASKS[word])
    with pytest.raises(AttributeError, match=f"^task shop has no attribute '{word}': {way}$"):
        getattr(shop, word)


async def word_of_asyncio(url: str, word: str) -> None:
    """Use a word of another system with the scheduler for asyncio."""
    async with AsyncScheduler(url) as scheduler:
        getattr(scheduler, word)


@pytest.mark.parametrize("word", other_systems.OF_SCHEDULERS)
def test_a_scheduler_names_the_way(scheduler: Scheduler, url: str, word: str) -> None:
    way = re.escape(other_systems.OF_SCHEDULERS[word])
    with pytest.raises(AttributeError, match=f"'Scheduler' object has no attribute '{word}': {way}$"):
        getattr(scheduler, word)
    with pytest.raises(AttributeError, match=f"'AsyncScheduler' object has no attribute '{word}': {way}$"):
        asyncio.run(word_of_asyncio(url, word))


@pytest.mark.parametrize(
    ("call", "argument", "way"),
    [
        (Retry, "countdown", "delay=60"), (Retry, "exc", "reason='…'"), (Snooze, "delay", "seconds=60"),
        (Fail, "message", "reason='…'"), (Cron, "hour", "expr='15 3 * * mon'"), (Every, "minutes", "interval='90m'"),
        (Limit, "concurrency", "count=5"), (Rate, "period", "per='1m'"),
        (retry.many_times, "countdown", "interval='5m'"),
        (retry.exponential, "max_retries", "times=3"), (retry.forever, "delay", "interval='5m'"),
    ],
)  # fmt: skip
def test_an_unknown_argument_leads_to_the_one_here(call: Callable[..., object], argument: str, way: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"unexpected keyword argument {argument!r}: did you mean {way}?")):
        call(**{argument: 10})
    with pytest.raises(TypeError, match=r"'nonsense'$"):
        call(nonsense=10)
