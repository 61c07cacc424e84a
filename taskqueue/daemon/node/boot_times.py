"""Converts times of runs to the store's clock.

Workers report them in seconds since the boot of the host, which no setting of a clock changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

PAUSE = 1_000_000
"""Nanoseconds between the reads of two clocks that shift no time: the times of jobs are in milliseconds."""

READS = 5
"""How often two clocks are read at most."""


class BootTimes:
    """The store's clock beside the seconds since the boot of this host."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """``now`` is the clock of the store."""
        self._now = now

    def moment(self, at: float) -> datetime:
        """Return the time on the store's clock that was ``at`` seconds after the boot."""
        now, since_boot = self.present()
        return now + timedelta(seconds=at - since_boot)

    def present(self) -> tuple[datetime, float]:
        """Return the present time of the store's clock, and the seconds since the boot.

        The first is in whole milliseconds: as much as they leave off of this host's clock is left off the second.
        A pause between the reads would shift each time that is converted by its length: they are read again then.
        """
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for _ in range(READS):
            left_off, now = time.time_ns() % 1_000_000, self._now()  # in this order no start is too early
            after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            if after - before < PAUSE:
                break
            before = after
        return now, (after - left_off) / 1_000_000_000
