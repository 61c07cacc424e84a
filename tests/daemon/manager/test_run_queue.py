"""What the backlog hands back, and what it keeps."""

from __future__ import annotations

from taskqueue.daemon.manager.outbox import ReportOutbox
from taskqueue.daemon.manager.run_queue import RunQueue
from taskqueue.daemon.manager.worker_handle import QueuedRun
from taskqueue.daemon.node.leader_hooks import STEPPED_DOWN
from taskqueue.daemon.protocol.channel import pair
from taskqueue.daemon.protocol.messages import Run, RunsHandedBack, decode, encode


def an_order(id: str, place: int, *, job: str = "shop:Mail", force_spawn: bool = True) -> QueuedRun:
    run = Run(
        id=id, claims=1, job=job, data="null", state=None, attempt=1, is_last=True, timeout=None,
        force_spawn=force_spawn,
    )  # fmt: skip
    return QueuedRun(run, encode(run), 0.0, place)


def test_forced_runs_are_handed_back_all_at_once_but_for_the_hooks_of_the_lead() -> None:
    ours, theirs = pair()
    reports = ReportOutbox(ours)
    backlog = RunQueue(reports)
    for order in (
        an_order("a", 1),
        an_order("b", 2, force_spawn=False),
        an_order("hook", 3, job=STEPPED_DOWN),
        an_order("c", 4),
    ):
        backlog.add(order)

    backlog.hand_back_forced()
    reports.send()

    payload = theirs.wait(30)
    assert payload is not None
    assert decode(payload) == RunsHandedBack(runs=[["a", 1], ["c", 1]])
    assert [order.run.id for order in backlog.forced] == ["hook"]
    assert [order.run.id for order in backlog.general] == ["b"]
    ours.close()
    theirs.close()
