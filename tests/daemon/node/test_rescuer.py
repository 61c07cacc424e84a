"""Rescuing claims of earlier holders of a seat."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskqueue.model.record import Holder, Status
from taskqueue.store import ClaimRequest, Note
from tests.daemon.node.conftest import Bench
from tests.nodes import no_descriptors


def test_what_earlier_holders_of_the_seat_left_is_taken_over_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    dead = Holder(seat="web-1", incarnation="dead")
    unstarted, started = bench.add(), bench.add()
    now = bench.store.now()
    claim = bench.store.claim(dead, ClaimRequest(pooled=9), now, now + timedelta(hours=1))
    assert len(claim.records) == 2
    bench.store.note(dead, {started.id: Note(started_at=now)})

    assert bench.rescuer.rescue_own_seat() == 2

    assert (bench.now(unstarted).status, bench.now(unstarted).crashes) == (Status.WAITING, 0)
    assert (bench.now(started).status, bench.now(started).crashes) == (Status.WAITING, 1)
    lines = {record.__dict__["job_id"]: record for record in caplog.records if "was rescued" in record.getMessage()}
    assert set(lines) == {str(unstarted.id), str(started.id)}
    assert lines[str(started.id)].getMessage() == f"{started.job} was rescued from node web-1"


def test_claims_are_rescued_later_if_nobody_can_look_for_the_processes_of_their_jobs(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    dead = Holder(seat="web-2", incarnation="dead")
    job = bench.add()
    now = bench.store.now()
    bench.store.claim(dead, ClaimRequest(pooled=1), now, now + timedelta(hours=1))

    with no_descriptors():
        assert bench.rescuer.rescue_from(dead) is None

    assert bench.now(job).status is Status.PROCESSING
    assert "cannot look for processes left behind by jobs of a dead manager" in caplog.text
    assert bench.rescuer.rescue_from(dead) == 1
