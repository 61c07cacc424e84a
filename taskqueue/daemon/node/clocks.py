"""The clocks of a node: times of runs, a store's clock that is set forward, and the time by which retention counts.

Workers report times in seconds since the boot of the host, which no setting of a clock changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.model.wording import span

log = logging.getLogger(__name__)

PAUSE = 1_000_000
"""Maximum nanoseconds between the reads of two clocks: job times are in milliseconds, so that this shifts none."""

READS = 5
"""Maximum number of times two clocks are read."""


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
        """Return the current time of the store's clock, and the seconds since the boot.

        The first is cut to whole milliseconds, and the second by the same amount.
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


JUMP = 0.25
"""Part of a lease by which the clock may change at once without harm: it is renewed after a third of it."""

HEARD_WITHIN = 10.0
"""Seconds within which every node has asked a server for the new time."""


class ClockWatch:
    """Compares the store's clock with the time since the boot of this host.

    Without it, the node that looks first after a jump would rescue all jobs that other nodes are running.
    """

    def __init__(self, clock: Callable[[], datetime], lease: float, elapsed: Callable[[], float] = boottime) -> None:
        """``clock`` is the store's clock; ``lease`` and ``elapsed`` are in seconds, and no one can set the latter."""
        self._clock = clock
        self._lease = lease
        self._elapsed = elapsed
        self._ahead: float | None = None
        """Seconds by which the store's clock was ahead of ``elapsed`` at the last look."""
        self._looked_at = 0.0
        self._trusts_again_at = 0.0

    @property
    def trusts_ends(self) -> bool:
        """Return whether a lease that had ended at the last look was not renewed in time."""
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
            log.warning("the clock of the store was set back by %s: due times are that much further away", span(-jump))


NAMED_FROM = 3600.0
"""Seconds by which the clock is set forward, or no job has ended, before that is logged."""


TRUSTED_AFTER = 7 * 86400.0
"""Seconds after which a clock that is ahead is accepted anyway: it was right, or an operator has read the log."""


class RetentionClock:
    """The store's clock, as far as the time since the boot of this host confirms it.

    A clock that is set forward by days makes every job look old, and removed jobs do not come back when it is set back.
    """

    def __init__(self, clock: Callable[[], datetime], elapsed: Callable[[], float] = boottime) -> None:
        """``clock`` is the store's clock; ``elapsed`` is in seconds, and no one can set it."""
        self._clock = clock
        self._elapsed = elapsed
        self._began_at = clock()
        self._began = elapsed()
        self._jumped = self._began
        """When the clock was set forward last, in seconds of ``elapsed``."""
        self._ahead = 0.0
        """Seconds by which the clock was ahead of the confirmed time at the last look."""

    def begin_at(self, newest: datetime) -> None:
        """Start at the newest time in the store: nothing confirms what the clock has added to it since."""
        at = self._clock()
        self._began_at, self._began = min(newest, at), self._elapsed()
        self._ahead = (at - self._began_at).total_seconds()
        if self._ahead > NAMED_FROM:
            says = "no job has ended for %s: ended jobs are kept that much longer, up to %s"
            log.info(says, span(self._ahead), span(TRUSTED_AFTER))

    def now(self) -> datetime:
        """Return the time by which the age of jobs is measured."""
        at, elapsed = self._clock(), self._elapsed()
        confirmed = self._began_at + timedelta(seconds=elapsed - self._began)
        ahead = (at - confirmed).total_seconds()
        jump, self._ahead = ahead - self._ahead, ahead
        if jump > NAMED_FROM:
            self._jumped = elapsed
            says = (
                "ended jobs are kept %s longer, because the clock of the store was set forward: "
                "correct it if it is wrong; the new time counts in %s"
            )
            log.warning(says, span(jump), span(TRUSTED_AFTER))
        if ahead > 0 and elapsed - self._jumped >= TRUSTED_AFTER:
            self._began_at, self._began, self._ahead = at, elapsed, 0.0
        return min(at, confirmed)
