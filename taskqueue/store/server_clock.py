"""The server's clock, estimated between the moments when it is asked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime

from taskqueue.model.timestamps import milliseconds, moment

ESTIMATE_FOR = 10.0
"""Seconds for which the local monotonic clock is trusted to run like the server's."""

ASK_FOR = 1.0
"""Seconds to wait for an answer if an estimate will do."""

NEAR = 0.005
"""Maximum number of seconds that a good answer takes; after a slower one, the server is asked again at once."""

ASKS = 3
"""Maximum number of times the server is asked: if it is far away, no answer is accurate."""

DRIFT = 0.0005
"""How many seconds the local clock gains on the server's per second at most: NTP speeds a clock up by no more."""


class ServerClock:
    """Tells the server's time without a round trip each time, also while the server is away.

    Rates count by it what several nodes start: a node whose estimate is too early would start a job too early.
    """

    def __init__(
        self,
        ask: Callable[[], datetime],
        error: type[Exception],
        within: Callable[[float], AbstractContextManager[object]],
        *,
        estimate_for: float = ESTIMATE_FOR,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """``ask`` asks the server and raises ``error`` if it does not answer, in a context ``within`` so many seconds.

        ``monotonic`` is the local clock; else the time since the boot of the host.
        """
        self._ask = ask
        self._error = error
        self._within = within
        self._estimate_for = estimate_for
        self._monotonic = monotonic or _monotonic
        self._known: tuple[float, float] | None = None
        """A time of the server in milliseconds since 1970, and of the monotonic clock at the same moment."""
        self._ask_at = 0.0

    def now(self) -> datetime:
        """Return the server's time in whole milliseconds, asking it if the last answer is too old.

        Raises what the driver raises only if the server has never answered: a node must know in an outage, too, when
        a job ended.
        """
        if self._known is None:
            return self.asked()
        if self._monotonic() > self._ask_at:
            self._ask_at = self._monotonic() + self._estimate_for
            with contextlib.suppress(self._error), self._within(ASK_FOR):
                return self.asked()
        return self._estimated(self._known)

    def estimate(self) -> datetime | None:
        """Return the server's time without asking; None if it must be asked. A node wants it for every outcome."""
        return None if self._known is None or self._monotonic() > self._ask_at else self._estimated(self._known)

    def asked(self) -> datetime:
        """Ask the server; the time is never ahead of the server's, but late by up to the answer's travel time.

        So nothing starts before its time, and no lease ends before its end.
        """
        now, took = self._asked_once()
        with contextlib.suppress(self._error):  # the first answer will do
            for _ in range(1, ASKS):
                if took < NEAR:
                    break
                now, took = self._asked_once()
        self._ask_at = self._monotonic() + self._estimate_for
        return now

    def _asked_once(self) -> tuple[datetime, float]:
        """Return the server's time and the seconds its answer took; an older answer may say better how far it is."""
        asked_at = self._monotonic()
        answer = milliseconds(self._ask())
        latest = float(answer)
        answered_at = self._monotonic()
        took = answered_at - asked_at
        if self._known is not None and self._estimate_for:
            reached = self._reached_by(answered_at, self._known)
            if reached < answer + 1 + took * 1000:  # the server, which tells whole milliseconds, may have been that far
                latest = max(latest, reached)
        self._known = (latest, answered_at)
        return moment(int(latest)), took  # not extrapolated: this process, or the server's clock, may stall

    def _reached_by(self, at: float, known: tuple[float, float]) -> float:
        """Return a time that the server has reached for certain, however much faster the local clock runs."""
        then, since = known
        return then + (at - since) * (1 - DRIFT) * 1000

    def _estimated(self, known: tuple[float, float]) -> datetime:
        then, at = known
        return moment(int(then + (self._monotonic() - at) * 1000))


def _monotonic() -> float:
    """Return seconds that also count while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
