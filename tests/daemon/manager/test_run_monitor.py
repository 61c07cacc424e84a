"""What happens to a run in the moment between its ticket and its beginning, which no test can hold up from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from taskqueue.daemon.manager.outbox import ReportOutbox
from taskqueue.daemon.manager.run_monitor import RunMonitor
from taskqueue.daemon.manager.run_queue import RunQueue
from taskqueue.daemon.manager.worker_handle import QueuedRun, WorkerHandle, Workers
from taskqueue.daemon.protocol.channel import Channel, ChannelBroken, pair
from taskqueue.daemon.protocol.messages import (
    Ended,
    Message,
    Progressed,
    Ready,
    Run,
    RunsHandedBack,
    Started,
    decode,
    encode,
)
from taskqueue.daemon.protocol.start_log import StartLog
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.loop import Loop
from tests.daemon.foreman import JOBS, settings

KILLED = child_process.ChildExit(code=None, signal=signal.SIGKILL, peak_memory=0, user_time=0.0, system_time=0.0)


@dataclass
class Scene:
    """A worker that is stopped; the test takes tickets and speaks in its place."""

    oversight: RunMonitor
    reports: ReportOutbox
    backlog: RunQueue
    member: WorkerHandle
    node: Channel

    def give(self, number: int) -> Run:
        """Give a run and take its ticket as the worker would."""
        run = Run(
            id=f"{number:024x}",
            claims=number,
            job=f"{JOBS}:Empty",
            data="null",
            state=None,
            attempt=1,
            is_last=True,
            timeout=None,
            force_spawn=False,
        )
        self.member.give(QueuedRun(run, encode(run), 0.0, number))
        self.member.flush()
        assert self.member.tickets.take(number)
        return run

    def say(self, message: Message) -> None:
        self.oversight.on_message(self.member, encode(message))

    def begin(self, run: Run) -> None:
        self.write(run)
        self.oversight.look(self.member)

    def write(self, run: Run) -> None:
        """Write down that the run begins, as the worker would; the manager has not looked yet."""
        self.member.entry.write((run.id, run.claims), 1.5)

    def started(self, run: Run) -> Started:
        return Started(id=run.id, claims=run.claims, pid=self.member.pid, at=1.5)

    def end(self, run: Run) -> None:
        ended = Ended(
            id=run.id,
            claims=run.claims,
            outcome="Done",
            fields={"result": "null"},
            pid=self.member.pid,
            started_at=1.5,
        )
        self.say(ended)

    def heard(self) -> list[Message]:
        self.reports.send()
        return [decode(payload) for payload in self.node.receive()]


@pytest.fixture
def scene() -> Iterator[Scene]:
    ours, node = pair()
    loop, reports = Loop(), ReportOutbox(ours)
    backlog = RunQueue(reports)
    crew = Workers(url="sqlite:///nowhere", bootstrap=None, allow=(), keep=(), ledger=StartLog())
    member = crew.hire(now=0.0, runs_at_most=0, bound=False)
    member.child.signal(signal.SIGSTOP)
    member.is_ready(0.0)
    oversight = RunMonitor(loop, settings(), reports, backlog, on_first_run=lambda: None)
    yield Scene(oversight, reports, backlog, member, node)
    member.child.signal(signal.SIGKILL)
    member.child.reap()
    crew.dismiss(member)
    loop.close()
    for channel in (ours, node):
        channel.close()


def test_a_run_that_is_just_beginning_is_canceled_when_it_has_begun(scene: Scene) -> None:
    before, canceled = scene.give(1), scene.give(2)
    scene.begin(before)

    scene.oversight.recall(scene.member)
    scene.oversight.stop(scene.member, (canceled.id, canceled.claims), "cancel")
    assert scene.member.ladder is None  # the run before it is on record still, and not meant
    scene.end(before)
    scene.begin(canceled)

    assert scene.member.ladder is not None
    assert scene.member.slate.reason_for(2) == "cancel"
    scene.end(canceled)
    outcomes = [message.outcome for message in scene.heard() if isinstance(message, Ended)]
    assert outcomes == ["Done", "Canceled"]


def test_a_run_that_is_just_beginning_is_ended_by_a_stop_when_it_has_begun(scene: Scene) -> None:
    run = scene.give(1)
    scene.oversight.end(scene.member, "shutdown", 20.0)
    assert scene.member.ladder is None

    scene.begin(run)

    assert scene.member.slate.reason_for(1) == "shutdown"
    assert scene.member.ladder is not None


def test_a_run_that_was_just_beginning_comes_back_when_its_worker_dies(scene: Scene) -> None:
    run = scene.give(1)
    scene.member.child.signal(signal.SIGKILL)

    scene.oversight.bury(scene.member, KILLED)

    assert scene.heard() == [RunsHandedBack(runs=[[run.id, run.claims]])]


def test_of_a_short_run_the_end_is_all_that_is_told(scene: Scene) -> None:
    run = scene.give(1)
    scene.write(run)
    scene.end(run)

    [ended] = scene.heard()
    assert isinstance(ended, Ended)
    assert scene.member.is_idle
    assert scene.member.begun == 1


def test_a_run_that_lasts_is_found_in_the_ledger(scene: Scene) -> None:
    run = scene.give(1)
    scene.oversight.look(scene.member)
    assert scene.member.is_given  # nothing has begun yet
    scene.write(run)

    scene.oversight.look(scene.member)
    scene.oversight.look(scene.member)

    assert not scene.member.is_given
    assert scene.heard() == [scene.started(run)]


def test_a_run_whose_end_has_not_been_heard_yet_is_not_taken_for_the_one_after_it(scene: Scene) -> None:
    before, run = scene.give(1), scene.give(2)
    scene.write(before)
    scene.write(run)

    scene.oversight.look(scene.member)
    assert scene.member.current is None

    scene.end(before)
    scene.oversight.look(scene.member)
    assert [type(message) for message in scene.heard()] == [Ended, Started]


def test_a_run_is_told_of_before_its_news(scene: Scene) -> None:
    run = scene.give(1)
    scene.write(run)
    noted = Progressed(id=run.id, claims=run.claims, progress=5.0, message="", state=None, at=2.0)
    scene.say(noted)

    assert scene.heard() == [scene.started(run), noted]


def test_a_run_that_nobody_heard_of_has_crashed_when_its_worker_dies(scene: Scene) -> None:
    run = scene.give(1)
    scene.write(run)
    scene.member.child.signal(signal.SIGKILL)

    scene.oversight.bury(scene.member, KILLED)

    [ended] = scene.heard()
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.started_at) == ("Crashed", 1.5)


@pytest.mark.parametrize("reason", ["cancel", "shutdown"])
def test_a_run_that_nobody_heard_of_is_ended_at_once(scene: Scene, reason: str) -> None:
    run = scene.give(1)
    scene.write(run)

    if reason == "cancel":
        scene.oversight.stop(scene.member, (run.id, run.claims), reason)
    else:
        scene.oversight.end(scene.member, reason, 20.0)

    assert scene.member.slate.reason_for(1) == reason
    assert scene.member.ladder is not None


def test_a_time_limit_ends_a_run_that_says_it_is_done(scene: Scene) -> None:
    run = scene.give(1)
    scene.begin(run)
    scene.oversight.stop(scene.member, (run.id, run.claims), "timeout")

    scene.end(run)

    [ended] = [message for message in scene.heard() if isinstance(message, Ended)]
    assert ended.outcome == "TimedOut"
    assert ended.fields["failure"]["type"] == "taskqueue.JobTimeout"


def test_a_worker_that_tells_of_a_run_before_its_turn_cannot_be_understood(scene: Scene) -> None:
    scene.give(1)
    second = scene.give(2)

    with pytest.raises(ChannelBroken, match="when it is the turn of"):
        scene.end(second)


def test_a_permit_that_a_job_has_read_is_missed(scene: Scene) -> None:
    scene.give(1)
    scene.say(Ready())
    scene.say(Ready(missed=7))  # taken back

    with pytest.raises(ChannelBroken, match="a permit to begin a run"):
        scene.say(Ready(missed=1))


def test_runs_behind_the_one_whose_end_was_not_heard_are_interrupted_not_crashed(scene: Scene) -> None:
    culprit, others, waiting = scene.give(1), scene.give(2), scene.give(3)
    scene.write(others)

    scene.member.fault = "junk"
    scene.oversight.bury(scene.member, KILLED)

    first, second, back = scene.heard()
    assert isinstance(first, Ended)
    assert isinstance(second, Ended)
    assert (first.id, first.outcome) == (culprit.id, "Crashed")
    assert (second.id, second.outcome) == (others.id, "Interrupted")
    assert back == RunsHandedBack(runs=[[waiting.id, waiting.claims]])
