"""The five fields of a cron expression, read into the times and days that they name; every host reads them alike.

A field is ``*`` or a list of numbers, names, ranges and steps: ``5``, ``mon``, ``9-17``, ``22-2`` (over the end and on
from the beginning), ``*/15``, ``5/15`` (from 5 to the end), ``9-17/2``. A day may also be ``L``, the last of the month,
a weekday ``fri#2``, the second in the month, or ``L5``, the last Friday; both may be ``?`` for ``*``.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta

YEARS = 30
"""How far ahead a matching day is looked for: a 29th of February on a given weekday comes at least each 28 years."""

LAST = 0
"""The number of the last weekday in a month; others count from 1."""

SHORT: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_DAY = timedelta(days=1)
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_PART = re.compile(r"(?P<low>\*|\w+)(-(?P<high>\w+))?(/(?P<step>[0-9]{1,4}))?")
_NUMBERED = re.compile(r"(?P<weekday>\w+)#(?P<number>[1-5])")
_NUMBER = re.compile(r"[0-9]{1,4}")


class Unreadable(ValueError):
    """A field, as it was written, names nothing."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What the numbers of a field mean."""

    first: int
    last: int
    names: Mapping[str, int] = field(default_factory=dict)
    highest: int
    """The highest number that may be written: 7 is Sunday, as 0 is."""

    @property
    def size(self) -> int:
        """Return how many there are."""
        return self.last - self.first + 1


_MINUTE = _Kind(first=0, last=59, highest=59)
_HOUR = _Kind(first=0, last=23, highest=23)
_MONTH_DAY = _Kind(first=1, last=31, highest=31)
_MONTH = _Kind(first=1, last=12, highest=12, names=_MONTHS)
_WEEKDAY = _Kind(first=0, last=6, highest=7, names=_WEEKDAYS)


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The times of a day, and what makes a day one of those; weekdays count from Sunday, 0."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    has_last_day: bool
    months: frozenset[int]
    weekdays: frozenset[int]
    numbered: frozenset[tuple[int, int]]
    """Weekdays with their number in the month."""
    is_either: bool
    """Whether both day and weekday are restricted, so that one of them is enough."""

    def times(self, after: datetime) -> Iterator[datetime]:
        """Yield the matching times behind ``after`` in order, up to a gap of ``YEARS``."""
        day = self._next_day(after.date())
        while day is not None:
            for hour in self.hours:
                if day > after.date() or hour >= after.hour:
                    found = (datetime.combine(day, time(hour, minute)) for minute in self.minutes)
                    yield from (at for at in found if at > after)
            day = self._next_day(day + _DAY)

    def _next_day(self, day: date) -> date | None:
        """Return the first day that matches, from ``day`` on."""
        until = date(min(day.year + YEARS, date.max.year - 1), 12, 31)
        while day <= until:
            if self._includes(day):
                return day
            day += _DAY
        return None

    def _includes(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        weekday = day.isoweekday() % 7
        is_day = day.day in self.days or (self.has_last_day and _is_in_last(day, 1))
        is_weekday = weekday in self.weekdays
        if not is_weekday and self.numbered:
            is_last = (weekday, LAST) in self.numbered and _is_in_last(day, 7)
            is_weekday = is_last or (weekday, (day.day + 6) // 7) in self.numbered
        return is_day or is_weekday if self.is_either else is_day and is_weekday


def read(expr: str) -> Fields:
    """Return the fields of an expression with single spaces; raise ``Unreadable``, naming the field."""
    written = SHORT.get(expr.lower(), expr).lower().split(" ")
    if len(written) != 5:
        raise Unreadable(f"it has {len(written)} fields")
    minute, hour, day, month, weekday = [
        "*" if one == "?" and place in (2, 4) else one for place, one in enumerate(written)
    ]
    days = [part for part in day.split(",") if part != "l"]
    numbered = {part: _numbered(part) for part in weekday.split(",")}
    weekdays = [part for part, found in numbered.items() if found is None]
    return Fields(
        minutes=tuple(sorted(_values(minute, _MINUTE))),
        hours=tuple(sorted(_values(hour, _HOUR))),
        days=_values(",".join(days), _MONTH_DAY) if days else frozenset(),
        has_last_day="l" in day.split(","),
        months=_values(month, _MONTH),
        weekdays=_values(",".join(weekdays), _WEEKDAY) if weekdays else frozenset(),
        numbered=frozenset(found for found in numbered.values() if found is not None),
        is_either="*" not in day.split(",") and "*" not in weekday.split(","),
    )


def _values(written: str, kind: _Kind) -> frozenset[int]:
    return frozenset(value for part in written.split(",") for value in _range(part, kind))


def _range(part: str, kind: _Kind) -> list[int]:
    """Return the numbers that a part of a list names."""
    found = _PART.fullmatch(part)
    if found is None or (found["low"] == "*" and found["high"]):
        raise Unreadable(f"{part!r} names nothing")
    step = int(found["step"] or 1)
    if step == 0:
        raise Unreadable(f"{part!r} has no step")
    low = kind.first if found["low"] == "*" else _value(found["low"], kind, part)
    if found["low"] == "*" or (found["step"] and not found["high"]):
        return list(range(kind.first if low > kind.last else low, kind.last + 1, step))
    high = _value(found["high"], kind, part) if found["high"] else low
    if low > kind.last:  # Sunday as the first of a range
        low, high = kind.first, high % kind.size
    if high < low:
        high += kind.size
    return [(value - kind.first) % kind.size + kind.first for value in range(low, high + 1, step)]


def _value(written: str, kind: _Kind, part: str) -> int:
    value = kind.names.get(written)
    if value is None and _NUMBER.fullmatch(written):
        value = int(written)
    if value is None or not kind.first <= value <= kind.highest:
        raise Unreadable(f"{part!r} is out of range")
    return value


def _numbered(part: str) -> tuple[int, int] | None:
    """Return the weekday and its number in the month that the part names; None for another part."""
    found = _NUMBERED.fullmatch(part)
    if found is not None:
        return _value(found["weekday"], _WEEKDAY, part) % 7, int(found["number"])
    if part.startswith("l") and len(part) > 1:
        return _value(part[1:], _WEEKDAY, part) % 7, LAST
    return None


def _is_in_last(day: date, days: int) -> bool:
    """Tell whether the day is one of so many at the end of its month."""
    return day.day > calendar.monthrange(day.year, day.month)[1] - days
