"""Decisions of people about failures of one class with one error: that they are muted, or resolved.

A decision is the data of a lease that nobody holds, and so it survives every node and a flush. Whether it still
applies follows from the history: nothing has to be written when an error happens again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from operator import attrgetter

from taskqueue.model.fingerprint import group_id
from taskqueue.model.reading import readable
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.model.wording import minute
from taskqueue.store import Lease

PREFIX = "failure:"
"""The prefix of the leases that hold decisions; the id of the group follows."""


class FailureState(str, Enum):
    """Whether failures of one class with one error are reported, and why not."""

    __str__ = str.__str__

    OPEN = "open"
    """Nothing is decided, or the decision has ended."""
    MUTED = "muted"
    RESOLVED = "resolved"
    REGRESSED = "regressed"
    """It was resolved, and an attempt has failed since: within the last hour, or the days whose minutes are known."""

    @property
    def is_silent(self) -> bool:
        """Return whether such failures are neither findings nor notified."""
        return self in (FailureState.MUTED, FailureState.RESOLVED)


@dataclass(frozen=True, kw_only=True)
class FailureDecision:
    """A person's decision about the failures of one class with one error."""

    job: str
    fingerprint: str
    state: FailureState
    """``MUTED`` or ``RESOLVED``."""
    since: datetime
    by: str
    reason: str = ""
    until: datetime | None = None
    """When failures are reported again; None of muted ones: when they grow, or happen again after they had stopped."""
    share: float | None = None
    """The share of attempts that failed so when they were muted; None if it is not known."""

    @property
    def id(self) -> str:
        """Return the id of the group."""
        return group_id(self.job, self.fingerprint)

    def has_ended(self, now: datetime) -> bool:
        """Return whether its time has passed."""
        return self.until is not None and self.until <= now

    def says(self, now: datetime) -> str:
        """Return what was decided, since when, by whom and why: ``muted until 14:02, since 12:02 by ann (why)``."""
        again = "it happens again or grows" if self.until is None else minute(self.until, now)
        until = f" until {again}," if self.state is FailureState.MUTED else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{until} since {minute(self.since, now)} by {self.by}{reason}"


Decisions = Mapping[tuple[str, str], FailureDecision]
"""The decisions by class and fingerprint."""


def decisions_of(leases: Iterable[Lease]) -> dict[tuple[str, str], FailureDecision]:
    """Return the decisions that a store keeps, the oldest first; one that cannot be read is left out."""
    of_failures = (lease for lease in leases if lease.name.startswith(PREFIX))
    decisions = sorted(readable(of_failures, _decision, "a decision about failures"), key=attrgetter("since"))
    return {(decision.job, decision.fingerprint): decision for decision in decisions}


def facts_of(decision: FailureDecision) -> dict[str, object]:
    """Return the decision in plain JSON values, as its lease has them."""
    return {
        "job": decision.job,
        "fingerprint": decision.fingerprint,
        "state": decision.state.value,
        "since": milliseconds(decision.since),
        "by": decision.by,
        "reason": decision.reason,
        "until": None if decision.until is None else milliseconds(decision.until),
        "share": decision.share,
    }


def _decision(lease: Lease) -> FailureDecision:
    names = ("job", "fingerprint", "state", "by", "reason")
    job, fingerprint, state, by, reason = (str(lease.about[name]) for name in names)
    since, until, share = lease.about["since"], lease.about["until"], lease.about.get("share")
    if not isinstance(since, int) or not isinstance(until, int | None):
        raise TypeError("a time of a decision is not a number")
    if not isinstance(share, float | None):
        raise TypeError("the share of a decision is not a number")
    return FailureDecision(
        job=job,
        fingerprint=fingerprint,
        state=FailureState(state),
        since=moment(since),
        by=by,
        reason=reason,
        until=None if until is None else moment(until),
        share=share,
    )
