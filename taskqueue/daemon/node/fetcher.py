"""Claims jobs for the node, when there may be some and there is room for them."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.in_flight import InFlight, InFlightRun
from taskqueue.daemon.runtime.prefetch import Prefetch
from taskqueue.daemon.settings import Order
from taskqueue.model.lifecycle.outcomes import Run, unreadable
from taskqueue.model.record import OnCrash, Record, Status
from taskqueue.model.timestamps import EPOCH, MILLISECOND
from taskqueue.store import ClaimRequest, Note
from taskqueue.store.queue_shares import STRICT, QueueShares

log = logging.getLogger(__name__)

MOST_FORCED = 16
"""Jobs with ``force_spawn``, or of new classes with ``concurrency``, that one claim takes."""

UNCOUNTED_CLAIMS = 5
"""Claims in a row without an attempt after which the start of a job is stored before a worker hears of it."""

_POOL, _OWN_WORKER = "the pool", "its own worker"


class Fetcher:
    """Claims jobs for one incarnation of a node and adds them to its claims in flight."""

    def __init__(self, node: NodeContext, in_flight: InFlight, prefetch: Prefetch) -> None:
        self._store = node.store
        self._holder = node.holder
        self._settings = node.settings
        self._lease = node.lease
        self._in_flight = in_flight
        self._prefetch = prefetch
        self._breaker = node.breaker
        self._shares = QueueShares() if node.settings.order is Order.FAIR else STRICT
        self._pooled_expected = True
        self._forced_expected = True
        self._reason = "the node has started"
        self._reserved: list[Record] = []
        self._store_took = 0.0
        self.next_at: datetime | None = None
        """When the next postponed job is due, according to the last claim."""
        self.begins_at: datetime | None = None
        """Earliest start of the jobs of the last claim; None if none of them was claimed early."""
        self._due_by: datetime | None = None

    def wake(self, reason: str) -> None:
        """Claim at the next opportunity, because there may be jobs; ``reason`` is logged with the claim."""
        self._pooled_expected = True
        self._forced_expected = True
        self._reason = reason

    @property
    def expects_jobs(self) -> bool:
        """Whether the next claim may find jobs: the last one did not end with nothing left to take."""
        return self._pooled_expected or self._forced_expected or bool(self._reserved)

    @property
    def claim_at(self) -> datetime | None:
        """When to claim the next postponed job: early, or when it is due if an early claim did not get it."""
        if self.next_at is None or self.next_at == self._due_by:
            return self.next_at
        return self.next_at - self._store.early_by

    def wake_when_due(self) -> None:
        """Claim at the next opportunity, because ``claim_at`` has come; leave alone jobs that are due much later."""
        due, self.next_at = self.next_at, None
        is_near = due is not None and due - self._store.now() <= self._store.early_by + MILLISECOND
        self._due_by = due if is_near else None
        self.wake("a postponed job is due")

    def wake_after(self, settled: Iterable[InFlightRun]) -> None:
        """Claim at the next opportunity if one of these outcomes may have made a job claimable."""
        for claim in settled:
            after = claim.finished
            assert after is not None
            bounded = self._settings.queues.get(claim.record.queue) is not None
            if after.status is Status.WAITING or after.lane or bounded:
                self.wake("an outcome may have made a job claimable")
            if after.status is Status.POSTPONED and after.ready_at is not None:
                self.next_at = min(self.next_at or after.ready_at, after.ready_at)

    def depends_on(self, unsettled: Iterable[InFlightRun]) -> bool:
        """Return whether a claim after one of these outcomes may find more, or other jobs, than before it."""
        return any(
            claim.finished is None
            or not claim.finished.status.is_final
            or claim.finished.lane
            or self._settings.queues.get(claim.record.queue) is not None
            for claim in unsettled
        )

    def store_took(self, seconds: float) -> None:
        """Count time that the node has waited for the store in this turn of its loop."""
        self._store_took += seconds

    def claim(self) -> list[Record]:
        """Claim the jobs that this node can take now, if there may be any, and return those for workers.

        At-most-once jobs that were prefetched stay reserved here until a slot is free: the manager may start any job it
        has been sent, and a job of this kind that may have started is never run again. So do jobs whose last claims all
        left no attempt: otherwise a job that kills its node before the store hears of its start would do so forever.
        """
        request = None if self._reserved else self._request()
        if request is None:
            self._store_took = 0.0
            return self._begin_reserved() if self._reserved else []
        log.debug("claiming up to %d jobs: %s", request.pooled, self._reason)
        began = time.monotonic()
        claimed = self._breaker.call(lambda: self._claim(request))
        if claimed is not None:
            self._prefetch.store_took(self._store_took + time.monotonic() - began)
        self._store_took = 0.0
        return [*(claimed or []), *self._begin_reserved()] if self._reserved else claimed or []

    def hand_back_reserved(self) -> None:
        """Hand back claims that no worker has received, because the node is stopping or a long run blocks them."""
        reserved, self._reserved = self._reserved, []
        for record in reserved:
            claim = self._in_flight.find(str(record.id), record.claims)
            if claim is not None:
                self._in_flight.hand_back(claim)

    def is_reserved(self, claim: InFlightRun) -> bool:
        """Return whether the claim has not been sent to the manager."""
        return any(record.id == claim.record.id for record in self._reserved)

    def _request(self) -> ClaimRequest | None:
        if not self._pooled_expected and not self._forced_expected:
            return None
        in_flight, settings = self._in_flight, self._settings
        taken = in_flight.pooled
        pooled = self._prefetch.demand(taken) if self._pooled_expected else 0
        free, data = max(0, self._prefetch.slots - taken), self._prefetch.data(in_flight.data)
        if not data:
            pooled = min(pooled, free)
        rooms = in_flight.concurrency.rooms() if in_flight.concurrency.slots else {}
        forced = MOST_FORCED + sum(rooms.values()) if self._forced_expected else 0
        if not pooled and not forced:
            return None
        queues = in_flight.room_by_queue(settings.queues) if settings.queues else {}
        due_by = self._due_by
        return ClaimRequest(
            pooled=pooled,
            forced=forced,
            queues=queues,
            due_by=due_by,
            data=data,
            free=free,
            rooms=rooms,
            shares=self._shares,
        )

    def _claim(self, request: ClaimRequest) -> list[Record]:
        now = self._store.now()
        claim = self._store.claim(self._holder, request, now, now + self._lease)
        self._in_flight.add(claim.records)
        count, forced = len(claim.records), 0
        ready: list[Record] = []
        for record in self._shares.count(claim.records, now):
            options = record.options
            if options.is_beside_pool:
                forced += 1
            if record.damage:
                self._end_unreadable(record, now)
            elif options.on_crash is OnCrash.FAIL or (
                record.claims > UNCOUNTED_CLAIMS and _has_left_no_attempt(record)
            ):
                self._reserved.append(record)
            else:
                ready.append(record)
        if request.pooled:
            self._pooled_expected = claim.has_more or count - forced >= request.pooled
        self._forced_expected = forced >= request.forced > 0
        self.next_at = claim.next_at
        self.begins_at = claim.begins_at
        return ready

    def _end_unreadable(self, record: Record, now: datetime) -> None:
        claim = self._in_flight.find(str(record.id), record.claims)
        assert claim is not None
        self._in_flight.finish(claim, unreadable(record), Run(node=self._holder.seat), now)

    def _begin_reserved(self) -> list[Record]:
        """Return reserved at-most-once jobs for the free slots, after storing that they have started."""
        self._reserved = [record for record in self._reserved if self._in_flight.find(str(record.id), record.claims)]
        waiting = Counter(_slots_of(record) for record in self._reserved)
        free: dict[str, float] = {_OWN_WORKER: math.inf}
        free[_POOL] = self._prefetch.slots - self._in_flight.pooled + waiting[_POOL]
        begun: list[Record] = []
        for record in self._reserved:
            place = _slots_of(record)
            if place not in free:
                free[place] = self._in_flight.concurrency.free_slots(place) + waiting[place]
            if free[place] > 0:
                free[place] -= 1
                begun.append(record)
        now = max(self._store.now(), self.begins_at or EPOCH)
        notes = {record.id: Note(started_at=now) for record in begun}
        if not begun or not self._breaker.carry_out(lambda: self._store.note(self._holder, notes)):
            return []
        for record in begun:
            claim = self._in_flight.find(str(record.id), record.claims)
            assert claim is not None
            claim.record = replace(claim.record, started_at=now)
            self._reserved.remove(record)
        return begun


def _has_left_no_attempt(record: Record) -> bool:
    """Return whether this many claims in a row left no attempt; steps and checks leave none either."""
    if record.course is not None or record.options.ready is not None:
        return False
    last = record.attempts[-1].claims if record.attempts else 0
    return record.claims - last > UNCOUNTED_CLAIMS


def _slots_of(record: Record) -> str:
    """Return for which slots the job waits: those of the pool, of its class, or none."""
    if record.options.concurrency > 1:
        return record.job
    return _OWN_WORKER if record.options.force_spawn else _POOL
