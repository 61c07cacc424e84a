"""The run queue: which runs it hands back, and which it keeps."""

from __future__ import annotations

from taskqueue.daemon.manager.runs import QueuedRun, ReportQueue, RunQueue
from taskqueue.daemon.protocol.channel import pair
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.messages import STEPPED_DOWN, RunHook, RunsHandedBack, run_of
from taskqueue.execution.run import Run


def a_queued_run(id: str, sequence: int, *, force_spawn: bool = True) -> QueuedRun:
    run = Run(
        id=id, claims=1, job="shop:Mail", data="null", state=None, attempt=1, is_last=True, timeout=None,
        force_spawn=force_spawn,
    )  # fmt: skip
    return QueuedRun(run, encode(run), 0.0, sequence)


def a_queued_hook(id: str, sequence: int) -> QueuedRun:
    hook = RunHook(id=id, name=STEPPED_DOWN)
    return QueuedRun(run_of(hook), encode(hook), 0.0, sequence, is_hook=True)


def test_forced_runs_are_handed_back_all_at_once_but_for_hooks() -> None:
    ours, theirs = pair()
    reports = ReportQueue(ours)
    queue = RunQueue(reports)
    for queued in (
        a_queued_run("a", 1),
        a_queued_run("b", 2, force_spawn=False),
        a_queued_hook("hook", 3),
        a_queued_run("c", 4),
    ):
        queue.add(queued)

    queue.hand_back_beside_pool()
    reports.send()

    payload = theirs.wait(30)
    assert payload is not None
    assert decode(payload) == RunsHandedBack(runs=[["a", 1], ["c", 1]])
    assert [queued.run.id for queued in queue.forced] == ["hook"]
    assert [queued.run.id for queued in queue.general] == ["b"]
    ours.close()
    theirs.close()
