"""The stack of a run that was ended for its time limit: whatever it does, the place where it was is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.manager.stack_monitor import HELD_UP
from taskqueue.daemon.protocol.messages import Ended, Stop
from taskqueue.model.stack import KEPT_BYTES
from tests.daemon.foreman import Fifo, Foreman, fifos


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


def timed_out(job: str, fifo: Callable[[str], Fifo]) -> Ended:
    """Return the end of a job that has run into its timeout."""
    with Foreman(max_children=1) as foreman:
        ended = foreman.expect(Ended, foreman.run(job, {"runs": fifo("runs").path}, timeout=1.0))
    assert ended.outcome == "TimedOut"
    return ended


@pytest.mark.parametrize(("job", "line"), [("Patient", "signal.pause()"), ("Matching", "re.match(")])
def test_the_place_in_the_job_is_kept(fifo: Callable[[str], Fifo], job: str, line: str) -> None:
    first, *frames = timed_out(job, fifo).stack.split("\n")

    assert first == "Main thread (most recent call first):"
    assert line in source_of(frames[-1])


def source_of(frame: str) -> str:
    """Return the line of source that a frame names."""
    file, number = frame.strip().removeprefix('File "').split('", line ')
    return Path(file).read_text().splitlines()[int(number.split()[0]) - 1]


def test_of_c_code_that_holds_the_interpreter_the_line_that_called_it_is_kept(fifo: Callable[[str], Fifo]) -> None:
    ended = timed_out("InC", fifo)

    assert ended.exit == "killed by SIGKILL"
    _, frame, held_up = ended.stack.split("\n")
    assert source_of(frame).strip() == "lock(mutex)"
    assert held_up == HELD_UP


def test_of_a_job_that_goes_on_the_stack_at_the_last_request_is_kept(fifo: Callable[[str], Fifo]) -> None:
    ended = timed_out("Looping", fifo)

    assert "Looping.start" in ended.stack or " in start" in ended.stack
    assert ended.exit == "killed by SIGKILL"


def test_threads_of_the_job_are_shown(fifo: Callable[[str], Fifo]) -> None:
    stack = timed_out("Threaded", fifo).stack

    main, _, waits = stack.partition("\nThread waits (most recent call first):\n")
    assert "_wait" in waits
    assert "tests/daemon/jobs.py" in main


def test_tasks_of_the_job_are_shown_first_and_no_values(fifo: Callable[[str], Fifo]) -> None:
    stack = timed_out("Awaiting", fifo).stack

    inner = stack[stack.index("Task inner (most recent call first):\n") :].split("\n")
    assert "locks.py" in inner[1]
    assert source_of(inner[2]).strip() == "await asyncio.Event().wait()"
    assert stack.index("Task inner") < stack.index("Main thread")
    assert "of this value" not in stack
    assert "event loop watch" not in stack


def test_of_many_runs_in_one_worker_the_tasks_of_the_right_one_are_kept() -> None:
    with Foreman() as foreman:
        data = ["Wait", None]
        other = foreman.run("tests.daemon.concurrent_jobs:Act", data, concurrency=4)
        late = foreman.run("tests.daemon.concurrent_jobs:Act", data, concurrency=4, timeout=1.0)
        stack = foreman.expect(Ended, late).stack
        foreman.tell(Stop(id=other.id, claims=other.claims, reason="cancel"))
        foreman.expect(Ended, other)

    assert f"of job {late.id} (most recent call first):" in stack
    assert "Wait.start" in stack or " in start" in stack
    assert other.id not in stack


def test_a_run_that_is_canceled_in_time_keeps_none_and_a_killed_one_does(fifo: Callable[[str], Fifo]) -> None:
    with Foreman() as foreman:
        for job, is_killed in (("Patient", False), ("Looping", True)):
            runs = fifo(job)
            run = foreman.run(job, {"runs": runs.path})
            runs.hear()
            foreman.tell(Stop(id=run.id, claims=run.claims, reason="cancel"))
            ended = foreman.expect(Ended, run)

            assert (ended.outcome, bool(ended.stack)) == ("Canceled", is_killed)


def test_a_kept_stack_is_bounded(fifo: Callable[[str], Fifo]) -> None:
    stack = timed_out("Deep", fifo).stack

    assert 1000 < len(stack.encode()) <= KEPT_BYTES
    assert stack.endswith((" more lines", " earlier frames"))
