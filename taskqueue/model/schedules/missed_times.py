"""Finds the times of a trigger that have passed, the newest ones if there are many."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Protocol

AT_MOST = 1000
"""The most times that one call returns; it only counts that many more."""

_FIRST_LOOK = timedelta(minutes=1)


class Clockwork(Protocol):
    """A trigger whose times depend on no run."""

    def after(self, reference: datetime) -> datetime | None:
        """Return the first time strictly after ``reference``."""


def come(trigger: Clockwork, first: datetime, now: datetime, limit: int = AT_MOST) -> list[datetime]:
    """Return the newest ``limit`` times from ``first``, a time itself, to ``now``, in order, at a bounded cost."""
    back = _FIRST_LOOK
    while True:
        since = max(now - back, first)
        found = [first] if since == first and first <= now else []
        found += _until(trigger, since, now)
        if since == first or len(found) >= limit:
            return found[-limit:]
        back *= 2


def count(trigger: Clockwork, first: datetime, before: datetime, limit: int = AT_MOST) -> int:
    """Return how many times there are from ``first``, which is one, to before ``before``, ``limit`` at most."""
    number, time = 0, first
    while time < before and number < limit:
        number += 1
        following = trigger.after(time)
        if following is None:
            break
        time = following
    return number


def _until(trigger: Clockwork, since: datetime, now: datetime) -> Iterator[datetime]:
    time = trigger.after(since)
    while time is not None and time <= now:
        yield time
        time = trigger.after(time)
