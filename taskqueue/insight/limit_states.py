"""How far limits are used: which jobs hold their places, and how many wait with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from taskqueue.model.controls import Control, Controls
from taskqueue.model.history import MOST_CLASSES
from taskqueue.model.limits import LimitKey
from taskqueue.model.query import RUNNING
from taskqueue.model.record import Record
from taskqueue.store import Store

MOST_RUNS = 500
"""Maximum number of running jobs that are read."""

MOST_WAITING = 20_000
"""Maximum number of waiting jobs that are counted."""

MOST_KEYS = 100
"""Maximum number of limit keys that are returned unless more are asked for."""

MOST_COUNTED_KEYS = 1_000
"""Maximum number of limit keys whose use the metrics count."""


@dataclass(frozen=True, kw_only=True)
class LimitState:
    """A limit key with jobs: what it allows, and what it holds back."""

    limit_key: LimitKey
    """The key, with the active number."""
    control: Control | None
    """The operator's change of the number; None if it has its declared number."""
    used: int
    """How many of its places are taken; under a rate, starts of jobs that no longer run count too."""
    waiting: int
    """How many jobs with this key wait, for whatever reason, of the ``MOST_WAITING`` that are counted."""
    holders: Sequence[Record]
    """The jobs that run with this key, of the ``MOST_RUNS`` that are read."""

    @property
    def is_full(self) -> bool:
        """Return whether no further job can start."""
        return self.used >= self.limit_key.count


def limit_states(store: Store, families: Collection[str] = (), most: int = MOST_KEYS) -> list[LimitState]:
    """Return the limits of running and waiting jobs, full ones first; of many the ``most`` with most waiting jobs.

    With ``families``, such as ``limit:name=api``, it returns only limits of these. As many as ``most`` may not be all.
    """
    controls = store.controls()
    holders, waiting = _jobs(store, controls)
    of_families = (key for key in {**holders, **waiting} if not families or key.family in families)
    limit_keys = _most_waiting_first(of_families, waiting)[:most]
    used = store.limit_usage(sorted({limit_key.key for limit_key in limit_keys}), store.now())
    states = [
        LimitState(
            limit_key=limit_key,
            control=controls.limit_of(limit_key),
            used=used[limit_key.key],
            waiting=waiting.get(limit_key, 0),
            holders=holders.get(limit_key, []),
        )
        for limit_key in limit_keys
    ]
    return sorted(states, key=lambda state: not (state.is_full and state.waiting))


class LimitUse(NamedTuple):
    """How far a limit is used, whatever it counts by."""

    used: int
    """How many places of its fullest key are taken, among the keys that are counted (``MOST_COUNTED_KEYS``)."""
    size: int
    """How many places that key has."""
    waiting: int
    """How many jobs with this limit wait, for whatever reason, of the ``MOST_WAITING`` that are counted."""


def limit_uses(store: Store) -> dict[str, LimitUse]:
    """Return the use of each limit by its family, of ``MOST_CLASSES`` at most, those with most waiting jobs first.

    These are limits of the ``MOST_RUNS`` running and ``MOST_WAITING`` waiting jobs that are read. The places of their
    ``MOST_COUNTED_KEYS`` keys are counted that come first in their families, by their numbers of waiting jobs.
    """
    holders, waiting = _jobs(store, store.controls())
    families: dict[str, list[LimitKey]] = {}
    for limit_key in _most_waiting_first({**holders, **waiting}, waiting):
        if limit_key.family in families or len(families) < MOST_CLASSES:
            families.setdefault(limit_key.family, []).append(limit_key)
    in_turn = [key for keys in zip_longest(*families.values()) for key in keys if key is not None]
    used = store.limit_usage(sorted({limit_key.key for limit_key in in_turn[:MOST_COUNTED_KEYS]}), store.now())
    uses = {}
    for family, limit_keys in families.items():
        counted = [limit_key for limit_key in limit_keys if limit_key.key in used]
        fullest = max(counted, key=lambda limit_key: used[limit_key.key] / max(limit_key.count, 1))
        number = sum(waiting.get(limit_key, 0) for limit_key in limit_keys)
        uses[family] = LimitUse(used[fullest.key], fullest.count, number)
    return uses


def _jobs(store: Store, controls: Controls) -> tuple[dict[LimitKey, list[Record]], dict[LimitKey, int]]:
    """Return the running jobs and the number of waiting jobs of each limit key."""
    holders: dict[LimitKey, list[Record]] = {}
    waiting: dict[LimitKey, int] = {}
    for record in store.find(RUNNING, limit=MOST_RUNS):
        for limit_key in controls.limit_keys(record.lane):
            holders.setdefault(limit_key, []).append(record)
    for lane, number in store.waiting_lanes(MOST_WAITING).items():
        for limit_key in controls.limit_keys(lane):
            waiting[limit_key] = waiting.get(limit_key, 0) + number
    return holders, waiting


def _most_waiting_first(limit_keys: Iterable[LimitKey], waiting: Mapping[LimitKey, int]) -> list[LimitKey]:
    return sorted(limit_keys, key=lambda limit_key: (-waiting.get(limit_key, 0), limit_key.key))
