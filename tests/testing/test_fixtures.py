"""The fixtures: drained jobs have the hooks of the scheduler, and schedulers of the application are on its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskqueue import AsyncScheduler, NewJob, RunningJob, Scheduler
from taskqueue.errors import StoreUnavailable
from taskqueue.scheduler.connection import StoreOpener, standing_in
from taskqueue.store.open import open_store
from taskqueue.testing import Jobs, MovableClock
from tests.testing.work import Mail, Parent

SEEN: list[str] = []
SHOP = Scheduler()  # as an application makes it: when its module is imported


@pytest.fixture
def taskqueue_hooks() -> Mapping[str, Callable[..., Any]]:
    def before_add(new: NewJob) -> None:
        new.meta["tenant"] = "acme"

    def around_run(job: RunningJob, proceed: Callable[[], Any]) -> None:
        SEEN.append(f"{job.job.rpartition(':')[2]} of {job.meta['tenant']}")
        proceed()

    return {"before_add": before_add, "around_run": around_run}


def test_drained_jobs_have_the_hooks_of_the_test(scheduler: Scheduler, jobs: Jobs) -> None:
    SEEN.clear()
    scheduler.add_job(Parent)

    jobs.drain()

    assert SEEN == ["Parent of acme", "Mail of acme"]
    jobs.assert_added(Mail, meta={"tenant": "acme"})


@pytest.mark.parametrize("number", [1, 2])
def test_a_scheduler_made_on_import_is_on_the_store_of_each_test(jobs: Jobs, number: int) -> None:
    SHOP.add_job(Mail, {"number": number})

    jobs.assert_added(Mail, data={"number": number})
    assert SHOP.count_jobs() == 1


def test_a_scheduler_made_on_import_goes_by_the_clock_of_the_test(scheduler: Scheduler, clock: MovableClock) -> None:
    clock.move("1d")

    assert SHOP.add_job(Mail, at="+1h").ready_at == clock.now() + timedelta(hours=1)


def test_an_asyncio_client_made_before_waits_in_the_store_of_each_test(tmp_path: Path) -> None:
    async def two_tests_in_one_loop() -> list[Any]:
        async with AsyncScheduler() as client:
            return [await wait_in(client, tmp_path / name) for name in ("one.db", "two.db")]

    async def wait_in(client: AsyncScheduler, file: Path) -> Any:
        with standing_in(StoreOpener(open=lambda: open_store(str(file)))):
            process = await client.add_job(Mail, {"to": "ann"})
            waiting = asyncio.create_task(process.wait(timeout=60))
            await asyncio.to_thread(run_pending, file)
            return (await waiting).is_done

    def run_pending(file: Path) -> None:
        with Scheduler(str(file)) as node:
            node.run_pending()

    assert asyncio.run(two_tests_in_one_loop()) == [True, True]


def test_a_wait_of_a_test_that_is_over_ends_alone(tmp_path: Path) -> None:
    one, two = (StoreOpener(open=partial(open_store, str(tmp_path / name))) for name in ("one.db", "two.db"))

    async def two_tests_in_one_loop() -> bool:
        async with AsyncScheduler() as client:
            with standing_in(one):
                left = asyncio.create_task((await client.add_job(Mail, at="+1h")).wait(timeout=60))
                await done_in(client)  # so the reader of both has begun
            with standing_in(two):
                assert await done_in(client)
                with pytest.raises(StoreUnavailable, match="closed while a call was waiting for jobs"):
                    await left
                return await done_in(client)

    async def done_in(client: AsyncScheduler) -> bool:
        process = await client.add_job(Mail, {"to": "ann"})
        waiting = asyncio.create_task(process.wait(timeout=60))
        await asyncio.to_thread(client.blocking.run_pending, ignore_time=False)
        return (await waiting).is_done

    assert asyncio.run(two_tests_in_one_loop())


def test_a_scheduler_without_an_address_is_back_on_its_own_store_after_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQUEUE_URL", str(tmp_path / "own.db"))
    test = StoreOpener(open=lambda: open_store(str(tmp_path / "test.db")))
    own = str(tmp_path / "own.db")
    with Scheduler() as scheduler, copy(scheduler) as copied, Scheduler(own) as addressed:
        scheduler.add_job(Mail)
        assert copied.count_jobs() == 1
        with standing_in(test):
            assert (scheduler.count_jobs(), copied.count_jobs(), addressed.count_jobs()) == (0, 0, 1)

        assert (scheduler.count_jobs(), copied.count_jobs()) == (1, 1)
