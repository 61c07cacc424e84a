"""The five fields of a cron expression, read into the numbers that they name; every host reads them alike.

A field is ``*`` or a list of numbers, names, ranges and steps: ``5``, ``mon``, ``9-17``, ``22-2`` (over the end and on
from the beginning), ``*/15``, ``5/15`` (from 5 to the end), ``9-17/2``. A day may also be ``L``, the last of the month,
a weekday ``fri#2``, the second in the month, or ``L5``, the last Friday; both may be ``?`` for ``*``.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from dataclasses import field

from taskqueue.model.lazy_dataclass import dataclass

SHORT: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_PART = r"(?P<low>\*|\w+)(-(?P<high>\w+))?(/(?P<step>[0-9]{1,4}))?"
_NUMBERED = r"(?P<weekday>\w+)#(?P<number>[1-5])"
_NUMBER = r"[0-9]{1,4}"


class Unreadable(ValueError):
    """A field, as it was written, names nothing."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """The meaning of the numbers of a field."""

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


def read(expr: str) -> tuple[str, ...]:
    """Return plain expressions that together match the times of an expression with single spaces; raise ``Unreadable``.

    Each has lists of numbers or ``*``, and restricts the days in one way, which all versions of croniter read alike.
    Before 7 none of the times came if the 30th of February or a weekday was asked for, and no version takes a numbered
    weekday beside a plain one.
    """
    written = SHORT.get(expr.lower(), expr).lower().split(" ")
    if len(written) != 5:
        raise Unreadable(f"it has {len(written)} of five fields")
    minute, hour, day, month, weekday = [
        ["*"] if one == "?" and place in (2, 4) else one.split(",") for place, one in enumerate(written)
    ]
    times, months = f"{_list(minute, _MINUTE)} {_list(hour, _HOUR)}", _list(month, _MONTH)
    by_day = tuple(f"{times} {one} {months} *" for one in _days(day))
    by_weekday = tuple(f"{times} * {months} {one}" for one in _weekdays(weekday))
    either = by_weekday if "*" in day else by_day if "*" in weekday else by_day + by_weekday
    every_day = f"{times} * {months} *"
    return (every_day,) if every_day in either else either


def _days(parts: list[str]) -> list[str]:
    """Return the field in parts; up to croniter 6.0 ``1,31`` left out the 1st of March, as February has no 31st."""
    found = _numbers([part for part in parts if part != "l"], _MONTH_DAY)
    if len(found) == _MONTH_DAY.size:
        return ["*"]
    in_each_month, in_some = [day for day in found if day <= 28], [day for day in found if day > 28]
    return [*(_joined(days) for days in (in_each_month, in_some) if days), *(["l"] if "l" in parts else [])]


def _weekdays(parts: list[str]) -> list[str]:
    numbered = {part: _numbered(part) for part in parts}
    plain = [part for part, found in numbered.items() if found is None]
    found = sorted({found for found in numbered.values() if found is not None})
    return [*([_list(plain, _WEEKDAY)] if plain else []), *([",".join(found)] if found else [])]


def _list(parts: list[str], kind: _Kind) -> str:
    """Return the field as the numbers that it names, or ``*`` for all of them."""
    found = _numbers(parts, kind)
    return "*" if len(found) == kind.size else _joined(found)


def _numbers(parts: list[str], kind: _Kind) -> list[int]:
    return sorted({value for part in parts for value in _range(part, kind)})


def _joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _range(part: str, kind: _Kind) -> list[int]:
    """Return the numbers that a part of a list names."""
    found = re.fullmatch(_PART, part)
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
    if value is None and re.fullmatch(_NUMBER, written):
        value = int(written)
    if value is None or not kind.first <= value <= kind.highest:
        raise Unreadable(f"{part!r} is out of range")
    return value


def _numbered(part: str) -> str | None:
    """Return the weekday with its number in the month that the part names, as ``1#2`` or ``l5``; None for another."""
    found = re.fullmatch(_NUMBERED, part)
    if found is not None:
        return f"{_value(found['weekday'], _WEEKDAY, part) % 7}#{found['number']}"
    if part.startswith("l") and len(part) > 1:
        return f"l{_value(part[1:], _WEEKDAY, part) % 7}"
    return None
