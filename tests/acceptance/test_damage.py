"""A node on a store with jobs and schedules that it cannot read: it stays, and all others have their turn."""

from __future__ import annotations

from pathlib import Path

from taskqueue import Scheduler, Status
from taskqueue.model.record import Cause
from tests.acceptance.work import Echo
from tests.nodes import LIMIT, eventually, node
from tests.store.test_damage import GARBAGE, NOWHERE, damage, damage_plan


def test_a_node_ends_what_it_cannot_read_and_runs_all_others(  # RW-10
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    scheduler.schedule("lunar", Echo, every="1s")
    scheduler.schedule("often", Echo, every="1s")
    damaged = scheduler.add_jobs([(Echo, {"n": 1})] * len(GARBAGE))
    data = scheduler.add_job(Echo, {"n": 1})
    good = scheduler.add_jobs([(Echo, {"n": 1})] * 5)
    for job, value in zip(damaged, GARBAGE, strict=True):
        text = value if isinstance(value, (str, bytes)) else "{"
        damage(url, "jobs", job.id, "options", '"garbage"' if url.startswith("postgresql") else text)  # it has a type
    damage(url, "jobs", data.id, "given" if url.startswith("mongodb") else "data", '{"n":')
    damage_plan(url, "lunar", "trigger", NOWHERE)

    with node(url, tmp_path) as running:
        scheduler.wait_for([*good, *damaged, data], timeout=LIMIT)
        eventually(lambda: scheduler.get_schedule("often").fired > 0)
        eventually(lambda: scheduler.get_schedule("lunar").snapshot.next_run_at is None)
        again = scheduler.add_job(Echo, {"n": 2}).wait(timeout=LIMIT)

        assert running.process.poll() is None
    assert again.status is Status.DONE
    assert {job.status for job in good} == {Status.DONE}
    assert {(job.status, job.cause) for job in (*damaged, data)} == {(Status.FAILED, Cause.UNREADABLE)}
    assert scheduler.get_schedule("lunar").stage == "paused"
    assert "Mars/Phobos" in scheduler.get_schedule("lunar").reason
