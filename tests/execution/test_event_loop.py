"""Async jobs: in workers, where requests to end cancel their tasks, and in the caller's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler, Status
from taskqueue.daemon.protocol.messages import Ended, Progressed, Stop
from taskqueue.execution.event_loop import EventLoop
from taskqueue.execution.run import Run
from taskqueue.scheduler.run_inline import CallerInterrupts
from tests.daemon.fake_node import FakeNode, Fifo, fifos
from tests.execution.async_jobs import (
    Adding,
    Hooked,
    Importing,
    Leaving,
    Misusing,
    Paging,
    Raising,
    Stepping,
    customer,
    multiply,
)

JOBS = "tests.execution.async_jobs"


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


@pytest.fixture(scope="module")
def fake_node() -> Iterator[FakeNode]:
    with FakeNode(max_children=1) as fake_node:
        yield fake_node


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    """Return a scheduler on an empty store."""
    with Scheduler(f"sqlite://{tmp_path}/jobs.db?synchronous=normal") as scheduler:
        yield scheduler


def stop(run: Run, reason: str = "cancel") -> Stop:
    return Stop(id=run.id, claims=run.claims, reason=reason)


def test_an_async_job_has_progress_checkpoint_and_result(fake_node: FakeNode) -> None:
    run = fake_node.run(f"{JOBS}:Adding", {"a": 1, "b": 2})

    assert fake_node.result(run)["sum"] == 3
    noted = fake_node.all_of(Progressed, run)
    assert {progressed.progress for progressed in noted} >= {50.0}
    assert '{"kept":true}' in {progressed.state for progressed in noted}


def test_a_worker_runs_its_async_jobs_in_one_loop_each_with_its_own_context(fake_node: FakeNode) -> None:
    first, second = (fake_node.result(fake_node.run(f"{JOBS}:Adding", {"a": 1, "b": 2})) for _ in range(2))

    assert first["loop"] == second["loop"]
    assert second["found"] == "nobody"


def test_a_task_may_be_async(fake_node: FakeNode) -> None:
    assert fake_node.result(fake_node.run(f"{JOBS}:multiply", {"a": 6, "b": 7})) == 42


@pytest.mark.parametrize(
    ("raised", "type", "message"),
    [
        ("value", "ValueError", "no such value"),
        ("exit", "SystemExit", "3"),
        ("canceled", "asyncio.exceptions.CancelledError", ""),
        ("keyboard", "KeyboardInterrupt", ""),
    ],
)
def test_what_an_async_job_raises_is_its_failure(fake_node: FakeNode, raised: str, type: str, message: str) -> None:
    ended = fake_node.expect(Ended, fake_node.run(f"{JOBS}:Raising", raised))

    assert ended.outcome == "Failed"
    failure = ended.fields["failure"]
    assert (failure["type"], failure["message"]) == (type, message)
    assert failure["traceback"].splitlines()[1].endswith("in start")


def test_the_traceback_of_a_timeout_says_where_the_job_waited_and_no_more(
    fake_node: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    _, ended = fake_node.exceed(fifo("runs"), f"{JOBS}:Waiting", {"then": "raise"})

    said = ended.fields["failure"]["traceback"].splitlines()
    assert next(line for line in said if line.startswith("  File")).endswith("in start")
    assert (said[-1], sum(not line.startswith(" ") for line in said)) == ("taskqueue.JobTimeout: timeout", 2)


@pytest.mark.parametrize("then", ["raise", "return", "fail"])
@pytest.mark.parametrize(("reason", "outcome"), [("cancel", "Canceled"), ("timeout", "TimedOut")])
def test_a_cancel_or_timeout_cancels_the_task_and_is_the_outcome(
    reason: str, outcome: str, then: str, fifo: Callable[[str], Fifo]
) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, grace=30) as fake_node:
        if reason == "timeout":
            run, ended = fake_node.exceed(runs, f"{JOBS}:Waiting", {"then": then})
            assert f"its timeout of {run.timeout:g} s" in ended.fields["failure"]["message"]
        else:
            run = fake_node.run(f"{JOBS}:Waiting", {"runs": runs.path, "then": then})
            runs.hear()
            fake_node.tell(stop(run))
            ended = fake_node.expect(Ended, run)

        assert (ended.outcome, ended.exit) == (outcome, "")
        states = [noted.state for noted in fake_node.all_of(Progressed, run)]
        assert f'{{"reason":"{reason}","stopping":true}}' in states


@pytest.mark.parametrize(("then", "outcome"), [("raise", "Interrupted"), ("fail", "Interrupted"), ("return", "Done")])
def test_a_stop_of_the_node_interrupts_an_async_job(then: str, outcome: str, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(grace=30) as fake_node:
        run = fake_node.run(f"{JOBS}:Waiting", {"runs": runs.path, "then": then})
        runs.hear()

        assert fake_node.drain("quick").code == 0

        ended = fake_node.expect(Ended, run)
        assert (ended.outcome, ended.exit) == (outcome, "")


def test_an_async_job_that_goes_on_is_killed_after_the_grace(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, grace=0.3) as fake_node:
        run = fake_node.run(f"{JOBS}:Stubborn", {"runs": runs.path})
        runs.hear()

        fake_node.tell(stop(run))

        ended = fake_node.expect(Ended, run)
        assert (ended.outcome, ended.exit) == ("Canceled", "killed by SIGKILL")


def test_a_job_that_blocks_its_loop_is_interrupted_as_one_without_a_loop_is(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, grace=30) as fake_node:
        run = fake_node.run(f"{JOBS}:BlockingLoop", {"runs": runs.path})
        runs.hear()

        fake_node.tell(stop(run))

        ended = fake_node.expect(Ended, run)
        assert (ended.outcome, ended.exit) == ("Canceled", "")
        assert '{"reason":"cancel"}' in [noted.state for noted in fake_node.all_of(Progressed, run)]


def test_a_task_that_a_job_leaves_running_is_ended_with_it(fake_node: FakeNode, tmp_path: Path) -> None:
    file = tmp_path / "said"

    assert fake_node.result(fake_node.run(f"{JOBS}:Leaving", {"file": str(file)})) == "left"

    assert file.read_text() == "the task was ended\n"


def test_a_task_that_does_not_end_is_ended_by_a_cancel_of_the_job(fifo: Callable[[str], Fifo], tmp_path: Path) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, grace=30) as fake_node:
        data = {"file": str(tmp_path / "said"), "stubborn": True, "runs": runs.path}
        run = fake_node.run(f"{JOBS}:Leaving", data)
        runs.hear()

        fake_node.tell(stop(run))

        ended = fake_node.expect(Ended, run)
        assert (ended.outcome, ended.exit) == ("Canceled", "")


def test_a_program_without_async_jobs_does_not_import_asyncio(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import sys\nimport taskqueue\n\nclass Plain(taskqueue.Job):\n    def start(self):\n"
        "        return 'asyncio' in sys.modules\n"
    )
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import taskqueue.daemon.worker.worker, plain; "
        "print(taskqueue.Scheduler(f'sqlite://{sys.argv[1]}/jobs.db').run_job(plain.Plain).result)"
    )

    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_async_jobs_run_in_the_callers_process(scheduler: Scheduler) -> None:
    adding = scheduler.add_job(Adding, {"a": 1, "b": 2})
    multiplying = scheduler.add_job(multiply, {"a": 6, "b": 7})

    scheduler.run_pending()

    assert adding.refresh().result["sum"] == 3
    assert (adding.snapshot.state, adding.progress) == ('{"kept":true}', 100)
    assert multiplying.refresh().result == 42
    assert customer.get() == "nobody"


def test_async_jobs_run_in_the_process_of_a_caller_with_a_loop(scheduler: Scheduler) -> None:
    async def handle() -> Any:
        return scheduler.run_job(Adding, {"a": 1, "b": 2}).result

    assert asyncio.run(handle())["sum"] == 3


def test_ctrl_c_in_an_async_job_reaches_the_caller(scheduler: Scheduler, tmp_path: Path) -> None:
    job = scheduler.add_job(Raising, "keyboard")

    with pytest.raises(KeyboardInterrupt):
        scheduler.run_pending()

    assert job.refresh().status is Status.WAITING


def test_a_loop_for_a_run_in_the_callers_process_leaves_nothing_open(scheduler: Scheduler, tmp_path: Path) -> None:
    data = {"file": str(tmp_path / "said")}
    scheduler.run_job(Leaving, data)
    before = os.listdir("/proc/self/fd")

    scheduler.run_job(Leaving, data)

    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_hooks_and_conditions_may_be_async(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "said"
    done = scheduler.add_job(Hooked, {"file": str(file)})
    scheduler.run_pending()
    assert done.refresh().status is Status.POSTPONED
    file.touch()
    failed = scheduler.add_job(Hooked, {"file": str(file), "fail": True})

    scheduler.run_pending()

    assert (done.refresh().status, failed.refresh().status) == (Status.DONE, Status.FAILED)
    assert sorted(file.read_text().splitlines()) == ["finalize", "finalize", "last failure as asked", "success"]


def test_an_async_loop_goes_on_behind_the_last_finished_item(scheduler: Scheduler) -> None:
    job = scheduler.add_job(Importing, retry=1)

    scheduler.run_pending()

    assert job.refresh().result == [3, 4]


@pytest.mark.parametrize(
    ("source", "rest"),
    [
        ("cursors", ["row 2", "row 3", "row 4"]),
        ("batches", [["row 4"]]),
        ("manual", ["row 0", "row 1", "row 2", "row 3", "row 4"]),
        ("items", [[2, "row 2"], [3, "row 3"], [4, "row 4"]]),
    ],
)
def test_a_loop_over_an_asynchronous_source_goes_on_behind_the_last_finished_item(
    scheduler: Scheduler, source: str, rest: list[Any]
) -> None:
    job = scheduler.add_job(Paging, source, retry=1)

    scheduler.run_pending()

    assert job.refresh().result == [None, rest]


def test_an_asynchronous_source_needs_async_for(scheduler: Scheduler) -> None:
    job = scheduler.run_job(Misusing)

    assert job.error is not None
    assert job.error.message == "each() over an asynchronous source: write async for"


def test_the_steps_of_a_job_may_be_async(scheduler: Scheduler) -> None:
    job = scheduler.add_job(Stepping)

    scheduler.run_pending()

    assert job.refresh().result == ["initialize", "iterate", "iterate", "complete"]


async def go_on(*, again: bool = False) -> None:
    """Begin another task when this one is canceled, and have that do the same with ``again``."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        left.add(asyncio.create_task(go_on(again=True) if again else asyncio.sleep(3600)))


