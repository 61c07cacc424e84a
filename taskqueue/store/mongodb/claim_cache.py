"""Caches the last scan for claimable jobs; says how long it stays valid."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.bells import NewJobs

FRESH_FOR = timedelta(milliseconds=100)
"""How long a scan stays valid for a node that gets all it asks for."""

SURE_FOR = timedelta(seconds=1)
"""How long a scan stays valid while the bell reports no new jobs."""

SCAN_WITHIN = timedelta(milliseconds=20)
"""How long a node may claim newly rung jobs before the next scan: a short job has ended by then."""


class ClaimCache:
    """The time of the last scan, the next due time, and the ranges found empty since."""

    def __init__(
        self, *, at: datetime, changes: NewJobs | None, next_at: datetime | None, lanes: Sequence[str]
    ) -> None:
        self._at = at
        self._changes = changes
        self._due_at = next_at
        self._owed_at: datetime | None = None
        self.lanes = lanes
        """The queues and lanes that have waiting jobs with limits."""
        self.was_full = False
        """Whether the last claim filled the demand."""
        self._empty: set[tuple[bool, str, str]] = set()

    def refresh_by(self, by: datetime) -> None:
        """Require a new scan by then: newer jobs may be due, or in an unknown lane."""
        self._owed_at = by if self._owed_at is None else min(self._owed_at, by)

    def note_early_claim(self, next_at: datetime | None) -> None:
        """Note the next due time, after the previous next job was claimed early."""
        self._due_at = next_at

    @property
    def next_at(self) -> datetime | None:
        """Return when a new scan is required: when the next job is due, or as ``refresh_by`` asked."""
        return min((moment for moment in (self._due_at, self._owed_at) if moment is not None), default=None)

    def is_sure(self, changes: NewJobs | None) -> bool:
        """Return whether the bell reports no new jobs since."""
        return changes is not None and changes == self._changes

    def has_only_plain(self, demand: ClaimRequest, changes: NewJobs | None) -> bool:
        """Return whether all new jobs since are plain, and no other one can be claimed: that takes no new scan."""
        if changes is None or self._changes is None or self._changes.all == changes.all:
            return False
        is_plain = changes.all - self._changes.all == changes.plain - self._changes.plain
        return is_plain and not self.lanes and (not demand.forced or self.is_empty(True))

    def has_one_new(self, demand: ClaimRequest, now: datetime, changes: NewJobs | None) -> bool:
        """Return whether one plain job is all that can be claimed, and the demand allows any plain job."""
        if changes is None or self._changes is None or changes.all != self._changes.all + 1:
            return False
        if not demand.pooled or demand.queues or (demand.data is not None and not demand.free):
            return False
        is_due = self.next_at is not None and self.next_at <= now
        return not is_due and self.is_empty(False) and self.has_only_plain(demand, changes)

    def claimed_plain(self, now: datetime, changes: NewJobs | None) -> datetime:
        """Note that a claim followed these plain jobs, after which the last scan stays valid; return by when."""
        self._changes = changes
        self.refresh_by(now + SURE_FOR)
        return now + SURE_FOR

    def may_claim_before_scan(self, now: datetime, changes: NewJobs | None) -> bool:
        """Return whether newly rung jobs may be claimed before the next scan."""
        if changes is None or self._changes is None or (self.next_at is not None and self.next_at <= now):
            return False
        return changes != self._changes and self._at <= now

    def holds(self, now: datetime, changes: NewJobs | None) -> bool:
        """Return whether the last scan is still valid."""
        if self.next_at is not None and self.next_at <= now:
            return False
        relied_on_for = SURE_FOR if self.is_sure(changes) else FRESH_FOR if self.was_full else timedelta(0)
        return timedelta(0) <= now - self._at < relied_on_for

    def is_empty(self, forced: bool, queue: str = "", lane: str = "") -> bool:
        """Return whether the range was empty at its last scan, and the bell reports no new jobs since."""
        return (forced, queue, lane) in self._empty

    def note_empty(self, forced: bool, queue: str = "", lane: str = "") -> None:
        """Note that the range is empty; without a bell that would not stay valid."""
        if self._changes is not None:
            self._empty.add((forced, queue, lane))

    def forget_empty(self, *, only_pool: bool) -> None:
        """Forget the empty ranges, or only the range of jobs without limits for the pool: new jobs may wait."""
        if only_pool:
            self._empty.discard((False, "", ""))
        else:
            self._empty.clear()
