"""Prefetch while runs are short: how many jobs a node claims in advance, and how long a run of each job took."""

from __future__ import annotations

import math

from taskqueue.model.serializer import DATA_LIMIT

PREFETCH_SECONDS = 0.02
"""Seconds of work that are prefetched, and more while the store is slow, so that no worker waits for it.

While runs are short at least one job is prefetched for each slot. A crash repeats only these jobs, and those
whose outcomes are being settled.
"""

TURNS = 2
"""Turns of the node for which jobs are prefetched: it claims again when half of them are left."""

MOST_SECONDS = 0.1
"""Maximum seconds of work that are prefetched, however slow the store is."""

SHORTEST_RUN = PREFETCH_SECONDS / 128
"""Minimum seconds that a run counts for; shorter runs are limited by the node's own work for each."""

PREFETCH_BYTES = 4 * 1024 * 1024
"""Bytes of data that a node may hold beside 1 MiB for each slot: a small urgent job waits for the claimed jobs."""

SHORT_RUN = 0.05
"""Seconds; nothing is prefetched while runs take longer than this."""

_WEIGHT = 0.1
"""The share of the newest value in a moving average."""


def moving_average(before: float | None, value: float) -> float:
    """Return an average after one more value, in which older values count exponentially less; None if it is first."""
    return value if before is None else before + (value - before) * _WEIGHT


class RunTimes:
    """The expected duration of a run of each job: a long run counts at once, shorter ones lower the value slowly."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, job: str, seconds: float) -> None:
        """Record how long a run of ``job`` took."""
        self._seconds[job] = max(seconds, moving_average(self._seconds.get(job), seconds))

    def forget(self, job: str) -> None:
        """Expect nothing of a run of ``job`` until the next one has ended."""
        self._seconds.pop(job, None)

    def expected(self, job: str) -> float:
        """Return the expected seconds of a run of ``job``; infinity if unknown."""
        return self._seconds.get(job, math.inf)


class Prefetch:
    """The claim prefetch of a node, based on the durations of its last runs and store calls."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._run: float | None = None
        self._store_latency = 0.0
        self._is_off = False

    def store_took(self, seconds: float) -> None:
        """Record how long the node waited for the store in one turn."""
        self._store_latency = moving_average(self._store_latency, seconds)

    def run_took(self, seconds: float) -> None:
        """Record how long a run took."""
        self._is_off = seconds > SHORT_RUN
        self._run = seconds if self._is_off else moving_average(self._run, seconds)

    def stop_prefetching(self) -> None:
        """Stop prefetching: prefetched claims came back because a long run blocked them."""
        self._is_off = True

    @property
    def depth(self) -> int:
        """Return how many jobs may be prefetched beyond the free slots."""
        run = self._run
        if run is None or self._is_off or run > SHORT_RUN:
            return 0
        seconds = min(max(PREFETCH_SECONDS, TURNS * self._store_latency), MOST_SECONDS)
        return self.slots * math.ceil(seconds / max(run, SHORTEST_RUN))

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
