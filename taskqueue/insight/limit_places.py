"""Says which limits hold a waiting job back, which jobs have their places, and when the next place is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple, TypeAlias

from taskqueue.insight.busy_nodes import MOST_NAMED, in_words, longest_first
from taskqueue.model.controls import Controls
from taskqueue.model.limits import LimitKey, limit_keys_of
from taskqueue.model.query import RUNNING, And, Compare, Operator, Query
from taskqueue.model.record import Record
from taskqueue.model.wording import at, since, some
from taskqueue.store import Store

MOST_RUNS = 500
"""The most running jobs among which the holders of a limit are looked for."""

Mask: TypeAlias = Callable[[LimitKey], LimitKey]
"""Returns the key of a limit as it may be shown."""


class FullLimit(NamedTuple):
    """A limit that is used up."""

    limit_key: LimitKey
    """The key, with the number in force."""
    holders: list[Record]
    """The jobs that run with it, of the ``MOST_RUNS`` that are looked at, those first that run longest."""
    free_at: datetime | None
    """When a rate allows the next start; None if that depends on jobs that run."""

    def sentences(self, controls: Controls, now: datetime, mask: Mask) -> Iterator[str]:
        """Say what the limit allows, who holds its places, and when the next one is free."""
        change = controls.limit_of(self.limit_key)
        changed = "" if change is None else f", a number that holds {since(change, now)}"
        yield f"It is held back by a limit that is used up: {mask(self.limit_key)}{changed}."
        if self.holders:
            runs = some([in_words(record, now) for record in self.holders], MOST_NAMED)
            until = "" if self.limit_key.per is not None else " The end of one of them frees its place."
            yield f"Jobs that hold the limit: {runs}.{until}"
        if self.free_at is not None:
            yield f"The rate allows the next start {at(self.free_at, now)}."

    def in_short(self, now: datetime) -> str:
        """Return the same as a clause."""
        if self.free_at is not None:
            return f"the rate that it needs allows the next start {at(self.free_at, now)}"
        held = f", held by job {self.holders[0].id}" if self.holders else ""
        more = f" and {len(self.holders) - 1} more" if len(self.holders) > 1 else ""
        return f"a limit that it needs is used up{held}{more}"


def full_limits(store: Store, controls: Controls, record: Record, now: datetime) -> Iterator[FullLimit]:
    """Yield the limits of the job that are used up."""
    limit_keys = limit_keys_of(record.lane)
    used = store.limit_usage([limit_key.key for limit_key in limit_keys], now) if limit_keys else {}
    for limit_key in map(controls.now, limit_keys):
        over = used[limit_key.key] - limit_key.count
        if over >= 0:
            holders = [one for one in store.find(_runs(limit_key), limit=MOST_RUNS) if _has(one, limit_key)]
            ends = [] if limit_key.per is None else store.rate_ends(limit_key.key, now, over + 1)
            yield FullLimit(limit_key, longest_first(holders), ends[over] if len(ends) > over else None)


def _runs(limit_key: LimitKey) -> Query:
    """Return the query for the running jobs that may have the limit: those of one class, unless it has a name."""
    scope = limit_key.of.partition(" ")[0]
    return RUNNING if scope.startswith("name=") else And((RUNNING, Compare("job", Operator.EQ, scope)))


def _has(record: Record, limit_key: LimitKey) -> bool:
    return any(other.key == limit_key.key for other in limit_keys_of(record.lane))
