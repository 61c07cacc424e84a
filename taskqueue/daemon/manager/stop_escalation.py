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

    def __init__(self, loop: Loop, child: Child, *, kills_at: float) -> None:
        self._loop = loop
        self._child = child
        self._asks: Timer | None = None
        self._kills = loop.at(kills_at, self._kill)

    def ask(self) -> None:
        """Ask the child to end what it does, now and from now on each second."""
        self._child.signal(signal.SIGTERM)
        self.ask_later()

    def ask_later(self) -> None:
        """Ask from now on each second: it has been asked already."""
        self._asks = self._loop.at(time.monotonic() + ASKED_EVERY, self.ask)

    def ask_no_more(self) -> None:
        """Leave it to the child: it ends, or is killed when its time is over."""
        if self._asks is not None:
            self._asks.cancel()

    def hasten(self, kills_at: float) -> None:
        """Kill at this moment, unless that is to happen before."""
        if self._kills.is_pending and kills_at < self._kills.deadline:
            self._kills.cancel()
            self._kills = self._loop.at(kills_at, self._kill)

    def stop(self) -> None:
        """Leave the child alone."""
        self.ask_no_more()
        self._kills.cancel()

    def _kill(self) -> None:
        self.ask_no_more()
        log.warning("killing a worker that did not end in time: pid %d", self._child.pid)
        self._child.signal_group(signal.SIGKILL)
