"""What is special in asyncio: no call blocks the loop, waits share one listener, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from taskqueue import AsyncProcess, AsyncScheduler, Scheduler, Status
from taskqueue.errors import InvalidOption, InvalidQuery, JobFailed, JobNotFound, StoreUnavailable
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.scheduler.async_waits import AT_ONCE, OF_SERVER, AsyncWaits
from taskqueue.scheduler.connection import StoreOpener
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.counting import uncounted
from tests.nodes import LIMIT, eventually
from tests.scheduler.jobs import Broken, Echo
from tests.scheduler.playing import play
from tests.store.records import BROKEN

PYTHON = [sys.executable, "-W", "error"]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run it as an application does, within the time of a test."""
    return asyncio.run(asyncio.wait_for(main, LIMIT))


async def until(is_so: Any) -> None:
    """Let other tasks go on until the fact is there."""
    while not is_so():  # noqa: ASYNC110 - facts of the product
        await asyncio.sleep(0.001)


def waits_of(scheduler: AsyncScheduler) -> AsyncWaits:
    return scheduler._waits[asyncio.get_running_loop()]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_awaiting_a_process_gives_the_result_or_raises(url: str, store: Store) -> None:
    async def main() -> None:
        async with AsyncScheduler(url, queue="mail") as scheduler:
            process = await scheduler.add_job(Echo)
            waiting = asyncio.ensure_future(process.wait())
            await until(lambda: scheduler._waits)
            play(store)
            assert await waiting is process
            assert await process == "played"
            assert process.queue == "mail"

            broken = await scheduler.add_job(Broken)
            play(store, Failed(failure=BROKEN))
            with pytest.raises(JobFailed):
                await broken

    run(main())


