"""How many jobs a node should claim: what its free slots can take, and a little ahead while runs are short."""

from __future__ import annotations

import math

from taskqueue.model.serializer import DATA_LIMIT

AHEAD_FOR = 0.02
"""Seconds of work that may be claimed ahead, and more while the store takes long, so that no worker waits for it.

While runs are short that is at least one for each slot. A crash repeats no more than that.
"""

TURNS = 2
"""For how many turns of the node there is work at hand: it claims again when half of that is left."""

LONGEST_AHEAD = 0.1
"""Seconds of work that may be claimed ahead, however slow the store is."""

MOST_AHEAD = 128
"""Jobs claimed ahead at most, for each slot."""

AHEAD_BYTES = 4 * 1024 * 1024
"""Bytes of data that a node may hold beside 1 MiB for each slot: a small urgent job waits behind what was claimed."""

SHORT = 0.05
"""Seconds; nothing is claimed ahead while runs take longer than this."""

_WEIGHT = 0.1


class Prefetch:
    """What a node wants, learnt from how long its last runs took."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._average: float | None = None
        self._forced_off = False
        self._turn = 0.0

    def wait(self, seconds: float) -> None:
        """Take in how long the node waited for the store in a turn."""
        self._turn += (seconds - self._turn) * _WEIGHT

    def learn(self, seconds: float) -> None:
        """Take in how long a run took."""
        self._forced_off = seconds > SHORT
        if self._average is None:
            self._average = seconds
            return
        self._average += (seconds - self._average) * (1.0 if seconds > SHORT else _WEIGHT)

    def lose(self) -> None:
        """Take in that claims ahead could not begin: a run lasts."""
        self._forced_off = True

    @property
    def ahead(self) -> int:
        """Return how many jobs may be claimed beyond the free slots."""
        if self._average is None or self._forced_off or self._average > SHORT:
            return 0
        seconds = min(max(AHEAD_FOR, TURNS * self._turn), LONGEST_AHEAD)
        return self.slots * min(MOST_AHEAD, math.ceil(seconds / max(self._average, 1e-6)))

    def data(self, in_flight: int) -> int:
        """Return how many bytes of data to claim now; with enough in flight none, so that claims come in batches."""
        room = AHEAD_BYTES + self.slots * DATA_LIMIT - in_flight
        return room if room > AHEAD_BYTES // 2 else 0

    def wanted(self, in_flight: int) -> int:
        """Return how many jobs to claim now; with enough ahead none, so that claims come in batches."""
        ahead = self.ahead
        if in_flight >= self.slots + ahead // 2 and in_flight >= self.slots:
            return 0
        return self.slots + ahead - in_flight
