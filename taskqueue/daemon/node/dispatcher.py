"""Claims jobs for a node, sends their runs to its manager and settles their outcomes, in the turns of its loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.fetcher import Fetcher
from taskqueue.daemon.node.in_flight import InFlight, InFlightRun
from taskqueue.daemon.node.manager_handle import ManagerHandle
from taskqueue.daemon.node.outcome_writer import OutcomeWriter
from taskqueue.daemon.protocol.messages import HandBack, OutcomeSettled, Stop
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.loop import on_loop_clock
from taskqueue.daemon.runtime.prefetch import Prefetch
from taskqueue.execution.run import run_of
from taskqueue.model.record import Record
from taskqueue.store import Renewal

NOTES_WITHIN = 0.1
"""Seconds after which progress and checkpoints are written to the store."""


class Dispatcher:
    """The claims of one incarnation of a node on their way: from the store to the manager, and back."""

    def __init__(self, node: NodeContext, in_flight: InFlight, prefetch: Prefetch, manager: ManagerHandle) -> None:
        self._store = node.store
        self._lease = node.settings.lease
        self._in_flight = in_flight
        self._manager = manager
        self._figures = node.figures
        self.fetcher = Fetcher(node, in_flight, prefetch)
        self._outcome_writer = OutcomeWriter(node, in_flight, self.fetcher)
        self._claim_timer = node.timer(self.fetcher.wake_when_due)
        self._notes_timer = node.timer(self._outcome_writer.send_notes)

    def work(self, may_claim: Callable[[], bool]) -> None:
        """Settle all outcomes, claim jobs if ``may_claim``, and send their runs: one transaction each.

        It is asked after the settlement, in which the node may have found that it has to leave. Many plain outcomes
        are settled while jobs are claimed, where the store takes both at once.
        """
        if self._outcome_writer.allows_claim_beside and may_claim():
            self._settle(meanwhile=self._claim)
        else:
            if self._in_flight.unsettled:
                self._settle()
            if may_claim():
                self._claim()
        if self._in_flight.with_notes and not self._notes_timer.is_set:
            self._notes_timer.after(NOTES_WITHIN)

    def renew(self) -> Renewal | None:
        """Renew all claims; end the runs of lost claims and canceled jobs. Return None in an outage."""
        asked_at = child_process.boottime()
        renewal = self._outcome_writer.renew()
        if renewal is None:
            return None
        self._manager.extend_lease(asked_at, self._lease)
        for claim, reason in self._in_flight.to_stop(renewal):
            self._stop(claim, reason)
        self._outcome_writer.hand_back_unknown(renewal)
        return renewal

    def hand_back_unbegun(self) -> None:
        """Hand back all claims whose runs have not started."""
        self.fetcher.hand_back_reserved()
        self._manager.send(HandBack(most=len(self._in_flight)))

    def close(self) -> None:
        """End the thread that settles beside claims."""
        self._outcome_writer.close()

    def _settle(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Settle all outcomes, and report that to the workers which then call the hooks of their runs."""
        for claim, accepted in self._outcome_writer.settle(meanwhile):
            if claim.wants_settlement and claim.finished is not None:
                id, status = str(claim.record.id), int(claim.finished.status)
                self._manager.send(OutcomeSettled(id=id, claims=claim.fence, accepted=accepted, status=status))

    def _claim(self) -> None:
        """Claim jobs if there may be some and there is room for them, and send their runs to the manager."""
        claimed = self.fetcher.claim()
        if claimed:
            self._send_out(claimed)
        claim_at = self.fetcher.claim_at
        if claim_at is not None:
            self._claim_timer.no_later_than(claim_at)

    def _send_out(self, claimed: Sequence[Record]) -> None:
        now, begins_at = self._store.now(), self.fetcher.begins_at
        not_before = None if begins_at is None else on_loop_clock(begins_at, self._store.now)
        self._manager.send(*(run_of(record, now, not_before) for record in claimed))

    def _stop(self, claim: InFlightRun, reason: str) -> None:
        if self.fetcher.is_reserved(claim):
            self._in_flight.hand_back(claim)
        elif not claim.stop_reason:
            claim.stop_reason = reason
            self._figures.lost_claims += reason == "lost"
            self._manager.send(Stop(id=str(claim.record.id), claims=claim.fence, reason=reason))
