"""The stack of a run, asked for while it goes on, and kept when it is ended: whatever it does, it says where it is."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.manager.stack_monitor import HELD_UP, NOT_BEGUN
from taskqueue.daemon.protocol.messages import Ended, StackTaken, Started, Stop, TakeStack, changed
from taskqueue.daemon.protocol.shared_memory import WorkerPage
from taskqueue.daemon.protocol.stack_file import StackFile
from taskqueue.daemon.worker.interrupts import StopRequests
from taskqueue.daemon.worker.stack_dump import MOST_TASKS, StackDump
from taskqueue.execution.run import Run
from taskqueue.model.stack import KEPT_BYTES, MOST_BYTES
from tests.daemon.fake_node import FakeNode, Fifo, fifos

NUMBERS = map(str, itertools.count())

IN_C = rf"first\):\n.* in (InC\.)?start\n{re.escape(HELD_UP)}"
"""What C code writes of the job that holds the interpreter."""


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


@pytest.fixture
def fake_node() -> Iterator[FakeNode]:
    with FakeNode() as fake_node:
        yield fake_node


@pytest.fixture
def impatient() -> Iterator[FakeNode]:
    """Yield a fake_node that kills a worker that does not end a run; until then C code has time to write its stack."""
    with FakeNode(grace=2.0) as fake_node:
        yield fake_node


def begun(fake_node: FakeNode, job: str, fifo: Callable[[str], Fifo]) -> Run:
    """Return the run of a job that has said that it runs."""
    runs = fifo(f"runs {job}")
    run = fake_node.run(job, {"runs": runs.path})
    runs.hear()
    return run


def taken(fake_node: FakeNode, run: Run) -> StackTaken:
    """Return the answer of the manager to a request."""
    request = next(NUMBERS)
    fake_node.tell(TakeStack(id=run.id, claims=run.claims, request=request))
    return fake_node.expect(StackTaken, request=request)


def stack_with(fake_node: FakeNode, run: Run, wanted: str) -> str:
    """Ask again until the run is where it shall be: it has only said that it is about to go there.

    A worker that has no processor for a while does not answer, or C code answers in its place.
    """
    for _ in range(1000):
        answer = taken(fake_node, run)
        assert answer.why_not == "" or "answer" in answer.why_not, answer.why_not
        if re.search(wanted, answer.stack) and (HELD_UP in answer.stack) == (wanted == IN_C):
            return answer.stack
    raise AssertionError(f"no {wanted!r} in: {answer}")


def killed(fake_node: FakeNode, run: Run) -> Ended:
    """Cancel a run, and return its end."""
    fake_node.tell(Stop(id=run.id, claims=run.claims, reason="cancel"))
    return fake_node.expect(Ended, run)


def source_of(frame: str) -> str:
    """Return the line of source that a frame names."""
    file, number = frame.strip().removeprefix('File "').split('", line ')
    return Path(file).read_text().splitlines()[int(number.split()[0]) - 1].strip()


def test_a_run_says_where_it_is_and_goes_on(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    go, runs = fifo("go"), fifo("runs")
    run = fake_node.run("Blocking", {"runs": runs.path, "go": go.path})
    runs.hear()

    for _ in range(3):
        first, *frames = stack_with(fake_node, run, "jobs.py").split("\n")
        assert first == "Main thread (most recent call first):"
        assert "start" in frames[-1]
    go.tell()

    fake_node.result(run)
    assert fake_node.expect(Ended, run).stack == ""


def test_a_regular_expression_that_takes_for_ever_is_seen(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    stack = stack_with(fake_node, begun(fake_node, "Matching", fifo), "re")

    assert source_of(stack.split("\n")[-1]).startswith(("re.match(", "tell("))


def test_of_c_code_that_holds_the_interpreter_the_line_that_called_it_is_shown(
    impatient: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    run = begun(impatient, "InC", fifo)

    stack = stack_with(impatient, run, IN_C)
    _, frame, _ = stack.split("\n")
    assert source_of(frame) == "lock(mutex)"

    ended = killed(impatient, run)
    assert (ended.exit, ended.stack) == ("killed by SIGKILL", stack)


def test_threads_of_the_job_are_shown(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    stack = stack_with(fake_node, begun(fake_node, "Threaded", fifo), r"in (Event\.)?wait\b")

    main, _, waits = stack.partition("\nThread waits (most recent call first):\n")
    assert "_wait" in waits
    assert "tests/daemon/jobs.py" in main


def test_tasks_of_the_job_are_shown_first_and_no_values(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    stack = stack_with(fake_node, begun(fake_node, "Awaiting", fifo), r"Task inner .*\n.*locks\.py")

    inner = stack[stack.index("Task inner (most recent call first):\n") :].split("\n")
    assert source_of(inner[2]) == "await asyncio.Event().wait()"
    assert stack.index("Task inner") < stack.index("Main thread")
    assert "of this value" not in stack
    assert "event loop watch" not in stack


def test_of_many_runs_in_one_worker_the_tasks_of_the_right_one_are_shown_and_kept(fake_node: FakeNode) -> None:
    data = ["Wait", None]
    other = fake_node.run("tests.daemon.concurrent_jobs:Act", data, concurrency=4)
    late = fake_node.run("tests.daemon.concurrent_jobs:Act", data, concurrency=4)
    fake_node.expect(Started, late)
    stack = stack_with(fake_node, late, rf"of job {late.id} .*\n.*locks\.py")
    fake_node.tell(Stop(id=late.id, claims=late.claims, reason="timeout"))

    for shown in (stack, fake_node.expect(Ended, late).stack):
        assert f"of job {late.id} (most recent call first):" in shown
        assert other.id not in shown
    assert killed(fake_node, other).stack == ""


def test_a_run_that_is_canceled_in_time_keeps_none_and_a_killed_one_does(
    fake_node: FakeNode, impatient: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    for given_to, job, is_killed in ((fake_node, "Patient", False), (impatient, "Looping", True)):
        ended = killed(given_to, begun(given_to, job, fifo))

        assert (ended.outcome, "start" in ended.stack) == ("Canceled", is_killed)


@pytest.mark.parametrize("limit", ["timeout", "stall_timeout"])
def test_a_run_that_has_exceeded_a_limit_keeps_its_stack(
    fake_node: FakeNode, fifo: Callable[[str], Fifo], limit: str
) -> None:
    """It has nothing to do before the place at which it waits, so that the limit is not exceeded elsewhere."""
    _, ended = fake_node.exceed(fifo("runs"), "Patient", limit=limit)

    assert ended.outcome == ("TimedOut" if limit == "timeout" else "Stalled")
    assert "in Patient.start" in ended.stack or "in start" in ended.stack


def test_a_deep_stack_is_bounded(impatient: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    run = begun(impatient, "Deep", fifo)

    stack = stack_with(impatient, run, r"in (Event\.)?wait\b")
    assert stack.endswith(" earlier frames")
    assert len(stack.encode()) <= MOST_BYTES
    assert 1000 < len(killed(impatient, run).stack.encode()) <= KEPT_BYTES


def test_an_idle_manager_says_that_there_is_no_such_run(fake_node: FakeNode) -> None:
    assert taken(fake_node, changed(fake_node.run("Empty"), claims=99)).why_not == NOT_BEGUN


def test_the_stack_of_a_worker_that_dies_is_not_waited_for(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    run = begun(fake_node, "InC", fifo)

    fake_node.tell(TakeStack(id=run.id, claims=run.claims, request="late"))
    fake_node.tell(TakeStack(id=run.id, claims=run.claims, request="later"))
    for pid in fake_node.workers():
        os.kill(pid, signal.SIGKILL)

    answers = [fake_node.expect(StackTaken, request=request) for request in ("late", "later")]
    assert all(answer.stack or answer.why_not for answer in answers)
    assert fake_node.expect(Ended, run).outcome == "Crashed"


def test_of_very_many_tasks_the_first_hundred_are_shown() -> None:
    """A worker may have thousands of runs that are all to end, and is asked at each signal."""

    class NothingDue(StopRequests):
        def raise_due(self) -> None:
            raise AssertionError("nothing is due")

    async def answered() -> str:
        tasks = [asyncio.create_task(asyncio.sleep(3600)) for _ in range(MOST_TASKS + 50)]
        await asyncio.sleep(0)
        dump = StackDump(file, NothingDue(WorkerPage()).shield, lambda job: ((job, task) for task in tasks))
        dump.answer(inspect.currentframe())
        for task in tasks:
            task.cancel()
        return file.read_answer(1) or ""

    file = StackFile()
    file.request(1, "a" * 24)
    text = asyncio.run(answered())
    file.close()

    assert text.count(f" of job {'a' * 24} ") == MOST_TASKS
    assert "Main thread" in text
