"""Claims jobs for a node, sends their runs to its manager and settles their outcomes, in the turns of its loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.fetcher import Fetcher
from taskqueue.daemon.node.in_flight import InFlight, InFlightRun
from taskqueue.daemon.node.manager_handle import ManagerHandle
from taskqueue.daemon.node.run_log import fields, log_run, runs
from taskqueue.daemon.protocol.messages import HandBack, OutcomeSettled, Stop
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.loop import on_loop_clock
from taskqueue.daemon.runtime.prefetch import Prefetch
from taskqueue.execution.run import run_of
from taskqueue.model import query
from taskqueue.model.history import has_failed
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import HandedBack, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Cause, Record, Status
from taskqueue.store import Renewal, Settlement

log = logging.getLogger(__name__)

BATCH = 200
"""Maximum number of claims whose answer was lost that one call hands back."""

LEAST_BESIDE = 16
"""The fewest outcomes to settle during a claim: writing fewer takes less time than waking a thread."""


class OutcomeWriter:
    """Writes outcomes, notes and renewals of the claims in flight to the store."""

    def __init__(self, node: NodeContext, in_flight: InFlight, fetcher: Fetcher) -> None:
        self._store = node.store
        self._holder = node.holder
        self._lease = node.lease
        self._in_flight = in_flight
        self._fetcher = fetcher
        self._breaker = node.breaker
        self._figures = node.figures
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taskqueue-settling")
        self._crashed_worker: int | None = None
        """The last worker that crashed with several runs."""

    @property
    def allows_claim_beside(self) -> bool:
        """Return whether jobs may be claimed while the outcomes are settled, if the store takes both calls at once.

        If an outcome may make a job claimable, the claim must follow it, in the same turn.
        """
        unsettled = self._in_flight.unsettled
        if len(unsettled) < LEAST_BESIDE or not self._store.takes_calls_at_once or self._breaker.is_degraded:
            return False
        return not self._fetcher.depends_on(unsettled)

    def settle(self, claim_jobs: Callable[[], None] | None = None) -> list[tuple[InFlightRun, bool]]:
        """Settle all outcomes, and return each with whether the store accepted it; nothing in an outage.

        ``claim_jobs`` is called while another thread settles them.
        """
        unsettled = self._in_flight.take_unsettled()
        if not unsettled:
            return []
        settlements = [_settlement(claim) for claim in unsettled]
        if claim_jobs is None:
            began = time.monotonic()
            accepted_ids = self._breaker.call(lambda: self._write(settlements), writes=True)
            self._fetcher.store_took(time.monotonic() - began)
        else:
            accepted_ids = self._settle_beside(settlements, claim_jobs)
        if accepted_ids is None:
            self._in_flight.keep_unsettled(unsettled)
            return []
        self._in_flight.in_write = ()
        self._fetcher.wake_after(unsettled)
        logs_runs = runs.isEnabledFor(logging.INFO)
        settled = [(claim, claim.record.id in accepted_ids) for claim in unsettled]
        if self._figures.counts_runs:
            self._figures.settled(settled)
        for claim, accepted in settled:
            if logs_runs or not accepted or claim.finished is None or claim.finished.status is not Status.DONE:
                self._note_outcome(claim, accepted)
        return settled

    def _settle_beside(self, settlements: Sequence[Settlement], claim_jobs: Callable[[], None]) -> set[JobId] | None:
        """Settle these in another thread, which has ended when this method returns or raises."""
        under_way = self._breaker.begin(lambda: self._write(settlements), self._thread)
        if under_way is None:
            return None
        try:
            claim_jobs()
        finally:
            began = time.monotonic()
            under_way.wait()
            self._fetcher.store_took(time.monotonic() - began)
        return self._breaker.end(under_way, writes=True)

    def _write(self, settlements: Sequence[Settlement]) -> set[JobId]:
        return self._store.settle(settlements, self._store.now())

    def send_notes(self) -> None:
        """Write the starts, progress and checkpoints that the store does not have yet."""
        if not self._in_flight.with_notes:
            return
        notes = self._in_flight.take_notes()
        if not self._breaker.carry_out(lambda: self._store.note(self._holder, notes)):
            self._in_flight.keep_notes(notes)
        self._in_flight.in_write = ()

    def renew(self) -> Renewal | None:
        """Extend the leases of all claims, and return the store's answer; None in an outage."""
        notes = self._in_flight.take_notes()
        renewal = self._breaker.call(lambda: self._store.renew(self._holder, self._store.now() + self._lease, notes))
        if renewal is None:
            self._in_flight.keep_notes(notes)
        self._in_flight.in_write = ()
        return renewal

    def hand_back_unknown(self, renewal: Renewal) -> None:
        """Hand back claims that this node does not know of because the store's answer to the claim was lost."""
        known_ids = {claim.record.id for claim in (*self._in_flight, *self._in_flight.unsettled)}
        unknown_ids = [str(id) for id in renewal.claims if id not in known_ids]
        if not unknown_ids:
            return
        log.warning("handing back %d claims for which the store's answer was lost", len(unknown_ids))
        is_unknown = query.parse({"id": {"$in": unknown_ids[:BATCH]}, "status": int(Status.PROCESSING)})
        records = self._breaker.call(lambda: self._store.find(is_unknown, limit=BATCH)) or []
        self._hand_back(record for record in records if record.holder == self._holder)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _note_outcome(self, claim: InFlightRun, accepted: bool) -> None:
        """Log the outcome, and count it if it is a failure."""
        if not accepted:
            record = claim.record
            log.warning("the store refused an outcome of %s: the claim was lost", record.job, extra=fields(record))
        elif claim.finished is not None:
            if has_failed(claim.finished):
                self._figures.attempt_failed()
            worker = _crashed_worker(claim.finished)
            log_run(
                claim.finished,
                self._store.now(),
                crashed_beside=worker is not None and worker == self._crashed_worker,
            )
            self._crashed_worker = worker or self._crashed_worker

    def _hand_back(self, records: Iterable[Record]) -> None:
        now = self._store.now()
        settlements = [
            Settlement(
                claims=record.claims,
                holder=self._holder,
                after=ended(record, HandedBack(), Run(node=self._holder.seat), now),
            )
            for record in records
        ]
        self._breaker.call(lambda: self._store.settle(settlements, now))
        self._fetcher.wake("claims were handed back whose answer was lost")


def _crashed_worker(after: Record) -> int | None:
    """Return the pid of the worker of a crashed run if it may have had other runs, else None."""
    if after.cause is not Cause.CRASHED or after.options.concurrency == 1 or not after.attempts:
        return None
    return after.attempts[-1].pid


def _settlement(claim: InFlightRun) -> Settlement:
    assert claim.finished is not None
    assert claim.record.holder is not None
    defined = None if claim.finished.options is claim.record.options else claim.record
    return Settlement(
        claims=claim.record.claims,
        holder=claim.record.holder,
        after=claim.finished,
        defined=defined,
        lines=claim.lines,
        is_unseen=claim.is_unseen,
    )


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
            self._settle(claim_jobs=self._claim)
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

    def _settle(self, claim_jobs: Callable[[], None] | None = None) -> None:
        """Settle all outcomes, and report that to the workers which then call the hooks of their runs."""
        for claim, accepted in self._outcome_writer.settle(claim_jobs):
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
