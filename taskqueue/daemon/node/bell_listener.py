"""Calls back when a bell of the store rings, and after each of its pauses, whose length may change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.runtime.loop import Loop, Timer
from taskqueue.store.bell import Bell

OPEN_AGAIN_AFTER = 1.0
"""Seconds after which to ask the store again for a bell that it could not open."""

SECOND_LOOK = 1.0
"""Seconds until the second look at a new bell: a change written just before it was opened no longer rings it."""


class BellListener:
    """The bells to which a node listens."""

    def __init__(self, loop: Loop, breaker: CircuitBreaker) -> None:
        self._loop = loop
        self._breaker = breaker
        self._watches: list[_Watch] = []

    def listen(self, open_bell: Callable[[], Bell], on_ring: Callable[[], None], on_pause: Callable[[], None]) -> None:
        """Open a bell and call back from then on; keep asking for it while the store does not answer."""
        bell = self._breaker.call(open_bell)
        if bell is None:
            self._loop.at(time.monotonic() + OPEN_AGAIN_AFTER, lambda: self.listen(open_bell, on_ring, on_pause))
            return
        self._watches.append(_Watch(self._loop, bell, on_ring, on_pause))

    def close(self) -> None:
        """Stop listening."""
        for watch in self._watches:
            watch.bell.close()


class _Watch:
    """One bell: its rings, and the timer of its pauses, set again when a ring brings another pause."""

    def __init__(self, loop: Loop, bell: Bell, on_ring: Callable[[], None], on_pause: Callable[[], None]) -> None:
        self.bell = bell
        self._loop = loop
        self._on_ring = on_ring
        self._on_pause = on_pause
        self._timer: Timer | None = None
        self._pause = bell.pause
        loop.watch(bell, self._ring)
        self._set_timer(SECOND_LOOK)

    def _ring(self) -> None:
        self.bell.clear()
        if self.bell.pause != self._pause:
            self._set_timer()
        self._on_ring()

    def _look(self) -> None:
        number = self.bell.fileno()
        if self.bell.renew():
            self._loop.unwatch(number)
            self._loop.watch(self.bell, self._ring)
        self._set_timer()
        self._on_pause()

    def _set_timer(self, longest: float = math.inf) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pause = self.bell.pause
        self._timer = self._loop.at(time.monotonic() + min(self._pause, longest), self._look)
