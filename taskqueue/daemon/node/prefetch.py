"""Claim prefetch: how many jobs a node claims for its free slots, and in advance while runs are short."""

from __future__ import annotations

import math

from taskqueue.model.serializer import DATA_LIMIT

PREFETCH_SECONDS = 0.02
"""Seconds of work that are prefetched, and more while the store is slow, so that no worker waits for it.

While runs are short at least one job is prefetched for each slot. A crash repeats no more jobs than these.
"""

TURNS = 2
"""Turns of the node for which jobs are prefetched: it claims again when half of them are left."""

MOST_SECONDS = 0.1
"""Seconds of work that are prefetched at most, however slow the store is."""

MOST_PER_SLOT = 128
"""Jobs prefetched at most for each slot."""

PREFETCH_BYTES = 4 * 1024 * 1024
"""Bytes of data that a node may hold beside 1 MiB for each slot: a small urgent job waits behind what was claimed."""

SHORT_RUN = 0.05
"""Seconds; nothing is prefetched while runs take longer than this."""

_WEIGHT = 0.1


class Prefetch:
    """The demand of a node, based on the durations of its last runs and store calls."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._average_run: float | None = None
        self._is_off = False
        self._store_latency = 0.0

    def store_took(self, seconds: float) -> None:
        """Record how long the node waited for the store in one turn."""
        self._store_latency += (seconds - self._store_latency) * _WEIGHT

    def run_took(self, seconds: float) -> None:
        """Record how long a run took."""
        self._is_off = seconds > SHORT_RUN
        if self._average_run is None:
            self._average_run = seconds
            return
        self._average_run += (seconds - self._average_run) * (1.0 if seconds > SHORT_RUN else _WEIGHT)

    def stop_prefetching(self) -> None:
        """Stop prefetching: prefetched claims came back because a long run blocked them."""
        self._is_off = True

    @property
    def depth(self) -> int:
        """Return how many jobs may be prefetched beyond the free slots."""
        if self._average_run is None or self._is_off or self._average_run > SHORT_RUN:
            return 0
        seconds = min(max(PREFETCH_SECONDS, TURNS * self._store_latency), MOST_SECONDS)
        return self.slots * min(MOST_PER_SLOT, math.ceil(seconds / max(self._average_run, 1e-6)))

    def data(self, in_flight: int) -> int:
        """Return how many bytes of data to claim now; with enough in flight none, so that claims come in batches."""
        room = PREFETCH_BYTES + self.slots * DATA_LIMIT - in_flight
        return room if room > PREFETCH_BYTES // 2 else 0

    def demand(self, in_flight: int) -> int:
        """Return how many jobs to claim now; none if enough are prefetched, so that claims come in batches."""
        depth = self.depth
        if in_flight >= self.slots + depth // 2 and in_flight >= self.slots:
            return 0
        return self.slots + depth - in_flight
