"""What a node sends to its manager about its claims, and when it settles them: on a real store, without a manager."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from taskqueue.daemon.node.dispatcher import LEAST_BESIDE, Dispatcher
from taskqueue.daemon.node.figures import Figures
from taskqueue.daemon.protocol.messages import Ended, HandBack, Message, OutcomeSettled, Stop
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.execution.run import Run
from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Cause, OnCrash, Options, Record, Status
from taskqueue.store import Store
from tests.daemon.node.conftest import Bench
from tests.nodes import LIMIT

ONE_AT_A_TIME = lane([Limit(1)], "app:Mail", None)


class Line:
    """The line to a manager that hears everything and does nothing."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.leases = 0

    def send(self, *messages: Message) -> None:
        self.sent += messages

    def extend_lease(self, _asked_at: float, _lease: float) -> None:
        self.leases += 1


class Desk(Bench):
    """A dispatcher with all it needs but a manager."""

    def __init__(self, store: Store, loop: Loop) -> None:
        super().__init__(store)
        self.line, self.figures = Line(), Figures()
        context = replace(self.context, loop=loop, figures=self.figures)
        self.dispatcher = Dispatcher(context, self.in_flight, self.prefetch, cast(Any, self.line))

    def claimed(self, **fields: Any) -> Record:
        """Add a job, have it claimed, and return the record that was claimed."""
        record = self.add(**fields)
        self.turn(expects=True)
        [claim] = [claim for claim in self.in_flight if claim.record.id == record.id]
        return claim.record

    def turn(self, *, expects: bool = False, claims: bool = True) -> list[str]:
        """Work for one turn; return the claims and settlements in order. With ``expects`` there may be new jobs."""
        if expects:
            self.dispatcher.fetcher.wake("the test asks")
        self.faults.calls.clear()
        self.dispatcher.work(lambda: claims)
        return [call for call in self.faults.calls if call in ("claim", "settle")]

    def end(self, claimed: Record, *, confirm: bool = False) -> None:
        """Report the run as done."""
        ended = Ended(
            id=str(claimed.id),
            claims=claimed.claims,
            outcome="Done",
            fields={"result": "1"},
            pid=1,
            started_at=None,
            confirm=confirm,
        )
        self.in_flight.on_ended(ended)


@pytest.fixture
def desk(store: Store) -> Iterator[Desk]:
    loop = Loop()
    desk = Desk(store, loop)
    yield desk
    desk.dispatcher.close()
    loop.close()


def test_a_claimed_job_is_sent_to_the_manager_and_its_outcome_settled(desk: Desk) -> None:
    claimed = desk.claimed()

    [run] = desk.line.sent
    assert isinstance(run, Run)
    assert (run.id, run.claims) == (str(claimed.id), claimed.claims)
    desk.end(claimed)
    assert desk.turn() == ["settle"]

    assert desk.now(claimed).status is Status.DONE
    assert desk.line.sent == [run]  # its worker does not wait for the settlement


def test_a_job_that_an_outcome_made_claimable_is_claimed_in_the_same_turn(desk: Desk) -> None:
    first = desk.claimed(lane=ONE_AT_A_TIME)
    behind = desk.add(lane=ONE_AT_A_TIME)
    assert desk.turn(expects=True) == ["claim"]
    desk.end(first)

    assert desk.turn() == ["settle", "claim"]

    assert desk.now(behind).status is Status.PROCESSING


def ended_together(desk: Desk, **fields: Any) -> list[Record]:
    """Have as many runs end together as are settled beside a claim, on a store that takes both at once."""
    desk.store.takes_calls_at_once = True
    desk.prefetch.run_took(0.001)
    claimed = [desk.claimed(**fields) for _ in range(LEAST_BESIDE)]
    for one in claimed:
        desk.end(one)
    return claimed


def test_jobs_are_claimed_while_many_outcomes_are_settled(desk: Desk) -> None:
    ended = ended_together(desk)
    waiting = desk.add()
    claims, waited = threading.Event(), []
    desk.faults.before["claim"] = claims.set
    desk.faults.before["settle"] = lambda: waited.append(claims.wait(LIMIT))

    assert sorted(desk.turn(expects=True)) == ["claim", "settle"]

    assert waited == [True]
    assert {desk.now(record).status for record in ended} == {Status.DONE}
    assert desk.now(waiting).status is Status.PROCESSING
    assert [run.id for run in desk.line.sent[len(ended) :] if isinstance(run, Run)] == [str(waiting.id)]


