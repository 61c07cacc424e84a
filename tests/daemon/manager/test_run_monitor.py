"""What happens to a run in the moment between its ticket and its beginning, which no test can hold up from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import pytest

from taskqueue.daemon.manager.run_monitor import RunMonitor
from taskqueue.daemon.manager.runs import QueuedRun, ReportQueue, RunQueue
from taskqueue.daemon.manager.worker_handle import WorkerHandle
from taskqueue.daemon.manager.worker_output import WorkerOutput
from taskqueue.daemon.manager.workers import Workers
from taskqueue.daemon.protocol.channel import Channel, ChannelBroken, pair
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.messages import (
    Ended,
    Message,
    NeedsReplacement,
    Progressed,
    Ready,
    RunsHandedBack,
    Started,
)
from taskqueue.daemon.protocol.shared_memory import StartLog
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import Settings
from taskqueue.execution.run import Run
from tests.daemon.fake_node import JOBS, settings
from tests.nodes import eventually

KILLED = child_process.ChildExit(code=None, signal=signal.SIGKILL, peak_memory=0, user_time=0.0, system_time=0.0)


@dataclass
class StoppedWorker:
    """A worker that is stopped: the test takes permits and sends messages in its place."""

    monitor: RunMonitor
    reports: ReportQueue
    queue: RunQueue
    worker: WorkerHandle
    node: Channel
    loop: Loop

    def give(self, number: int, timeout: float | None = None) -> Run:
        """Give a run and take its permit as the worker would."""
        run = Run(
            id=f"{number:024x}",
            claims=number,
            job=f"{JOBS}:Empty",
            data="null",
            state=None,
            attempt=1,
            is_last=True,
            timeout=timeout,
            force_spawn=False,
        )
        self.worker.give(QueuedRun(run, encode(run), 0.0, number))
        self.worker.flush()
        assert self.worker.permits.take(number)
        return run

    def say(self, message: Message) -> None:
        self.monitor.on_message(self.worker, encode(message))

    def begin(self, run: Run) -> None:
        self.write(run)
        self.monitor.refresh(self.worker.slot)

    def write(self, run: Run) -> None:
        """Write down that the run begins, as the worker would; the manager has not looked yet."""
        self.worker.slot.start_entry.write((run.id, run.claims), 1.5)

    def started(self, run: Run) -> Started:
        return Started(id=run.id, claims=run.claims, pid=self.worker.pid, at=1.5)

    def end(self, run: Run) -> None:
        ended = Ended(
            id=run.id,
            claims=run.claims,
            outcome="Done",
            fields={"result": "null"},
            pid=self.worker.pid,
            started_at=1.5,
        )
        self.say(ended)

    def turn(self) -> None:
        """Have the loop make one turn."""
        self.loop.soon(self.loop.stop)
        self.loop.run()

    def heard(self) -> list[Message]:
        self.reports.send()
        return [decode(payload) for payload in self.node.receive()]


@pytest.fixture
def stopped(marked_as_manager: None) -> Iterator[StoppedWorker]:
    ours, node = pair()
    loop, reports = Loop(), ReportQueue(ours)
    queue = RunQueue(reports)
    output = WorkerOutput(Loop())
    workers = Workers(Settings(), url="sqlite:///dev/null/nowhere", keep=(), start_log=StartLog(), output=output)
    worker = workers.spawn(now=0.0, max_runs=0, is_forced=False)
    worker.child.signal(signal.SIGSTOP)
    worker.became_ready(0.0)
    monitor = RunMonitor(loop, settings(), reports, queue, on_first_run=lambda: None)
    yield StoppedWorker(monitor, reports, queue, worker, node, loop)
    worker.child.signal(signal.SIGKILL)
    worker.child.reap()
    workers.close(worker)
    loop.close()
    for channel in (ours, node):
        channel.close()


def test_a_worker_with_runs_is_not_replaced_while_the_one_before_it_ends_its_own(stopped: StoppedWorker) -> None:
    run, another = stopped.give(1), copy(stopped.worker)
    stopped.begin(run)
    asked = encode(NeedsReplacement(id="", job="shop:Poll", reason="a job changed its umask", is_patient=True))

    def is_replaced(worker: WorkerHandle) -> bool:
        stopped.monitor.on_message(worker, asked)
        return worker.to_be_replaced

    assert is_replaced(stopped.worker)
    assert not is_replaced(another)

    stopped.end(run)
    eventually(lambda: is_replaced(another))  # after a pause


def test_a_run_that_is_just_beginning_is_canceled_when_it_has_begun(stopped: StoppedWorker) -> None:
    before, canceled = stopped.give(1), stopped.give(2)
    stopped.begin(before)

    stopped.monitor.requeue(stopped.worker)
    stopped.monitor.stop_run(stopped.worker.slot, (canceled.id, canceled.claims), "cancel")
    assert stopped.worker.slot.escalation is None  # the run before it is on record still, and not meant
    stopped.end(before)
    stopped.begin(canceled)

    assert stopped.worker.slot.escalation is not None
    assert stopped.worker.slot.page.stop_reason_of(2) == "cancel"
    stopped.end(canceled)
    outcomes = [message.outcome for message in stopped.heard() if isinstance(message, Ended)]
    assert outcomes == ["Done", "Canceled"]


def test_a_run_that_is_just_beginning_is_ended_by_a_stop_when_it_has_begun(stopped: StoppedWorker) -> None:
    run = stopped.give(1)
    stopped.monitor.end_run(stopped.worker.slot, "shutdown", 20.0)
    assert stopped.worker.slot.escalation is None

    stopped.begin(run)

    assert stopped.worker.slot.page.stop_reason_of(1) == "shutdown"
    assert stopped.worker.slot.escalation is not None


def test_a_run_that_was_just_beginning_comes_back_when_its_worker_dies(stopped: StoppedWorker) -> None:
    run = stopped.give(1)
    stopped.worker.child.signal(signal.SIGKILL)

    stopped.monitor.report_death(stopped.worker, KILLED)

    assert stopped.heard() == [RunsHandedBack(runs=[[run.id, run.claims]])]


def test_of_a_short_run_the_end_is_all_that_is_told(stopped: StoppedWorker) -> None:
    run = stopped.give(1)
    stopped.write(run)
    stopped.end(run)

    [ended] = stopped.heard()
    assert isinstance(ended, Ended)
    assert stopped.worker.is_idle
    assert stopped.worker.runs_begun == 1


def test_a_run_that_lasts_is_found_in_the_ledger(stopped: StoppedWorker) -> None:
    run = stopped.give(1)
    stopped.monitor.refresh(stopped.worker.slot)
    assert stopped.worker.is_about_to_start  # nothing has begun yet
    stopped.write(run)

    stopped.monitor.refresh(stopped.worker.slot)
    stopped.monitor.refresh(stopped.worker.slot)

    assert not stopped.worker.is_about_to_start
    assert stopped.heard() == [stopped.started(run)]


def test_a_run_whose_end_has_not_been_heard_yet_is_not_taken_for_the_one_after_it(stopped: StoppedWorker) -> None:
    before, run = stopped.give(1), stopped.give(2)
    stopped.write(before)
    stopped.write(run)

    stopped.monitor.refresh(stopped.worker.slot)
    assert stopped.worker.slot.current is None

    stopped.end(before)
    stopped.monitor.refresh(stopped.worker.slot)
    assert [type(message) for message in stopped.heard()] == [Ended, Started]


def test_a_run_is_told_of_before_its_news(stopped: StoppedWorker) -> None:
    run = stopped.give(1)
    stopped.write(run)
    noted = Progressed(id=run.id, claims=run.claims, progress=5.0, at=2.0)
    stopped.say(noted)

    assert stopped.heard() == [stopped.started(run), noted]


def test_a_run_that_nobody_heard_of_has_crashed_when_its_worker_dies(stopped: StoppedWorker) -> None:
    run = stopped.give(1)
    stopped.write(run)
    stopped.worker.child.signal(signal.SIGKILL)

    stopped.monitor.report_death(stopped.worker, KILLED)

    [ended] = stopped.heard()
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.started_at) == ("Crashed", 1.5)


@pytest.mark.parametrize("reason", ["cancel", "shutdown"])
def test_a_run_that_nobody_heard_of_is_ended_at_once(stopped: StoppedWorker, reason: str) -> None:
    run = stopped.give(1)
    stopped.write(run)

    if reason == "cancel":
        stopped.monitor.stop_run(stopped.worker.slot, (run.id, run.claims), reason)
    else:
        stopped.monitor.end_run(stopped.worker.slot, reason, 20.0)

    assert stopped.worker.slot.page.stop_reason_of(1) == reason
    assert stopped.worker.slot.escalation is not None


def test_a_time_limit_ends_a_run_that_says_it_is_done(stopped: StoppedWorker) -> None:
    run = stopped.give(1)
    stopped.begin(run)
    stopped.monitor.stop_run(stopped.worker.slot, (run.id, run.claims), "timeout")

    stopped.end(run)

    [ended] = [message for message in stopped.heard() if isinstance(message, Ended)]
    assert ended.outcome == "TimedOut"
    assert ended.fields["failure"]["type"] == "taskqueue.JobTimeout"


def test_a_run_that_takes_too_long_is_logged_with_its_fields(
    stopped: StoppedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    stopped.begin(stopped.give(1, timeout=0.0))
    stopped.turn()

    [line] = [record for record in caplog.records if "its timeout" in record.getMessage()]
    assert line.getMessage() == f"{JOBS}:Empty exceeded its timeout of 0 s; stopping it"
    assert (line.__dict__["job_id"], line.__dict__["attempt"]) == (f"{1:024x}", 1)


def test_a_worker_that_tells_of_a_run_before_its_turn_cannot_be_understood(stopped: StoppedWorker) -> None:
    stopped.give(1)
    second = stopped.give(2)

    with pytest.raises(ChannelBroken, match=r"when .* is next"):
        stopped.end(second)


def test_a_permit_that_a_job_has_read_is_missed(stopped: StoppedWorker) -> None:
    stopped.give(1)
    stopped.say(Ready())
    stopped.say(Ready(missed=7))  # taken back

    with pytest.raises(ChannelBroken, match="a permit to start a run"):
        stopped.say(Ready(missed=1))


def test_runs_behind_the_one_whose_end_was_not_heard_are_interrupted_not_crashed(stopped: StoppedWorker) -> None:
    suspect, others, waiting = stopped.give(1), stopped.give(2), stopped.give(3)
    stopped.write(others)

    stopped.worker.kill_reason = "junk"
    stopped.monitor.report_death(stopped.worker, KILLED)

    first, second, back = stopped.heard()
    assert isinstance(first, Ended)
    assert isinstance(second, Ended)
    assert (first.id, first.outcome) == (suspect.id, "Crashed")
    assert (second.id, second.outcome) == (others.id, "Interrupted")
    assert back == RunsHandedBack(runs=[[waiting.id, waiting.claims]])
