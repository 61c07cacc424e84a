"""The time by which retention counts: the store's clock, believed a week after it got ahead of the time that passed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.wording import span

log = logging.getLogger(__name__)

NAMED_FROM = 3600.0
"""Seconds by which the clock is set forward, or no job has ended, before that is logged."""


TRUSTED_AFTER = 7 * 86400.0
"""Seconds after which a clock that is ahead counts all the same: it was right, or somebody has read the log by then."""


class RetentionClock:
    """The store's clock, as far as the time since the boot of this host confirms it.

    A clock that is set forward by days makes every job look old, and removed jobs do not come back when it is set back.
    """

    def __init__(self, clock: Callable[[], datetime], elapsed: Callable[[], float] = boottime) -> None:
        """``clock`` is that of the store; ``elapsed`` is in seconds, and nobody sets it."""
        self._clock = clock
        self._elapsed = elapsed
        self._began_at = clock()
        self._began = elapsed()
        self._jumped = self._began
        """When the clock was set forward last, in seconds of ``elapsed``."""
        self._ahead = 0.0
        """Seconds by which the clock was ahead of the confirmed time at the last look."""

    def begin_at(self, newest: datetime) -> None:
        """Begin at the newest time in the store: nothing confirms what the clock has added to it since."""
        at = self._clock()
        self._began_at, self._began = min(newest, at), self._elapsed()
        self._ahead = (at - self._began_at).total_seconds()
        if self._ahead > NAMED_FROM:
            says = "no job has ended for %s: ended jobs are kept longer by that, for up to %s"
            log.info(says, span(self._ahead), span(TRUSTED_AFTER))

    def now(self) -> datetime:
        """Return the time by which jobs are old."""
        at, elapsed = self._clock(), self._elapsed()
        confirmed = self._began_at + timedelta(seconds=elapsed - self._began)
        ahead = (at - confirmed).total_seconds()
        jump, self._ahead = ahead - self._ahead, ahead
        if jump > NAMED_FROM:
            self._jumped = elapsed
            says = (
                "ended jobs are kept longer by %s, for the clock of the store was set forward: "
                "set it if it is wrong; it counts in %s"
            )
            log.warning(says, span(jump), span(TRUSTED_AFTER))
        if ahead > 0 and elapsed - self._jumped >= TRUSTED_AFTER:
            self._began_at, self._began, self._ahead = at, elapsed, 0.0
        return min(at, confirmed)