async def exit_when_canceled() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        raise SystemExit(4)


async def begin(*tasks: Coroutine[Any, Any, None]) -> None:
    left.update(map(asyncio.create_task, tasks))
    await asyncio.sleep(0)


async def number_of_tasks() -> int:
    for _ in range(5):
        await asyncio.sleep(0)
    return len(asyncio.all_tasks())


left: set[asyncio.Task[None]] = set()


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    before = set(threading.enumerate())
    loop = EventLoop()
    yield loop
    loop.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)  # other tests fork
    for task in left:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it was to be left
        elif not task.cancelled():
            task.exception()
    left.clear()


def test_a_task_that_a_canceled_task_begins_does_not_run_in_the_next_job(loop: EventLoop) -> None:
    loop.run(begin(go_on()), CallerInterrupts())

    assert loop.run(number_of_tasks(), CallerInterrupts()) == 1


def test_tasks_that_begin_others_without_end_do_not_run_in_the_next_job(loop: EventLoop) -> None:
    loop.run(begin(go_on(again=True)), CallerInterrupts())

    assert loop.run(number_of_tasks(), CallerInterrupts()) == 1


async def go_on_in_place() -> None:
    """Take every cancel, and go on."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


def test_a_task_that_takes_every_cancel_holds_up_its_job_for_a_while_only(caplog: pytest.LogCaptureFixture) -> None:
    loop = EventLoop(left_for=0.01)
    loop.run(begin(go_on_in_place()), CallerInterrupts())

    assert loop.run(number_of_tasks(), CallerInterrupts()) == 1
    assert caplog.messages == [
        "canceling the tasks that a job left running: go_on_in_place",
        "closing an event loop: tasks left running by a job ignored cancellation: go_on_in_place",
    ]
    loop.close()
    left.pop()._log_destroy_pending = False  # type: ignore[attr-defined]  # it was to be left


def test_a_system_exit_of_a_task_that_is_left_ends_its_own_job_alone(loop: EventLoop) -> None:
    with pytest.raises(SystemExit):
        loop.run(begin(exit_when_canceled(), exit_when_canceled()), CallerInterrupts())

    assert loop.run(number_of_tasks(), CallerInterrupts()) == 1


def test_a_job_that_closes_the_loop_of_its_worker_leaves_the_next_one_another(loop: EventLoop) -> None:
    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop.run(running(), CallerInterrupts()).close()  # as a hook that is not async can

    assert loop.run(number_of_tasks(), CallerInterrupts()) == 1


def test_an_error_that_is_its_own_cause_ends_a_run_that_was_to_end(loop: EventLoop) -> None:
    interrupts = CallerInterrupts()
    interrupts.stop_reason = "cancel"

    async def raising() -> None:
        try:
            raise ValueError("odd")
        except ValueError as error:
            raise error from error

    with pytest.raises(ValueError, match="odd"):
        loop.run(raising(), interrupts)


async def change_the_loop() -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coroutine, **rest: asyncio.Task(coroutine, loop=loop, **rest))
    loop.set_exception_handler(lambda _loop, _context: None)
    loop.set_debug(True)


async def settings_of_the_loop() -> list[Any]:
    loop = asyncio.get_running_loop()
    return [loop.get_task_factory(), loop.get_exception_handler(), loop.get_debug()]


def test_what_a_job_changes_in_the_loop_is_set_back(loop: EventLoop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "taskqueue")
    before = loop.run(settings_of_the_loop(), CallerInterrupts())
    loop.run(change_the_loop(), CallerInterrupts())

    assert loop.run(settings_of_the_loop(), CallerInterrupts()) == before == [None, None, False]
    own = [record.message for record in caplog.records if record.name.startswith("taskqueue.")]
    assert own == [  # asyncio itself tells in its debug mode what takes a tenth of a second
        "restored what a job had changed in its event loop: task factory and exception handler and debug mode"
    ]


def test_tasks_that_a_job_leaves_running_are_named_in_the_log(
    loop: EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.run(begin(*[go_on() for _ in range(5)]), CallerInterrupts())

    assert caplog.messages == ["canceling the tasks that a job left running: go_on, go_on, go_on and 2 more"]


@pytest.mark.parametrize("how", ["busy", "shut down"])
def test_each_job_finds_threads_whatever_one_before_did_with_them(loop: EventLoop, how: str) -> None:
    is_over = threading.Event()

    async def spends() -> None:
        if how == "shut down":
            await asyncio.get_running_loop().shutdown_default_executor()
        for _ in range(20 if how == "busy" else 0):
            asyncio.get_running_loop().run_in_executor(None, is_over.wait)

    async def has_short_calls() -> None:
        await asyncio.gather(*(asyncio.to_thread(os.getpid) for _ in range(200)))

    async def uses() -> int:
        return await asyncio.wait_for(asyncio.to_thread(os.getpid), 10)

    try:
        loop.run(has_short_calls(), CallerInterrupts())
        for _ in range(2):
            loop.run(spends(), CallerInterrupts())
            assert loop.run(uses(), CallerInterrupts()) == os.getpid()
    finally:
        is_over.set()


def test_an_executor_that_a_job_has_set_and_closed_is_none_of_the_next_job(loop: EventLoop) -> None:
    async def set_and_close() -> None:
        with ThreadPoolExecutor(1) as executor:
            asyncio.get_running_loop().set_default_executor(executor)

    async def in_a_thread() -> int:
        return await asyncio.to_thread(os.getpid)

    loop.run(set_and_close(), CallerInterrupts())

    assert loop.run(in_a_thread(), CallerInterrupts()) == os.getpid()


def test_a_handler_of_sigterm_that_a_job_adds_to_the_loop_is_not_there_for_the_next_job(fake_node: FakeNode) -> None:
    fake_node.result(fake_node.run(f"{JOBS}:handle_sigterm"))
    run = fake_node.run(f"{JOBS}:Canceled")
    fake_node.expect(Progressed, run)
    fake_node.tell(stop(run))

    ended = fake_node.expect(Ended, run)
    assert (ended.outcome, ended.exit) == ("Canceled", "")
