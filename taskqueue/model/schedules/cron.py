"""Cron expressions in a time zone, with written rules for the days on which its clocks change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone, tzinfo
from functools import cache
from heapq import merge
from itertools import groupby
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.schedules.durations import LATEST, instant, unknown_zone

UTC = "UTC"

YEARS = 30
"""How far ahead to search for a matching day: a 29th of February on a given weekday comes at least every 28 years."""

_ANY_TIME = datetime.fromisoformat("2000-01-01T00:00:00")


@dataclass(frozen=True)
class Cron:
    """Run at the local times that match the five fields of ``expr``: minute, hour, day, month, weekday.

    ``tz`` names an IANA zone. When its clocks change, a skipped local time runs at the first instant that exists after
    it, and a local time that comes twice runs once, the first time. If both day and weekday are restricted, a day
    matches if either does, as in every cron. ``@daily`` and the like are understood. The how-to about recurrence lists
    the forms of a field.
    """

    expr: str
    tz: str = UTC

    def __post_init__(self) -> None:
        if not isinstance(self.expr, str):
            from taskqueue.model.schedules.cron_fields import DAY_NUMBERS

            raise InvalidOption(f"cron {self.expr!r} is not text: write for example '15 3 * * 1-5'; {DAY_NUMBERS}")
        object.__setattr__(self, "expr", _checked(self.expr))
        _zone(self.tz)

    @property
    def follows_end(self) -> bool:
        """Return False: the next time does not depend on the end of a run."""
        return False

    def after(self, reference: datetime) -> datetime | None:
        """Return the first time strictly after ``reference``, None if there is none before the year 9000."""
        if reference >= LATEST:
            return None
        zone = _zone(self.tz)
        for local in local_times(self.expr, reference.astimezone(zone).replace(tzinfo=None, microsecond=0)):
            at = instant(local, zone)
            if at > reference:  # in the repeated hour, times that already had their run come before it
                return at if at < LATEST else None
        return None

    def document(self) -> dict[str, Any]:
        """Return the trigger as plain JSON values, for ``trigger`` to read back."""
        return {"trigger": "cron", "expr": self.expr, "tz": self.tz}

    def __str__(self) -> str:
        """Return the trigger in words."""
        return f"cron {self.expr} in {self.tz}"


def local_times(expr: str, after: datetime) -> Iterator[datetime]:
    """Yield the matching times after ``after`` in order, on a wall clock that ignores clock changes.

    Ends if there is none in ``YEARS``. Raises ``Unreadable``.
    """
    times = merge(*(_of_plain(plain, after) for plain in _read(expr)))
    return (local for local, _ in groupby(times))


def _of_plain(plain: str, after: datetime) -> Iterator[datetime]:
    from croniter import CroniterBadDateError, croniter

    times = croniter(plain, after, max_years_between_matches=YEARS)
    with suppress(CroniterBadDateError):
        while True:
            yield times.get_next(datetime)


@cache
def _checked(written: str) -> str:
    """Return the expression with single spaces, or raise ``InvalidOption``."""
    from taskqueue.model.schedules.cron_fields import SHORT, Unreadable, hint

    expr = " ".join(written.split())
    try:
        times = local_times(expr, _ANY_TIME)
    except Unreadable as unread:
        usual = f"write minute, hour, day, month and weekday, such as '15 3 * * 1-5', or one of {', '.join(SHORT)}"
        way_out = hint(written, _is_zone) or usual
        raise InvalidOption(f"cron {written!r} cannot be read, {unread}: {way_out}") from None
    if next(times, None) is None:
        raise InvalidOption(f"cron {written!r} matches no day: correct day and month")
    return expr


@cache
def _read(expr: str) -> tuple[str, ...]:
    from taskqueue.model.schedules.cron_fields import read  # most processes never meet a cron expression

    return read(expr)


def _is_zone(name: str) -> bool:
    try:
        _zone(name)
    except InvalidOption:
        return False
    return True


def in_zone(moment: datetime, tz: str) -> datetime:
    """Return the moment by the clock of the zone."""
    return moment.astimezone(_zone(tz))


@cache
def _zone(name: str) -> tzinfo:
    if not isinstance(name, str):
        raise InvalidOption(f"tz={name!r}: pass the name of a time zone such as 'Europe/Berlin'")
    if name.upper() == UTC:
        return timezone.utc
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise unknown_zone(name) from None
