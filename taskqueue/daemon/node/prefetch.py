"""How many jobs a node should claim: what its free slots can take, and a little ahead while runs are short."""

from __future__ import annotations

import math

from taskqueue.model.serializer import DATA_LIMIT

PREFETCH_SECONDS = 0.02
"""Seconds of work that may be claimed ahead, and more while the store takes long, so that no worker waits for it.

While runs are short that is at least one for each slot. A crash repeats no more than that.
"""

TURNS = 2
"""For how many turns of the node there is work at hand: it claims again when half of that is left."""

MOST_SECONDS = 0.1
"""Seconds of work that may be claimed ahead, however slow the store is."""

MOST_PER_SLOT = 128
"""Jobs claimed ahead at most, for each slot."""

PREFETCH_BYTES = 4 * 1024 * 1024
"""Bytes of data that a node may hold beside 1 MiB for each slot: a small urgent job waits behind what was claimed."""

SHORT_RUN = 0.05
"""Seconds; nothing is claimed ahead while runs take longer than this."""

_WEIGHT = 0.1


class Prefetch:
    """What a node wants, learnt from how long its last runs took."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._average_run: float | None = None
        self._is_off = False
        self._store_latency = 0.0

    def store_took(self, seconds: float) -> None:
        """Take in how long the node waited for the store in a turn."""
        self._store_latency += (seconds - self._store_latency) * _WEIGHT

    def run_took(self, seconds: float) -> None:
        """Take in how long a run took."""
        self._is_off = seconds > SHORT_RUN
        if self._average_run is None:
            self._average_run = seconds
            return
        self._average_run += (seconds - self._average_run) * (1.0 if seconds > SHORT_RUN else _WEIGHT)

    def stop_prefetching(self) -> None:
        """Take in that claims ahead could not begin: a run lasts."""
        self._is_off = True

    @property
    def depth(self) -> int:
        """Return how many jobs may be claimed beyond the free slots."""
        if self._average_run is None or self._is_off or self._average_run > SHORT_RUN:
            return 0
        seconds = min(max(PREFETCH_SECONDS, TURNS * self._store_latency), MOST_SECONDS)
        return self.slots * min(MOST_PER_SLOT, math.ceil(seconds / max(self._average_run, 1e-6)))

    def data(self, in_flight: int) -> int:
        """Return how many bytes of data to claim now; with enough in flight none, so that claims come in batches."""
        room = PREFETCH_BYTES + self.slots * DATA_LIMIT - in_flight
        return room if room > PREFETCH_BYTES // 2 else 0

    def demand(self, in_flight: int) -> int:
        """Return how many jobs to claim now; with enough ahead none, so that claims come in batches."""
        depth = self.depth
        if in_flight >= self.slots + depth // 2 and in_flight >= self.slots:
            return 0
        return self.slots + depth - in_flight
