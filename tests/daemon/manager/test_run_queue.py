"""What the backlog hands back, and what it keeps."""

from __future__ import annotations

from taskqueue.daemon.manager.outbox import ReportOutbox
from taskqueue.daemon.manager.run_queue import RunQueue
from taskqueue.daemon.manager.worker_handle import QueuedRun
from taskqueue.daemon.node.leader_hooks import STEPPED_DOWN
from taskqueue.daemon.protocol.channel import pair
from taskqueue.daemon.protocol.messages import Run, RunsHandedBack, decode, encode


def a_queued_run(id: str, place: int, *, job: str = "shop:Mail", force_spawn: bool = True) -> QueuedRun:
    run = Run(
        id=id, claims=1, job=job, data="null", state=None, attempt=1, is_last=True, timeout=None,
        force_spawn=force_spawn,
    )  # fmt: skip
    return QueuedRun(run, encode(run), 0.0, place)


def test_forced_runs_are_handed_back_all_at_once_but_for_the_hooks_of_the_lead() -> None:
    ours, theirs = pair()
    reports = ReportOutbox(ours)
    queue = RunQueue(reports)
    for queued in (
        a_queued_run("a", 1),
        a_queued_run("b", 2, force_spawn=False),
        a_queued_run("hook", 3, job=STEPPED_DOWN),
        a_queued_run("c", 4),
    ):
        queue.add(queued)

    queue.hand_back_forced()
    reports.send()

    payload = theirs.wait(30)
    assert payload is not None
    assert decode(payload) == RunsHandedBack(runs=[["a", 1], ["c", 1]])
    assert [queued.run.id for queued in queue.forced] == ["hook"]
    assert [queued.run.id for queued in queue.general] == ["b"]
    ours.close()
    theirs.close()
