"""Being called back: once at a moment of the loop's clock or the store's, or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from taskqueue.daemon.runtime.loop import Loop, Timer


class ResettableTimer:
    """Calls back once, at the moment that was named last; a moment that is over is now."""

    def __init__(self, loop: Loop, clock: Callable[[], datetime], callback: Callable[[], None]) -> None:
        """Be off; ``clock`` tells the time of the store."""
        self._loop = loop
        self._clock = clock
        self._callback = callback
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        """Tell whether the call is still to come."""
        return self._timer is not None and self._timer.is_pending

    def after(self, seconds: float) -> None:
        """Call back after so many seconds."""
        self._set(time.monotonic() + seconds)

    def at(self, moment: datetime, delay: float = 0.0) -> None:
        """Call back so many seconds after a moment of the store's clock, or from now if that is over."""
        self._set(max(on_loop_clock(moment, self._clock), time.monotonic()) + delay)

    def no_later_than(self, moment: datetime) -> None:
        """Call back at a moment of the store's clock, unless the call comes sooner anyway."""
        deadline = on_loop_clock(moment, self._clock)
        if self._timer is None or not self._timer.is_pending or self._timer.deadline > deadline:
            self._set(deadline)

    def off(self) -> None:
        """Do not call back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, deadline: float) -> None:
        self.off()
        self._timer = self._loop.at(deadline, self._callback)


def on_loop_clock(moment: datetime, clock: Callable[[], datetime]) -> float:
    """Return the time of the loop's clock at a moment of the store's ``clock``, which tells whole milliseconds only."""
    to_come = (moment - clock()).total_seconds() - time.time() % 0.001
    return time.monotonic() + to_come


def every(loop: Loop, seconds: float, callback: Callable[[], None]) -> None:
    """Call back again and again, as long as the loop runs."""

    def again() -> None:
        loop.at(time.monotonic() + seconds, again)
        callback()

    loop.at(time.monotonic() + seconds, again)
