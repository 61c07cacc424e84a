"""A worker that runs many jobs of a class at once: each run has its own limits, and an end of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskqueue.daemon.manager.manager import LONG_RUN
from taskqueue.daemon.protocol.messages import (
    SIGNAL_IS_OURS_FOR,
    Ended,
    EndKind,
    Logged,
    PoolStatus,
    Progressed,
    Recycle,
    RunsHandedBack,
    Shutdown,
    Started,
    Stop,
    WorkerChanged,
)
from taskqueue.daemon.protocol.shared_memory import StartLog, WorkerPage
from taskqueue.daemon.settings import PoolMode
from taskqueue.daemon.worker.concurrent_run import ConcurrentRun, SlotMemory
from taskqueue.execution.run import Run
from taskqueue.model.record import Status
from tests.daemon.fake_node import FakeNode, Fifo, becomes_true, fifos
from tests.nodes import eventually, given_time

JOBS = "tests.daemon.concurrent_jobs"


@pytest.fixture
def fake_node() -> Iterator[FakeNode]:
    with FakeNode() as fake_node:
        yield fake_node


@pytest.fixture
def impatient() -> Iterator[FakeNode]:
    """Yield a fake_node that soon kills a worker that does not end a run."""
    with FakeNode(grace=0.5) as fake_node:
        yield fake_node


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


def logging_node(folder: Path, **given: Any) -> FakeNode:
    """Return a fake_node whose manager and workers write the file ``log`` in the folder."""
    handler = "import logging\nlogging.getLogger('taskqueue').addHandler(logging.FileHandler('log'))\n"
    (folder / "office_watch.py").write_text(handler)
    return FakeNode(chdir=folder, preload=["office_watch"], **given)


def act(
    fake_node: FakeNode, do: str, data: object = None, job: str = "Act", concurrency: int = 4, **given: object
) -> Run:
    """Have a job act as a class of the jobs of these tests, and return its claim."""
    return fake_node.run(f"{JOBS}:{job}", [do, data], concurrency=concurrency, **given)


def started(fake_node: FakeNode, do: str, data: object = None, **given: Any) -> Run:
    """Have a job act so, and return its claim when it says that it does."""
    run = act(fake_node, do, data, **given)
    fake_node.expect(Progressed, run)
    return run


def pids(fake_node: FakeNode) -> set[int]:
    """Return the processes whose runs were heard: a run that ends at once is only heard to end."""
    return {message.pid for message in fake_node.heard if isinstance(message, (Started, Ended)) and message.pid}


def stop(fake_node: FakeNode, run: Run) -> Ended:
    """Cancel a run, and return its end."""
    fake_node.tell(Stop(id=run.id, claims=run.claims, reason="cancel"))
    return fake_node.expect(Ended, run)


def test_jobs_of_a_class_run_at_once_in_one_worker(fake_node: FakeNode) -> None:
    runs = [act(fake_node, "Meet", 3, concurrency=3) for _ in range(3)]

    assert len({fake_node.result(run) for run in runs}) == 1


def test_their_worker_is_none_of_the_pool_and_none_of_forced_jobs(
    fake_node: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    gate = fifo("gate")
    run = started(fake_node, "WaitFor", gate.path)

    fake_node.expect(PoolStatus, busy=0, forced=0, concurrent=1)
    gate.tell()
    fake_node.result(run)


def test_a_cancel_ends_one_of_them_and_tells_it_the_reason(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    gate = fifo("gate")
    other, canceled = started(fake_node, "WaitFor", gate.path), started(fake_node, "Wait")

    assert stop(fake_node, canceled).outcome == "Canceled"
    assert [message.state for message in fake_node.all_of(Progressed, canceled)][-1] == '"cancel"'
    gate.tell()
    assert {fake_node.result(other)} == pids(fake_node)


def test_each_has_a_timeout_of_its_own(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    gate = fifo("gate")
    other = started(fake_node, "WaitFor", gate.path)

    def exceed(seconds: float) -> Ended | None:
        late = act(fake_node, "Wait", timeout=seconds)
        ended = fake_node.expect(Ended, late)
        assert (ended.outcome, ended.exit) == ("TimedOut", "")
        assert f"its timeout of {seconds:g} s" in ended.fields["failure"]["message"]
        return ended if fake_node.all_of(Progressed, late) else None

    ended = given_time(exceed, 0.05)
    assert "concurrent_run.py" not in ended.fields["failure"]["traceback"]
    gate.tell()
    assert {fake_node.result(other)} == pids(fake_node)


def test_a_crash_counts_for_all_and_says_so(fake_node: FakeNode) -> None:
    waiting = [started(fake_node, "Wait"), started(fake_node, "Wait")]
    dying = act(fake_node, "Die")

    for run in (*waiting, dying):
        ended = fake_node.expect(Ended, run)
        assert ended.outcome == "Crashed"
        assert "3 jobs ran in it at once, and the crash counts for each" in ended.fields["failure"]["message"]
    assert "last progress 42 % (dies)" in fake_node.expect(Ended, dying).fields["failure"]["message"]
    dead = pids(fake_node)
    assert fake_node.result(act(fake_node, "Return")) not in dead


def test_one_that_does_not_let_go_is_named_to_the_others(impatient: FakeNode) -> None:
    waiting, holding = started(impatient, "Wait"), started(impatient, "Hold")

    assert stop(impatient, holding).outcome == "Canceled"
    crashed = impatient.expect(Ended, waiting)
    assert crashed.outcome == "Crashed"
    assert f"job {holding.id} was asked to end (cancel)" in crashed.fields["failure"]["message"]


def test_one_that_blocks_the_loop_is_interrupted_and_others_go_on(fifo: Callable[[str], Fifo]) -> None:
    gate = fifo("gate")
    with FakeNode(grace=20) as fake_node:
        other, blocking = started(fake_node, "WaitFor", gate.path), started(fake_node, "Block")

        ended = stop(fake_node, blocking)
        assert (ended.outcome, ended.exit) == ("Canceled", "")
        gate.tell()
        assert {fake_node.result(other)} == pids(fake_node)


def test_a_run_is_not_handed_back_when_its_worker_was_slow_to_start(fake_node: FakeNode) -> None:
    run = act(fake_node, "Return")
    fake_node.hear(lambda _: sum(isinstance(message, WorkerChanged) for message in fake_node.heard) == 2)
    os.kill(fake_node.manager.pid, signal.SIGSTOP)  # sees at once that the worker is ready and the run is old
    time.sleep(2 * LONG_RUN)
    os.kill(fake_node.manager.pid, signal.SIGCONT)

    assert fake_node.result(run)
    assert not [message for message in fake_node.heard if isinstance(message, RunsHandedBack)]


@pytest.mark.parametrize("by", ["cancel", "stop of the node"])
def test_a_worker_that_begins_nothing_is_killed_for_a_run_that_is_to_end(impatient: FakeNode, by: str) -> None:
    impatient.result(act(impatient, "Return"))
    [stuck] = pids(impatient)
    os.kill(stuck, signal.SIGSTOP)
    given = act(impatient, "Return")
    impatient.result(impatient.run("tests.daemon.jobs:Echo", "behind it"))  # so the manager has given both

    if by == "cancel":
        impatient.tell(Stop(id=given.id, claims=given.claims, reason="cancel"))
        impatient.expect(RunsHandedBack)
        assert impatient.result(act(impatient, "Return")) != stuck
    else:
        assert impatient.drain().code == 0
        impatient.expect(RunsHandedBack)


def test_a_worker_in_whose_place_a_run_was_read_leaves_and_the_run_comes_back(
    fake_node: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    robbed = fake_node.result(act(fake_node, "Rob", (read := fifo("read")).path))
    os.kill(robbed, signal.SIGSTOP)
    run = act(fake_node, "Meet", 1)
    read.hear()
    os.kill(robbed, signal.SIGCONT)

    fake_node.expect(RunsHandedBack, run)
    fake_node.expect(WorkerChanged, pid=robbed, exit="exited with status 70")


def test_an_exit_in_a_task_ends_its_run_alone(fake_node: FakeNode) -> None:
    waiting, leaving = started(fake_node, "Wait"), act(fake_node, "Exit")

    ended = fake_node.expect(Ended, leaving)
    assert (ended.outcome, ended.fields["failure"]["type"]) == ("Failed", "SystemExit")
    assert stop(fake_node, waiting).exit == ""


def test_an_error_whose_text_exits_ends_its_run_alone(fake_node: FakeNode) -> None:
    waiting, failing = started(fake_node, "Wait"), act(fake_node, "Unspeakable")

    ended = fake_node.expect(Ended, failing)
    assert (ended.outcome, ended.fields["failure"]["message"]) == ("Failed", "(its __str__ raised SystemExit)")
    assert stop(fake_node, waiting).exit == ""


def test_a_job_that_cancels_all_tasks_loses_no_run(fake_node: FakeNode, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    canceling = act(fake_node, "CancelAll", str(gate), job="Hooked")
    fake_node.expect(Started, canceling)
    runs = [act(fake_node, "Return", str(tmp_path / "hooks"), job="Hooked") for _ in range(2)]
    runs.append(act(fake_node, "Return", str(tmp_path / "hooks"), job="Hooked", not_before=time.monotonic() + 0.01))

    for run in runs:
        assert fake_node.expect(Ended, run).outcome in ("Done", "Interrupted")
    gate.touch()
    for run in (*runs, canceling):
        fake_node.confirm(fake_node.expect(Ended, run), int(Status.DONE))
    after = [act(fake_node, "Return", str(tmp_path / "hooks"), job="Hooked") for _ in range(4)]  # in all its slots
    assert {fake_node.expect(Ended, run).pid for run in after} == pids(fake_node)
    assert len(pids(fake_node)) == 1


def test_a_run_that_another_one_cancels_is_interrupted_and_says_by_which(fake_node: FakeNode, tmp_path: Path) -> None:
    waiting = started(fake_node, "Wait", job="Hooked")
    canceling = act(fake_node, "CancelAll", str(tmp_path / "gate"), job="Hooked")

    ended = fake_node.expect(Ended, waiting)
    (tmp_path / "gate").touch()
    failure = ended.fields["failure"]
    assert (ended.outcome, failure["type"]) == ("Interrupted", "taskqueue.Interrupted")
    assert failure["message"] == (
        f"job {canceling.id} ({JOBS}:Hooked), which ran in the same event loop, canceled the task of this one: "
        "asyncio.all_tasks() has the tasks of all runs, so a job must cancel only those that it has started"
    )


def test_a_cancel_that_a_job_asks_of_itself_does_not_reach_its_hooks(fake_node: FakeNode, tmp_path: Path) -> None:
    run = act(fake_node, "CancelItself", str(tmp_path / "hooks"), job="Hooked", concurrency=2)
    fake_node.confirm(fake_node.expect(Ended, run, outcome="Done"), int(Status.DONE))

    assert becomes_true((tmp_path / "hooks").exists)


def test_each_has_its_own_context_also_in_threads(fake_node: FakeNode) -> None:
    runs = [act(fake_node, "InContext", name) for name in ("ann", "bo")]

    assert [fake_node.result(run) for run in runs] == [["ann", "ann"], ["bo", "bo"]]
    for run, name in zip(runs, ("ann", "bo"), strict=True):
        *_, logged = [message for message in fake_node.heard if isinstance(message, Logged) and message.id == run.id]
        assert f"{name} says so" in logged.lines
    assert [fake_node.expect(Progressed, run).message for run in runs] == ["of ann", "of bo"]


def test_progress_and_positions_of_each_survive_the_worker(fake_node: FakeNode) -> None:
    runs = [act(fake_node, "Count", 3), act(fake_node, "Count", 7)]
    for run, at in zip(runs, (3, 7), strict=True):
        fake_node.expect(Progressed, run, progress=at)
    [pid] = pids(fake_node)
    os.kill(pid, signal.SIGKILL)

    for run, at in zip(runs, (3, 7), strict=True):
        assert f"last progress {at} % (at {at})" in fake_node.expect(Ended, run).fields["failure"]["message"]
        positions = [message.position for message in fake_node.all_of(Progressed, run) if message.position is not None]
        assert positions[-1] == f'{{"":{at}}}'


def test_what_a_job_leaves_in_the_loop_does_not_reach_the_next_one(fake_node: FakeNode) -> None:
    waiting, leaving = started(fake_node, "Wait"), act(fake_node, "Leave")
    fake_node.expect(Ended, leaving, outcome="Done")

    assert fake_node.result(act(fake_node, "Look")) == [["canceled"], True, True, False, True]
    assert stop(fake_node, waiting).outcome == "Canceled"


def test_a_worker_that_always_has_a_job_is_replaced_once_one_changed_what_they_share(tmp_path: Path) -> None:
    shared = ["working directory", "umask", "blocked signals", "handler of SIGUSR1", "RLIMIT_CORE"]
    with logging_node(tmp_path) as fake_node:
        waiting = started(fake_node, "Wait")
        changed = fake_node.expect(Ended, act(fake_node, "Change", shared)).pid

        eventually(lambda: fake_node.result(act(fake_node, "Return")) != changed)

        log = (tmp_path / "log").read_text()
        assert f"a worker is replaced after {JOBS}:Act: pid {changed}: a job changed its" in log
        assert all(what in log for what in shared)
        assert waiting.id in log
        assert stop(fake_node, waiting).outcome == "Canceled"
        fake_node.expect(WorkerChanged, pid=changed, kind=EndKind.OTHER)


def test_a_task_that_takes_every_cancel_holds_up_its_run_for_a_while_only(fake_node: FakeNode) -> None:
    one = ConcurrentRun(act(fake_node, "Return"), SlotMemory(1, WorkerPage(), StartLog(1).acquire(1)[0]))

    async def go_on() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def run() -> str:
        task = asyncio.create_task(go_on())
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is to be left
        one.add_task(task)
        await asyncio.sleep(0)
        return await one.end_tasks(within=0.01)

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(run()).endswith("go_on")
    assert not one.tasks
    loop.close()


def test_hooks_of_one_run_while_others_go_on(fake_node: FakeNode, tmp_path: Path) -> None:
    waiting = started(fake_node, "Wait", job="Hooked", concurrency=2)
    hooked = act(fake_node, "Return", str(tmp_path / "hooks"), job="Hooked", concurrency=2)
    ended = fake_node.expect(Ended, hooked)
    assert ended.confirm
    fake_node.confirm(ended, int(Status.DONE))

    after = started(fake_node, "Wait", job="Hooked", concurrency=2)  # in the slot of which the hooks have ended
    assert (tmp_path / "hooks").read_text().split() == [hooked.id]
    assert {stop(fake_node, run).pid for run in (after, waiting)} == {ended.pid}


def test_runs_without_a_free_slot_are_handed_back(fake_node: FakeNode) -> None:
    running = started(fake_node, "Wait", concurrency=2), started(fake_node, "Wait", concurrency=2)
    surplus = act(fake_node, "Wait", concurrency=2)

    fake_node.expect(RunsHandedBack, surplus)
    assert [stop(fake_node, run).outcome for run in running] == ["Canceled", "Canceled"]


def test_a_worker_that_has_done_its_jobs_ends_them_while_another_takes_over(fifo: Callable[[str], Fifo]) -> None:
    gate = fifo("gate")
    with FakeNode(max_jobs_per_child=2) as fake_node:
        first = started(fake_node, "WaitFor", gate.path)
        fake_node.result(act(fake_node, "Return"))
        third = fake_node.result(act(fake_node, "Return"))

        gate.tell()
        assert fake_node.result(first) != third
        fake_node.expect(WorkerChanged, pid=fake_node.result(first), kind=EndKind.MAX_JOBS)


def test_a_reload_lets_the_runs_end_while_another_worker_takes_over(
    fake_node: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    gate = fifo("gate")
    old = started(fake_node, "WaitFor", gate.path)
    fake_node.tell(Recycle())

    new = fake_node.result(act(fake_node, "Return"))
    gate.tell()
    assert fake_node.result(old) != new


def test_a_patient_shutdown_waits_for_all(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    gates = [fifo("a"), fifo("b")]
    runs = [started(fake_node, "WaitFor", gate.path) for gate in gates]
    fake_node.tell(Shutdown(mode="patient"))

    for run, gate in zip(runs, gates, strict=True):
        gate.tell()
        assert fake_node.result(run)
    assert fake_node.leave().code == 0


def test_a_quick_shutdown_interrupts_all(fake_node: FakeNode) -> None:
    runs = [started(fake_node, "Wait") for _ in range(3)]
    fake_node.drain("quick")

    assert {fake_node.expect(Ended, run).outcome for run in runs} == {"Interrupted"}
    assert {message.state for message in fake_node.heard if isinstance(message, Progressed)} >= {'"shutdown"'}


@pytest.mark.parametrize(
    ("name", "outcome", "error"),
    [("fail", "GivenUp", "taskqueue.Fail"), ("snooze", "Snoozed", ""), ("refused", "Failed", "ConnectionRefusedError")],
)
def test_an_error_in_a_task_group_counts_as_one_on_its_own(
    fake_node: FakeNode, name: str, outcome: str, error: str
) -> None:
    waiting, ending = started(fake_node, "Wait"), act(fake_node, "Group", name)

    ended = fake_node.expect(Ended, ending)
    assert (ended.outcome, ended.fields.get("failure", {}).get("type", "")) == (outcome, error)
    assert stop(fake_node, waiting).exit == ""


def test_an_interruption_in_a_task_group_is_one() -> None:
    with FakeNode(grace=20) as fake_node:
        run = started(fake_node, "Group")
        fake_node.drain("quick")

        assert fake_node.expect(Ended, run).outcome == "Interrupted"


def test_those_that_do_not_leave_are_killed_after_the_grace(impatient: FakeNode) -> None:
    runs = [started(impatient, "Hold"), started(impatient, "Wait")]
    impatient.drain("quick")

    assert [impatient.expect(Ended, run).outcome for run in runs] == ["Interrupted", "Interrupted"]


def test_the_kill_of_a_worker_that_does_not_leave_is_one_line(tmp_path: Path) -> None:
    with logging_node(tmp_path, grace=0.5) as fake_node:
        runs = [started(fake_node, "Hold") for _ in range(3)]
        fake_node.drain("quick")

        assert {fake_node.expect(Ended, run).outcome for run in runs} == {"Interrupted"}
    assert (tmp_path / "log").read_text().count("killing a worker") == 1


def test_a_signal_of_another_process_interrupts_all_and_replaces_the_worker(fake_node: FakeNode) -> None:
    runs = [started(fake_node, "Wait") for _ in range(2)]
    [pid] = pids(fake_node)
    os.kill(pid, signal.SIGTERM)

    for run in runs:
        assert fake_node.expect(Ended, run).outcome == "Interrupted"
    fake_node.expect(WorkerChanged, pid=pid, kind=EndKind.OTHER, reason="another process sent it SIGTERM")


def test_a_signal_that_is_handled_late_because_the_host_stood_still_ends_no_other_run(
    fake_node: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    gate, end = fifo("gate"), fifo("end")
    other, canceled = started(fake_node, "WaitFor", gate.path), started(fake_node, "TellEnd", end.path)
    [worker] = pids(fake_node)
    os.kill(worker, signal.SIGSTOP)
    assert becomes_true(lambda: is_stopped(worker))  # before that it would take a SIGTERM, and the next one as well
    fake_node.tell(Stop(id=canceled.id, claims=canceled.claims, reason="cancel"))
    assert becomes_true(lambda: is_pending(signal.SIGTERM, worker))
    os.kill(fake_node.manager.pid, signal.SIGSTOP)
    time.sleep(SIGNAL_IS_OURS_FOR + 0.2)
    os.kill(worker, signal.SIGCONT)
    end.hear()
    os.kill(fake_node.manager.pid, signal.SIGCONT)

    assert fake_node.expect(Ended, canceled).outcome == "Canceled"
    gate.tell()
    assert fake_node.result(other) == worker


def is_stopped(pid: int) -> bool:
    """Return whether all threads of the process have stopped."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {*states} == {"T"}


