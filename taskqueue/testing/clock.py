"""A clock for stores that a test stops and moves."""

from __future__ import annotations

from datetime import datetime, timedelta

from taskqueue.errors import InvalidOption
from taskqueue.model.options import named
from taskqueue.model.schedules import Duration, seconds_of
from taskqueue.model.timestamps import host_time, whole


class MovableClock:
    """Follows the host's clock until it is stopped or moved; then it stands still, and moves forward on request."""

    def __init__(self) -> None:
        self._stands_at: datetime | None = None
        self.is_moved = False
        """Whether it was moved; real processes follow the host's clock, and disagree with it from then on."""

    def now(self) -> datetime:
        """Return the time as an aware UTC datetime, in whole milliseconds."""
        return self._stands_at or host_time()

    def stop(self) -> None:
        """Stop it at its current time."""
        self._stands_at = self.now()

    def move(self, by: Duration) -> datetime:
        """Move it forward by seconds, a timedelta or text such as ``"1h"``, and return the new time."""
        seconds: float = named("by", by, seconds_of)
        return self.move_to(self.now() + timedelta(seconds=seconds))

    def move_to(self, moment: datetime) -> datetime:
        """Move it forward to an aware time, and return that; raise ``InvalidOption`` for a time that has passed."""
        now = self.now()
        if moment.tzinfo is None:
            raise InvalidOption(f"the clock cannot move to {moment}: pass a time with a zone")
        moment = whole(moment)
        if moment < now:
            raise InvalidOption(f"the clock cannot move back from {now} to {moment}: pass a later time")
        self.is_moved = self.is_moved or moment > now
        self._stands_at = moment
        return moment
