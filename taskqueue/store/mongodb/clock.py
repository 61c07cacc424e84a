"""The server's clock, estimated between the moments when it is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from taskqueue.model.record import whole

ESTIMATE_FOR = 10.0
"""Seconds for which the local monotonic clock is trusted to run like the server's."""


class Clock:
    """What the server's clock says now, without a round trip each time."""

    def __init__(self, ask: Callable[[], datetime]) -> None:
        self._ask = ask
        self._known: tuple[datetime, float] | None = None

    def now(self) -> datetime:
        """Return the server's time in whole milliseconds, asking it if the last answer is too old."""
        known, at = self._known or (None, 0.0)
        passed = _monotonic() - at
        if known is None or passed > ESTIMATE_FOR:
            return self.asked()
        return whole(known + timedelta(seconds=passed))

    def asked(self) -> datetime:
        """Ask the server; its answer is taken for the middle of the round trip."""
        before = _monotonic()
        answer = self._ask()
        after = _monotonic()
        self._known = (answer, (before + after) / 2)
        return whole(answer + timedelta(seconds=(after - before) / 2))


def _monotonic() -> float:
    """Return seconds that pass also while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