def is_pending(signum: int, pid: int) -> bool:
    """Return whether the process has yet to get the signal."""
    masks = re.findall(r"^(?:Sig|Shd)Pnd:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(mask, 16) >> (signum - 1) & 1 for mask in masks)


def test_the_memory_limit_replaces_a_worker_once_its_runs_have_ended(fifo: Callable[[str], Fifo]) -> None:
    gate = fifo("gate")
    with FakeNode(max_memory=1) as fake_node:
        old = started(fake_node, "WaitFor", gate.path)
        first = fake_node.result(act(fake_node, "Return"))
        second = fake_node.result(act(fake_node, "Return"))

        gate.tell()
        assert fake_node.result(old) == first != second


@pytest.mark.parametrize("mode", [PoolMode.ONDEMAND, PoolMode.DYNAMIC])
def test_a_worker_without_jobs_is_retired(mode: PoolMode) -> None:
    with FakeNode(pm=mode, idle_timeout=0.05) as fake_node:
        pid = fake_node.result(act(fake_node, "Return"))

        fake_node.expect(WorkerChanged, pid=pid, kind=EndKind.IDLE)


def test_one_that_blocks_the_loop_is_reported_with_its_stack(tmp_path: Path) -> None:
    with logging_node(tmp_path) as fake_node:
        started(fake_node, "Wait")
        blocking = started(fake_node, "Block")
        words = f"a job has blocked its event loop for over 1 s: {JOBS}:Act {blocking.id}\n"
        reported = eventually(lambda: found if words in (found := (tmp_path / "log").read_text()) else "")

    assert "threading.Event().wait()" in reported.partition(words)[2]
