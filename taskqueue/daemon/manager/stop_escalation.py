"""Ends one child: SIGTERM now and again each second, SIGKILL after a grace."""

from __future__ import annotations

import logging
import signal
import time
from typing import Protocol

from taskqueue.daemon.runtime.loop import Loop, Timer

log = logging.getLogger(__name__)

SIGTERM_EVERY = 1.0
"""Seconds between two SIGTERM; an exception raised inside ``__del__`` or a C callback is lost, so it is repeated."""


class Process(Protocol):
    """The process to be ended."""

    @property
    def pid(self) -> int:
        """Return its id."""

    def signal(self, signum: int) -> None:
        """Send the process a signal."""

    def kill_group(self) -> None:
        """Kill the process and all others in its process group."""


class StopEscalation:
    """The escalation for one child, up to SIGKILL for its process group; times are of the monotonic clock."""

    def __init__(self, loop: Loop, child: Process, *, kill_at: float) -> None:
        self._loop = loop
        self._child = child
        self._signal_timer: Timer | None = None
        self._kill_timer = loop.at(kill_at, self._kill)

    def signal_now(self) -> None:
        """Send SIGTERM now and each second from now on."""
        self._child.signal(signal.SIGTERM)
        self.signal_later()

    def signal_later(self) -> None:
        """Send SIGTERM each second from now on; the first one has been sent."""
        self._signal_timer = self._loop.at(time.monotonic() + SIGTERM_EVERY, self.signal_now)

    def stop_signaling(self) -> None:
        """Stop sending SIGTERM; SIGKILL stays scheduled."""
        if self._signal_timer is not None:
            self._signal_timer.cancel()

    def hasten(self, kill_at: float) -> None:
        """Bring SIGKILL forward to ``kill_at``, unless it is due earlier."""
        if self._kill_timer.is_pending and kill_at < self._kill_timer.deadline:
            self._kill_timer.cancel()
            self._kill_timer = self._loop.at(kill_at, self._kill)

    def cancel(self) -> None:
        """Stop sending signals."""
        self.stop_signaling()
        self._kill_timer.cancel()

    def _kill(self) -> None:
        self.stop_signaling()
        log.warning("killing a worker that did not end in time: pid %d", self._child.pid)
        self._child.kill_group()
