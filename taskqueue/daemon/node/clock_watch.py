"""Watches the store's clock: after it was set forward, leases that look ended are given time to be renewed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.wording import span

log = logging.getLogger(__name__)

JUMP = 0.25
"""Part of a lease by which the clock may change at once without harm: it is renewed when a third of it is over."""

HEARD_WITHIN = 10.0
"""Seconds within which every node has asked a server for the new time."""


class ClockWatch:
    """Compares the store's clock with the time since the boot of this host.

    Without it, the node that looks first after a jump would rescue all jobs that other nodes are running.
    """

    def __init__(self, clock: Callable[[], datetime], lease: float, elapsed: Callable[[], float] = boottime) -> None:
        """``clock`` is that of the store; ``lease`` is in seconds, as is the time of ``elapsed``, which nobody sets."""
        self._clock = clock
        self._lease = lease
        self._elapsed = elapsed
        self._ahead: float | None = None
        """Seconds by which the store's clock was ahead of ``elapsed`` at the last look."""
        self._looked_at = 0.0
        self._trusts_again_at = 0.0

    @property
    def trusts_ends(self) -> bool:
        """Return whether a lease that was over at the last look was not renewed in time."""
        return self._looked_at >= self._trusts_again_at

    def look(self) -> None:
        """Compare the clocks; after a jump forward, trust no ends of leases for a while."""
        now = self._looked_at = self._elapsed()
        ahead = self._clock().timestamp() - now
        jump = 0.0 if self._ahead is None else ahead - self._ahead
        self._ahead = ahead
        if jump > self._lease * JUMP:
            longer = self._lease + HEARD_WITHIN
            self._trusts_again_at = now + longer
            says = "the clock of the store was set forward by %s: leases of other nodes are trusted for %s"
            log.warning(says, span(jump), span(longer))
        elif jump < -self._lease * JUMP:
            log.warning("the clock of the store was set back by %s: due times come later by that", span(-jump))
