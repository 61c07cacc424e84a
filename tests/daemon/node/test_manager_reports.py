"""Reports of the manager: what they change in the claims in flight, and in the store."""

from __future__ import annotations

import time

import pytest
from bson import ObjectId

from taskqueue.daemon.protocol.messages import Ended, Progressed, RunsHandedBack, Started
from taskqueue.model.record import Cause, Status
from taskqueue.store import Store
from tests.daemon.node.conftest import Bench


def test_reports_on_claims_that_are_no_longer_held_change_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    id = str(ObjectId())
    bench.reports.on_started(Started(id=id, claims=1, pid=1, at=time.time()))
    bench.reports.on_progressed(Progressed(id=id, claims=1, progress=1, message="", state=None, at=time.time()))
    bench.reports.on_handed_back(RunsHandedBack(runs=[[id, 1]]))
    bench.reports.on_ended(Ended(id=id, claims=1, outcome="Done", fields={}, pid=1, started_at=None))

    assert bench.settler.settle() == []
    assert "no longer holds" in caplog.text


def test_runs_that_no_worker_began_go_back_uncounted(bench: Bench) -> None:
    record = bench.add()
    [claimed] = bench.claim()
    bench.reports.on_handed_back(RunsHandedBack(runs=[[str(claimed.id), claimed.claims]]))
    bench.settler.settle()

    back = bench.now(record)
    assert (back.status, back.attempts) == (Status.WAITING, ())


def test_when_the_manager_is_gone_started_runs_have_crashed_and_others_go_back(bench: Bench) -> None:
    started, begun, unstarted = bench.add(), bench.add(), bench.add()
    claimed = {record.id: record for record in bench.claim()}
    run = claimed[started.id]
    bench.reports.on_started(Started(id=str(run.id), claims=run.claims, pid=1, at=time.time()))
    at = time.time() - 3.0

    bench.reports.on_manager_exit({(str(begun.id), claimed[begun.id].claims): at, (str(unstarted.id), 0): at})
    bench.settler.settle()

    assert bench.now(started).crashes == 1
    assert bench.now(begun).crashes == 1
    [attempt] = bench.now(begun).attempts
    assert attempt.started_at is not None
    assert abs(attempt.started_at.timestamp() - at) < 0.01
    assert bench.now(unstarted).crashes == 0
    assert bench.now(unstarted).status is Status.WAITING


def test_a_class_that_cannot_be_loaded_gets_the_patience_of_the_node(store: Store) -> None:
    bench = Bench(store, unroutable_after=0)
    record = bench.add()
    [claimed] = bench.claim()
    failure = {"type": "ModuleNotFoundError", "message": "no module", "traceback": "", "bases": []}
    bench.reports.on_ended(
        Ended(
            id=str(claimed.id),
            claims=claimed.claims,
            outcome="Unloadable",
            fields={"failure": failure},
            pid=1,
            started_at=None,
        )
    )
    bench.settler.settle()

    assert bench.now(record).cause is Cause.UNLOADABLE
    assert bench.now(record).status is Status.FAILED