def test_a_store_that_is_locked_holds_up_nobody_else(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            await scheduler.add_job(Echo)
            with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                adding = asyncio.ensure_future(scheduler.add_job(Echo))
                for _ in range(20):
                    await asyncio.sleep(0.001)
                assert not adding.done()
                other.execute("ROLLBACK")
            assert (await adding).status is Status.WAITING

    run(main())


def test_the_loop_never_opens_the_store(url: str) -> None:
    opened_in: list[str] = []

    def opened() -> Store:
        opened_in.append(threading.current_thread().name)
        return open_store(url)

    async def main() -> None:
        async with AsyncScheduler(StoreOpener(open=opened)) as scheduler:
            with pytest.raises(InvalidQuery):
                scheduler.get_jobs({"wrong": 1})
            assert [process async for process in scheduler.get_jobs()] == []
        async with AsyncScheduler(StoreOpener(open=opened)) as scheduler:
            assert [event async for event in scheduler.events(cursor="oldest", timeout=0)] == []

    run(main())
    assert len(opened_in) == 2
    assert threading.current_thread().name not in opened_in


@pytest.mark.parametrize("number", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_waits_share_one_listener_and_no_thread_of_their_own(url: str, store: Store, number: int) -> None:
    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            processes = await scheduler.add_jobs((Echo, None) for _ in range(number))
            before = descriptors()
            waiting = [asyncio.ensure_future(process.wait()) for process in processes]
            await until(lambda: len(asyncio.all_tasks()) > number)
            await scheduler.cancel_job(processes[0].id)
            await waiting[0]
            threads = [thread for thread in threading.enumerate() if thread.name.startswith("taskqueue_")]

            assert len(threads) == 1
            assert descriptors() - before <= 6
            await asyncio.to_thread(scheduler.blocking.flush)
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(one) for one in ended} == {AsyncProcess, JobNotFound}
            assert waits_of(scheduler)._waiters == {}

    run(main())


def test_actions_on_many_jobs_keep_none_of_the_few_threads_for_themselves(url: str) -> None:
    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            await scheduler.add_jobs((Echo, None) for _ in range(3))
            gate = threading.Event()
            busy = [asyncio.ensure_future(scheduler.in_thread(gate.wait, LIMIT)) for _ in range(OF_SERVER)]
            try:
                assert await asyncio.wait_for(scheduler.cancel_jobs({}), LIMIT / 4) == 3
                assert len(await asyncio.wait_for(scheduler.recover_jobs({}), LIMIT / 4)) == 3
                assert not any(one.done() for one in busy)
            finally:
                gate.set()
            await asyncio.gather(*busy)

    run(main())


def test_a_canceled_wait_leaves_nothing_behind(url: str) -> None:
    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            process = await scheduler.add_job(Echo)
            before = asyncio.all_tasks()
            waiting = asyncio.ensure_future(process.wait())
            await until(lambda: scheduler._waits and waits_of(scheduler)._steps is not None)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            waits = waits_of(scheduler)
            await until(lambda: waits._reader is None)
            assert waits._waiters == {}
            assert asyncio.all_tasks() == before
            listener = waits._listener
            assert listener is not None
            assert listener._watches == set()

    run(main())


def test_a_canceled_iteration_over_events_leaves_nothing_behind(url: str) -> None:
    async def follow(scheduler: AsyncScheduler, heard: list[str]) -> None:
        async for event in scheduler.events(cursor="oldest"):
            heard.append(event.name)  # noqa: PERF401 - seen while it goes on

    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            heard: list[str] = []
            await scheduler.add_job(Echo)
            following = asyncio.ensure_future(follow(scheduler, heard))
            await until(lambda: heard)
            following.cancel()
            await asyncio.wait([following])
            await until(lambda: not scheduler._stream._stops)

    run(main())


def test_closing_ends_waits_with_a_clear_error(url: str) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(url)
        process = await scheduler.add_job(Echo)
        waiting = asyncio.ensure_future(process.wait())
        await until(lambda: scheduler._waits and waits_of(scheduler)._steps is not None)
        await scheduler.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await waiting
        with pytest.raises(StoreUnavailable, match="closed"):
            await scheduler.add_job(Echo)

    run(main())


def test_other_tasks_have_their_turns_while_many_jobs_are_said_to_have_ended(url: str, store: Store) -> None:
    turns, seen = 0, set()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            processes = await scheduler.add_jobs([(Echo, number) for number in range(400)])
            while play(store):
                pass
            taking = asyncio.create_task(take_turns())
            waits = [asyncio.create_task(process.wait()) for process in processes]
            for wait in waits:
                wait.add_done_callback(lambda _: seen.add(turns))
            await asyncio.gather(*waits)
            taking.cancel()

    run(main())
    assert len(seen) >= 400 / AT_ONCE


def test_no_thread_is_left_when_a_scheduler_is_closed(url: str) -> None:
    before = {*threading.enumerate()}

    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            await asyncio.gather(*(scheduler.add_job(Echo) for _ in range(8)))
            assert [one for one in threading.enumerate() if one.name.startswith("taskqueue_")]
        assert [one for one in threading.enumerate() if one.name.startswith("taskqueue_") and one not in before] == []

    run(main())


def test_one_scheduler_serves_one_loop_after_another_and_two_at_once(url: str, store: Store) -> None:
    scheduler = AsyncScheduler(url)

    async def wait() -> str:
        process = await scheduler.add_job(Echo)
        await process.wait()
        return str(process.result)

    async def added() -> AsyncProcess:
        return await scheduler.add_job(Echo)

    first = run(added())
    play(store)
    assert run(first.wait()).is_done  # in another loop than the one it came from

    results: list[str] = []
    loops = [threading.Thread(target=lambda: results.append(asyncio.run(wait()))) for _ in range(2)]
    for loop in loops:
        loop.start()
    eventually(lambda: sum(map(len, (waits._waiters for waits in list(scheduler._waits.values())))) == 2)
    play(store)
    for loop in loops:
        loop.join(LIMIT)
    assert results == ["played", "played"]
    run(scheduler.close())


def test_a_forked_child_goes_on_in_a_loop_of_its_own(tmp_path: Path) -> None:
    script = f"""
import asyncio, os
from taskqueue import AsyncScheduler
scheduler = AsyncScheduler({str(tmp_path / "jobs.db")!r})
async def add(data):
    process = await scheduler.add_job("some.where:Job", data)
    return len([one async for one in scheduler.get_jobs()])
async def parent():
    await add("parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if asyncio.run(add("child")) == 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert await add("parent again") == 3
    await scheduler.close()
asyncio.run(parent())
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LIMIT)


def test_a_callback_may_be_a_coroutine_function(url: str, store: Store) -> None:
    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            heard: list[tuple[str, object]] = []

            async def note(event: Any) -> None:
                heard.append((event.name, await event.process))

            scheduler.on("done", note)
            process = await scheduler.add_job(Echo)
            waiting = asyncio.ensure_future(process.wait())
            await until(lambda: scheduler._stream._stops)
            play(store)
            await waiting
            assert heard == [("done", process)]

    run(main())


async def get(app: FastAPI, path: str) -> Any:
    """Return the answer of the application to a request, as its server would have it."""
    sent: list[Any] = []
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return json.loads(b"".join(message.get("body", b"") for message in sent))


def test_requests_that_wait_hold_up_no_other_request(url: str, store: Store) -> None:
    async def main() -> None:
        app = FastAPI()
        scheduler = AsyncScheduler(url)

        @app.get("/job")
        async def job() -> dict[str, object]:
            return {"result": await (await scheduler.add_job(Echo))}

        @app.get("/here")
        async def here() -> dict[str, bool]:
            return {"here": True}

        async with scheduler:
            waiting = [asyncio.ensure_future(get(app, "/job")) for _ in range(50)]
            await until(lambda: scheduler._waits and len(waits_of(scheduler)._waiters) == 50)
            assert await get(app, "/here") == {"here": True}
            assert not any(one.done() for one in waiting)
            await asyncio.to_thread(play, store)
            assert {(await one)["result"] for one in waiting} == {"played"}

    run(main())


def test_a_blocking_wait_in_an_event_loop_warns_with_the_way_out(blocking: Scheduler) -> None:
    process = blocking.add_job(Echo)

    async def main() -> None:
        with pytest.raises(RuntimeWarning, match="use AsyncScheduler and await it"):  # warnings are errors here
            process.wait(timeout=LIMIT)

    asyncio.run(main())


def test_a_blocking_wait_elsewhere_does_not_warn(blocking: Scheduler, store: Store) -> None:
    process = blocking.add_job(Echo)

    async def main() -> None:
        waiting = asyncio.ensure_future(asyncio.to_thread(process.wait))
        await asyncio.sleep(0)
        play(store)
        await waiting

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


def test_wrong_arguments_are_refused_in_the_call(url: str) -> None:
    async def main() -> None:
        async with AsyncScheduler(url) as scheduler:
            with pytest.raises(InvalidOption):
                scheduler.events(cursor="x")
            with pytest.raises(InvalidOption):
                await scheduler.add_job(Echo, retyr=3)  # type: ignore[call-arg]
        with pytest.raises(InvalidOption):
            AsyncScheduler(url, retyr=3)  # type: ignore[call-arg]

    run(main())


NOT_NEEDED_TO_ADD = """
asyncio click concurrent.futures croniter difflib hashlib msgspec psutil pymongo rich setproctitle tempfile
typing_extensions zoneinfo taskqueue.execution.executor taskqueue.execution.shell_job taskqueue.model.analytics
taskqueue.model.schedules.schedule taskqueue.scheduler.async_scheduler taskqueue.scheduler.run_inline
taskqueue.scheduler.schedules taskqueue.insight.why taskqueue.store.mongodb
"""


def test_adding_a_job_imports_neither_asyncio_nor_a_driver_nor_rich(tmp_path: Path) -> None:
    script = f"""
import sys
from taskqueue import Job, Scheduler
with Scheduler({str(tmp_path / "jobs.db")!r}) as scheduler:
    scheduler.add_job("some.where:Job")
print(sorted(set({NOT_NEEDED_TO_ADD.split()!r}).intersection(sys.modules)))
"""
    done = subprocess.run(
        [*PYTHON, "-c", script], check=True, capture_output=True, text=True, timeout=LIMIT, env=uncounted()
    )

    assert done.stdout.strip() == "[]"