def test_a_claim_follows_many_outcomes_that_may_make_a_job_claimable(desk: Desk) -> None:
    limit = lane([Limit(LEAST_BESIDE)], "app:Mail", None)
    ended_together(desk, lane=limit)
    behind = desk.add(lane=limit)

    assert desk.turn(expects=True) == ["settle", "claim"]

    assert desk.now(behind).status is Status.PROCESSING


def test_many_outcomes_are_kept_through_an_outage_while_jobs_are_claimed(desk: Desk) -> None:
    ended = ended_together(desk)
    waiting = desk.add()
    desk.faults.refused.add("settle")
    desk.turn(expects=True)
    assert desk.breaker.is_degraded
    assert desk.now(waiting).status is Status.PROCESSING
    desk.recover()

    assert desk.turn() == ["settle"]

    assert {desk.now(record).status for record in ended} == {Status.DONE}


def test_many_outcomes_are_settled_although_no_job_can_be_claimed(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    ended = ended_together(desk)
    desk.faults.refused.add("claim")

    desk.turn(expects=True)

    assert {desk.now(record).status for record in ended} == {Status.DONE}
    assert desk.in_flight.unsettled == []
    assert desk.breaker.is_degraded
    assert "answers again" not in caplog.text


def test_a_fault_of_a_claim_leaves_no_settlement_under_way(desk: Desk) -> None:
    ended = ended_together(desk)

    def fail() -> None:
        raise RuntimeError("a fault of the program")

    desk.faults.before["claim"] = fail
    with pytest.raises(RuntimeError, match="a fault"):
        desk.turn(expects=True)

    assert {desk.now(record).status for record in ended} == {Status.DONE}


def test_a_node_that_may_not_claim_settles(desk: Desk) -> None:
    first = desk.claimed()
    waiting = desk.add()
    desk.end(first)

    assert desk.turn(expects=True, claims=False) == ["settle"]

    assert (desk.now(first).status, desk.now(waiting).status) == (Status.DONE, Status.WAITING)


def test_a_worker_with_hooks_hears_of_the_settlement(desk: Desk) -> None:
    claimed = desk.claimed()
    desk.end(claimed, confirm=True)
    desk.turn()

    settled = OutcomeSettled(id=str(claimed.id), claims=claimed.claims, accepted=True, status=int(Status.DONE))
    assert desk.line.sent[1:] == [settled]


def test_a_canceled_job_is_ended_once(desk: Desk) -> None:
    claimed = desk.claimed()
    desk.store.cancel(claimed.id, "no longer wanted", desk.store.now())

    for _ in range(2):
        assert desk.dispatcher.renew() is not None

    assert desk.line.sent[1:] == [Stop(id=str(claimed.id), claims=claimed.claims, reason="cancel")]
    assert (desk.line.leases, desk.figures.lost_claims) == (2, 0)


def test_a_renewal_in_an_outage_extends_no_lease(desk: Desk) -> None:
    desk.claimed()
    desk.faults.refused.add("renew")

    assert desk.dispatcher.renew() is None
    assert desk.line.leases == 0


def test_a_lost_claim_is_ended_and_counted(desk: Desk) -> None:
    claimed = desk.claimed()
    desk.store.flush()

    assert desk.dispatcher.renew() is not None

    assert desk.line.sent[1:] == [Stop(id=str(claimed.id), claims=claimed.claims, reason="lost")]
    assert desk.figures.lost_claims == 1


def test_what_no_worker_has_received_is_handed_back_without_the_manager(desk: Desk) -> None:
    options = Options(on_crash=OnCrash.FAIL)
    running = [desk.claimed(options=options) for _ in range(2)]  # as many as there are slots
    reserved = desk.add(options=options)
    desk.prefetch.run_took(0.001)
    desk.turn(expects=True)
    assert len(desk.in_flight) == 3

    desk.dispatcher.hand_back_unbegun()
    desk.turn(claims=False)

    assert [type(message) for message in desk.line.sent] == [Run, Run, HandBack]
    assert (desk.now(reserved).status, desk.now(reserved).cause) == (Status.WAITING, Cause.HANDED_BACK)
    assert [desk.now(record).status for record in running] == [Status.PROCESSING] * 2
