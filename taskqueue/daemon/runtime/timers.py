"""Timers: a resettable one on the clock of the loop or the store, and a periodic one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from taskqueue.daemon.runtime.loop import Loop, Timer


class ResettableTimer:
    """Calls back once, at the time set last; at once if that time has passed."""

    def __init__(self, loop: Loop, clock: Callable[[], datetime], callback: Callable[[], None]) -> None:
        """Create a timer that is not set; ``clock`` returns the time of the store."""
        self._loop = loop
        self._clock = clock
        self._callback = callback
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        """Return whether the timer is set and has not fired."""
        return self._timer is not None and self._timer.is_pending

    def after(self, seconds: float) -> None:
        """Call back after this many seconds."""
        self._set(time.monotonic() + seconds)

    def at(self, moment: datetime, delay: float = 0.0) -> None:
        """Call back ``delay`` seconds after a time of the store's clock, or after now if that has passed."""
        self._set(max(on_loop_clock(moment, self._clock), time.monotonic()) + delay)

    def no_later_than(self, moment: datetime) -> None:
        """Call back at a time of the store's clock, unless the timer is set to an earlier one."""
        deadline = on_loop_clock(moment, self._clock)
        if self._timer is None or not self._timer.is_pending or self._timer.deadline > deadline:
            self._set(deadline)

    def cancel(self) -> None:
        """Do not call back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, deadline: float) -> None:
        self.cancel()
        self._timer = self._loop.at(deadline, self._callback)


def on_loop_clock(moment: datetime, clock: Callable[[], datetime]) -> float:
    """Convert a time of the store's ``clock``, which has whole milliseconds, to the loop's clock."""
    seconds = (moment - clock()).total_seconds() - time.time() % 0.001
    return time.monotonic() + seconds


def every(loop: Loop, seconds: float, callback: Callable[[], None]) -> None:
    """Call back every ``seconds`` as long as the loop runs."""

    def again() -> None:
        loop.at(time.monotonic() + seconds, again)
        callback()

    loop.at(time.monotonic() + seconds, again)
