"""The limits in use: who holds their places now, and how many jobs wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskqueue.model.controls import Control
from taskqueue.model.limits import LimitKey
from taskqueue.model.query import RUNNING
from taskqueue.model.record import Record
from taskqueue.store import Store

MOST_RUNS = 500
"""The most running jobs that are looked at."""

MOST_WAITING = 20_000
"""The most waiting jobs that are counted."""

MOST_KEYS = 100
"""The most limit keys that are returned unless more are asked for."""


@dataclass(frozen=True, kw_only=True)
class LimitState:
    """A limit key with jobs: what it allows, and what it holds back."""

    limit_key: LimitKey
    """The key, with the number in force."""
    control: Control | None
    """The operator's change of the number; None where it is as declared."""
    used: int
    """How many of its places are taken; under a rate, also by starts of jobs that do not run any more."""
    waiting: int
    """How many jobs with this key wait, whatever for, of the ``MOST_WAITING`` that are counted."""
    holders: Sequence[Record]
    """The jobs that run with this key, of the ``MOST_RUNS`` that are looked at."""

    @property
    def is_full(self) -> bool:
        """Return whether no further job can begin."""
        return self.used >= self.limit_key.count


def limit_states(store: Store, most: int = MOST_KEYS) -> list[LimitState]:
    """Return the limits of running and waiting jobs, full ones first; of many the ``most`` with most waiting jobs.

    As many as ``most`` may not be all.
    """
    now, controls = store.now(), store.controls()
    holders: dict[LimitKey, list[Record]] = {}
    waiting: dict[LimitKey, int] = {}
    for record in store.find(RUNNING, limit=MOST_RUNS):
        for limit_key in controls.limit_keys(record.lane):
            holders.setdefault(limit_key, []).append(record)
    for lane, number in store.waiting_lanes(MOST_WAITING).items():
        for limit_key in controls.limit_keys(lane):
            waiting[limit_key] = waiting.get(limit_key, 0) + number
    wanted = sorted({*holders, *waiting}, key=lambda one: (-waiting.get(one, 0), one.key))[:most]
    used = store.limit_usage(sorted({limit_key.key for limit_key in wanted}), now)
    found = [
        LimitState(
            limit_key=limit_key,
            control=controls.limit_of(limit_key),
            used=used[limit_key.key],
            waiting=waiting.get(limit_key, 0),
            holders=holders.get(limit_key, []),
        )
        for limit_key in wanted
    ]
    return sorted(found, key=lambda one: not (one.is_full and one.waiting))
