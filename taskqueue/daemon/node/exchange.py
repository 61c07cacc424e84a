"""What a node and its store tell each other about claims: each turn's outcomes, news and wishes, a call for each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from taskqueue.daemon.node import leftovers
from taskqueue.daemon.node.circuit_breaker import Answer, Answered, CircuitBreaker
from taskqueue.daemon.node.in_flight import InFlight, InFlightRun
from taskqueue.daemon.node.prefetch import Prefetch
from taskqueue.daemon.settings import Settings
from taskqueue.model import query
from taskqueue.model.lifecycle.outcomes import HandedBack, Run, unreadable
from taskqueue.model.lifecycle.settle import ended, lost
from taskqueue.model.record import Holder, OnCrash, Record, Status
from taskqueue.model.timestamps import EPOCH, MILLISECOND
from taskqueue.store import ClaimRequest, Note, Renewal, Settlement, Store

log = logging.getLogger(__name__)

FORCED_AT_ONCE = 16
"""Jobs with ``force_spawn`` that one claim takes."""

LOST_AT_ONCE = 200
"""Claims of others that one look takes back."""


class Exchange:
    """The claims of one incarnation, between its holdings and the store."""

    def __init__(
        self, store: Store, holder: Holder, settings: Settings, prefetch: Prefetch, breaker: CircuitBreaker
    ) -> None:
        self._store = store
        self._holder = holder
        self._settings = settings
        self._lease = timedelta(seconds=settings.lease)
        self._prefetch = prefetch
        self._breaker = breaker
        self.in_flight = InFlight()
        self._pooled_expected = True
        self._forced_expected = True
        self._reserved: list[Record] = []
        self._waited = 0.0
        self.next_at: datetime | None = None
        """When the next postponed job becomes due, as far as the last claim knew."""
        self.begins_at: datetime | None = None
        """The moment before which nothing of the last claim may begin; None where nothing was taken ahead."""
        self._due_by: datetime | None = None

    def wake(self) -> None:
        """Take in that a claim might find something: a bell rang, a moment came, a slot became free."""
        self._pooled_expected = True
        self._forced_expected = True

    @property
    def claim_at(self) -> datetime | None:
        """When to claim for the next postponed job: ahead of its time, or then if nothing could be taken ahead."""
        if self.next_at is None or self.next_at == self._due_by:
            return self.next_at
        return self.next_at - self._store.early_by

    def wake_when_due(self) -> None:
        """Take in that ``claim_at`` has come, or came for a job that is gone: what is due far ahead is left alone."""
        due, self.next_at = self.next_at, None
        is_near = due is not None and due - self._store.now() <= self._store.early_by + MILLISECOND
        self._due_by = due if is_near else None
        self.wake()

    def claim(self) -> list[Record]:
        """Claim what this node can take now, if there may be something, and return what workers are to run.

        At-most-once jobs that were claimed ahead stay here until a slot is free: what a worker may have begun is never
        run again, and what has been handed to the manager it may have begun.
        """
        wanted = None if self._reserved else self._wanted()
        answer = None if wanted is None else self._attempt(lambda: self._claim(wanted))
        if answer is not None:
            self._prefetch.store_took(self._waited)
        self._waited = 0.0
        return [*(answer.value if answer is not None else ()), *self._begin_reserved()]

    def hand_back_reserved(self) -> None:
        """Hand back what no worker has heard of: this node drains, or a run lasts that it would wait for."""
        reserved, self._reserved = self._reserved, []
        for record in reserved:
            claim = self.in_flight.find(str(record.id), record.claims)
            if claim is not None:
                self.in_flight.hand_back(claim, self._holder.seat, self._store.now())

    def is_reserved(self, claim: InFlightRun) -> bool:
        """Return whether no worker has heard of the claim yet."""
        return any(record.id == claim.record.id for record in self._reserved)

    def settle(self) -> list[tuple[InFlightRun, bool]]:
        """Settle what has ended and return each with whether its outcome was accepted; nothing in an outage."""
        unsettled = self.in_flight.take_unsettled()
        if not unsettled:
            return []
        settlements = [_settlement(claim) for claim in unsettled]
        answer = self._attempt(lambda: self._store.settle(settlements, self._store.now()))
        if answer is None:
            self.in_flight.keep_unsettled(unsettled)
            return []
        self._expect_more(unsettled)
        return [(claim, claim.record.id in answer.value) for claim in unsettled]

    def send_notes(self) -> None:
        """Write down starts, progress and checkpoints that the store has not been told."""
        if not self.in_flight.has_unsent_notes:
            return
        notes = self.in_flight.take_notes()
        if self._breaker.call(lambda: self._store.note(self._holder, notes)) is None:
            self.in_flight.keep_notes(notes)

    def renew(self) -> Renewal | None:
        """Extend all claims and return what the store says of them; None while it is away."""
        notes = self.in_flight.take_notes()
        answer = self._breaker.call(lambda: self._store.renew(self._holder, self._store.now() + self._lease, notes))
        if answer is None:
            self.in_flight.keep_notes(notes)
            return None
        return answer.value

    def hand_back_unknown(self, renewal: Renewal) -> None:
        """Hand back claims that the store says are ours and that never reached us: a reply was lost."""
        known = {claim.record.id for claim in (*self.in_flight, *self.in_flight.unsettled)}
        unknown = [str(id) for id in renewal.claims if id not in known]
        if not unknown:
            return
        log.warning("handing back %d claims whose answer was lost", len(unknown))
        wanted = query.parse({"id": {"$in": unknown[:LOST_AT_ONCE]}, "status": int(Status.PROCESSING)})
        answer = self._breaker.call(lambda: self._store.find(wanted, limit=LOST_AT_ONCE))
        self._give_back(record for record in (answer.value if answer else []) if record.holder == self._holder)

    def take_back_lost(self) -> None:
        """Settle as lost what other nodes hold beyond their leases."""
        self._breaker.call(self._take_back_expired)

    def take_over_from(self, dead: Holder) -> int | None:
        """Settle as lost what a dead node of another seat held, and return how many that were; None in an outage."""

        def left() -> list[Record]:
            return [one for one in self._store.orphaned(dead.seat, "", LOST_AT_ONCE) if one.holder == dead]

        answer = self._breaker.call(lambda: self._take_back(left))
        return None if answer is None else answer.value

    def take_over(self) -> int:
        """Settle as lost what earlier holders of this seat left behind, and return how many that were."""
        seat, incarnation = self._holder.seat, self._holder.incarnation
        answer = self._breaker.call(
            lambda: self._take_back(lambda: self._store.orphaned(seat, incarnation, LOST_AT_ONCE))
        )
        return answer.value if answer is not None else 0

    def _attempt(self, call: Callable[[], Answer]) -> Answered[Answer] | None:
        """Ask the store, and count how long that took in this turn."""
        began = time.monotonic()
        answer = self._breaker.call(call)
        self._waited += time.monotonic() - began
        return answer

    def _wanted(self) -> ClaimRequest | None:
        in_flight, settings = self.in_flight, self._settings
        pooled = self._prefetch.demand(in_flight.pooled) if self._pooled_expected else 0
        free, data = max(0, self._prefetch.slots - in_flight.pooled), self._prefetch.data(in_flight.data)
        if not data:
            pooled = min(pooled, free)
        forced = FORCED_AT_ONCE if self._forced_expected else 0
        if not pooled and not forced:
            return None
        queues = in_flight.room_by_queue(settings.queues)
        return ClaimRequest(pooled=pooled, forced=forced, queues=queues, due_by=self._due_by, data=data, free=free)

    def _claim(self, wanted: ClaimRequest) -> list[Record]:
        now = self._store.now()
        claim = self._store.claim(self._holder, wanted, now, now + self._lease)
        records = list(claim.records)
        forced = sum(record.options.force_spawn for record in records)
        if wanted.pooled:
            self._pooled_expected = claim.has_more or len(records) - forced >= wanted.pooled
        self._forced_expected = forced >= wanted.forced > 0
        self.next_at = claim.next_at
        self.begins_at = claim.begins_at
        self.in_flight.add(records)
        if any(record.damage for record in records):
            records = self._without_damaged(records, now)
        self._reserved = [record for record in records if record.options.on_crash is OnCrash.FAIL]
        return [record for record in records if record.options.on_crash is not OnCrash.FAIL]

    def _without_damaged(self, records: Iterable[Record], now: datetime) -> list[Record]:
        """Return the records that can be run; those that cannot be read end here, and harm no others."""
        whole = []
        for record in records:
            claim = self.in_flight.find(str(record.id), record.claims)
            if not record.damage or claim is None:
                whole.append(record)
                continue
            self.in_flight.finish(claim, unreadable(record), Run(node=self._holder.seat), now)
        return whole

    def _begin_reserved(self) -> list[Record]:
        """Return at-most-once jobs for the free slots, after their start has been written down for good."""
        if not self._reserved:
            return []
        self._reserved = [record for record in self._reserved if self.in_flight.find(str(record.id), record.claims)]
        waiting = sum(not record.options.force_spawn for record in self._reserved)
        free = self._prefetch.slots - (self.in_flight.pooled - waiting)
        begun: list[Record] = []
        for record in self._reserved:
            if record.options.force_spawn or free > 0:
                free -= not record.options.force_spawn
                begun.append(record)
        now = max(self._store.now(), self.begins_at or EPOCH)
        notes = {record.id: Note(started_at=now) for record in begun}
        if not begun or self._breaker.call(lambda: self._store.note(self._holder, notes)) is None:
            return []
        for record in begun:
            claim = self.in_flight.find(str(record.id), record.claims)
            assert claim is not None
            claim.record = replace(claim.record, started_at=now)
            self._reserved.remove(record)
        return begun

    def _expect_more(self, settled: Iterable[InFlightRun]) -> None:
        for claim in settled:
            after = claim.finished
            assert after is not None
            bounded = self._settings.queues.get(claim.record.queue) is not None
            if after.status is Status.WAITING or after.lane or bounded:
                self.wake()
            if after.status is Status.POSTPONED and after.ready_at is not None:
                self.next_at = min(self.next_at or after.ready_at, after.ready_at)

    def _give_back(self, records: Iterable[Record]) -> None:
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
        self.wake()

    def _take_back_expired(self) -> int:
        def over() -> list[Record]:
            return self._store.expired(self._store.now(), LOST_AT_ONCE)

        return self._take_back(over, lambda record: record.ready_at)

    def _take_back(
        self, find: Callable[[], list[Record]], lease_end: Callable[[Record], datetime | None] = lambda _: None
    ) -> int:
        taken = 0
        kills_until = time.monotonic() + leftovers.KILL_TAKES_AT_MOST  # of all batches: the loop waits for it
        while True:
            now = self._store.now()
            found = find()
            settled = self._settle_lost(_losses(found, now, lease_end), now, kills_until)
            taken += settled
            if len(found) < LOST_AT_ONCE or not settled:
                return taken

    def _settle_lost(self, settlements: Sequence[Settlement], now: datetime, kills_until: float) -> int:
        if not settlements:
            return 0
        # Or a job might begin again beside what its last run started here.
        leftovers.kill(max(0.0, kills_until - time.monotonic()))
        accepted = self._store.settle(settlements, now)
        for settlement in settlements:
            if settlement.after.id in accepted:
                log.warning("took back from node %s: job %s", settlement.holder.seat, settlement.after.id)
        self.wake()
        return len(accepted)


def _losses(found: Iterable[Record], now: datetime, lease_end: Callable[[Record], datetime | None]) -> list[Settlement]:
    """Return what settles these as lost; a record whose holder cannot be read has no fence to settle it by."""
    return [
        Settlement(claims=one.claims, holder=one.holder, after=lost(one, now), lease_end=lease_end(one))
        for one in found
        if one.holder is not None
    ]


def _settlement(claim: InFlightRun) -> Settlement:
    assert claim.finished is not None
    assert claim.record.holder is not None
    defined = None if claim.finished.options is claim.record.options else claim.record
    return Settlement(claims=claim.fence, holder=claim.record.holder, after=claim.finished, defined=defined)
