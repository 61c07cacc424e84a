"""The stop ladder of one child: it is asked by SIGTERM, asked again each second, and killed after a grace."""

from __future__ import annotations

import logging
import signal
import time

from taskqueue.daemon.runtime.child_process import Child
from taskqueue.daemon.runtime.loop import Loop, Timer

log = logging.getLogger(__name__)

ASKED_EVERY = 1.0
"""Seconds; an exception that was raised inside ``__del__`` or a C callback has vanished."""


class StopEscalation:
    """One way down, to SIGKILL for the child and its process group; moments are of the monotonic clock."""

    def __init__(self, loop: Loop, child: Child, *, kill_at: float) -> None:
        self._loop = loop
        self._child = child
        self._signal_timer: Timer | None = None
        self._kill_timer = loop.at(kill_at, self._kill)

    def signal_now(self) -> None:
        """Ask the child to end what it does, now and from now on each second."""
        self._child.signal(signal.SIGTERM)
        self.signal_later()

    def signal_later(self) -> None:
        """Ask from now on each second: it has been asked already."""
        self._signal_timer = self._loop.at(time.monotonic() + ASKED_EVERY, self.signal_now)

    def stop_signaling(self) -> None:
        """Leave it to the child: it ends, or is killed when its time is over."""
        if self._signal_timer is not None:
            self._signal_timer.cancel()

    def hasten(self, kill_at: float) -> None:
        """Kill at this moment, unless that is to happen before."""
        if self._kill_timer.is_pending and kill_at < self._kill_timer.deadline:
            self._kill_timer.cancel()
            self._kill_timer = self._loop.at(kill_at, self._kill)

    def cancel(self) -> None:
        """Leave the child alone."""
        self.stop_signaling()
        self._kill_timer.cancel()

    def _kill(self) -> None:
        self.stop_signaling()
        log.warning("killing a worker that did not end in time: pid %d", self._child.pid)
        self._child.signal_group(signal.SIGKILL)
