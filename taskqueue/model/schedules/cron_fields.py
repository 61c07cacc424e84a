"""The five fields of a cron expression, read into the numbers that they name; every host reads them alike.

A field is ``*`` or a list of numbers, names, ranges and steps: ``5``, ``mon``, ``9-17``, ``22-2`` (over the end and on
from the beginning), ``*/15``, ``5/15`` (from 5 to the end), ``9-17/2``. A day may also be ``L``, the last of the month,
a weekday ``fri#2``, the second in the month, or ``L5``, the last Friday; both may be ``?`` for ``*``. Forms of
other systems are recognized, to say what to write here.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Mapping
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
"""The expressions that have a name."""

DAY_NUMBERS = (
    "0 is Sunday here and in Celery, Monday in APScheduler, and 1 is Sunday in Quartz: names such as mon are safe"
)
"""A note for people who are used to the weekday numbers of other systems."""

FIELDS = ("second", "minute", "hour", "day", "month", "week", "day_of_week", "day_of_month", "month_of_year")
"""Arguments for the fields of an expression, as Celery, APScheduler and Huey have them."""

_DAYS: Mapping[str, str] = {
    **{name: name[:3] for name in ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")},
    "day": "*",
    "weekday": "mon-fri",
    "weekend": "sat,sun",
}
_UNITS = {"second": "s", "minute": "m", "hour": "h"}
_CLOCK = r"(?P<hour>\d{1,2})(:(?P<minute>\d{2}))? ?(?P<half>[ap]m)?"

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
        ["*"] if text == "?" and place in (2, 4) else text.split(",") for place, text in enumerate(written)
    ]
    times, months = f"{_list(minute, _MINUTE)} {_list(hour, _HOUR)}", _list(month, _MONTH)
    by_day = tuple(f"{times} {text} {months} *" for text in _days(day))
    by_weekday = tuple(f"{times} * {months} {text}" for text in _weekdays(weekday))
    either = by_weekday if "*" in day else by_day if "*" in weekday else by_day + by_weekday
    every_day = f"{times} * {months} *"
    return (every_day,) if every_day in either else either


def _days(parts: list[str]) -> list[str]:
    """Return the field in parts; up to croniter 6.0 ``1,31`` left out the 1st of March, as February has no 31st."""
    numbers = _numbers([part for part in parts if part != "l"], _MONTH_DAY)
    if len(numbers) == _MONTH_DAY.size:
        return ["*"]
    in_each_month, in_some = [day for day in numbers if day <= 28], [day for day in numbers if day > 28]
    return [*(_joined(days) for days in (in_each_month, in_some) if days), *(["l"] if "l" in parts else [])]


def _weekdays(parts: list[str]) -> list[str]:
    numbered = {part: _numbered(part) for part in parts}
    plain = [part for part, number in numbered.items() if number is None]
    numbers = sorted({number for number in numbered.values() if number is not None})
    return [*([_list(plain, _WEEKDAY)] if plain else []), *([",".join(numbers)] if numbers else [])]


def _list(parts: list[str], kind: _Kind) -> str:
    """Return the field as the numbers that it names, or ``*`` for all of them."""
    numbers = _numbers(parts, kind)
    return "*" if len(numbers) == kind.size else _joined(numbers)


def _numbers(parts: list[str], kind: _Kind) -> list[int]:
    return sorted({value for part in parts for value in _range(part, kind)})


def _joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _range(part: str, kind: _Kind) -> list[int]:
    """Return the numbers that a part of a list names."""
    match = re.fullmatch(_PART, part)
    if match is None or (match["low"] == "*" and match["high"]):
        raise Unreadable(f"{part!r} is neither a number, a range nor a name")
    step = int(match["step"] or 1)
    if step == 0:
        raise Unreadable(f"{part!r} has a step of 0")
    low = kind.first if match["low"] == "*" else _value(match["low"], kind, part)
    if match["low"] == "*" or (match["step"] and not match["high"]):
        return list(range(kind.first if low > kind.last else low, kind.last + 1, step))
    high = _value(match["high"], kind, part) if match["high"] else low
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
    match = re.fullmatch(_NUMBERED, part)
    if match is not None:
        return f"{_value(match['weekday'], _WEEKDAY, part) % 7}#{match['number']}"
    if part.startswith("l") and len(part) > 1:
        return f"l{_value(part[1:], _WEEKDAY, part) % 7}"
    return None


def hint(written: str, is_zone: Callable[[str], bool]) -> str:
    """Return what to write instead of an expression that is not valid here; "" if it is of no known dialect."""
    fields = written.split()
    first, last, text = fields[0] if fields else "", fields[-1] if fields else "", " ".join(fields).lower()
    name, _, zone = first.partition("=")
    if name.upper() in ("CRON_TZ", "TZ") and _can_be_read(rest := " ".join(fields[1:])):
        return f"the time zone is an option: pass cron={rest!r}, tz={zone!r}"
    if _can_be_read(rest := " ".join(fields[:-1])) and is_zone(last):
        return f"the time zone is an option: pass cron={rest!r}, tz={last!r}"
    if text == "@reboot":
        return "nothing runs when a host starts: have a systemd unit run `taskqueue add`"
    if first.lower() == "@every" and len(fields) == 2:
        return f"an interval is an option: pass every={last!r}"
    return _many_fields(fields) or _phrase(text) or _marks(fields)


def _can_be_read(expr: str) -> bool:
    try:
        return bool(read(expr))
    except Unreadable:
        return False


def _many_fields(fields: list[str]) -> str:
    """Return the hint for expressions with a field for seconds, years or both."""
    if len(fields) not in (6, 7):
        return ""
    without_seconds, without_year = " ".join(fields[1:6]), " ".join(fields[:5])
    has_seconds, ends_in_years = _can_be_read(without_seconds), re.fullmatch(r"\d{4}(-\d{4})?|\*", fields[5])
    if len(fields) == 6 and not has_seconds and ends_in_years and _can_be_read(without_year):
        return f"there is no field for years: pass cron={without_year!r}, and until= for the end"
    if not has_seconds:
        return ""
    step = re.fullmatch(r"(\*|0)/(\d+)", fields[0])
    if step is not None and len(fields) == 6 and fields[1:3] == ["*", "*"]:
        return f"there is no field for seconds: pass every='{step[2]}s'"
    numbers = f"; {DAY_NUMBERS}" if re.search(r"\d", without_seconds.rpartition(" ")[2]) else ""
    return f"there is no field for seconds or years: pass cron={without_seconds!r}{numbers}"


def _phrase(text: str) -> str:
    """Return the hint for a time in English."""
    interval = re.fullmatch(r"every (?P<number>\d+ )?(?P<unit>second|minute|hour)s?", text)
    if interval is not None:
        return f"an interval is an option: pass every='{(interval['number'] or '1').strip()}{_UNITS[interval['unit']]}'"
    match = re.fullmatch(rf"(?P<every>every |on )?(?P<day>[a-z]+?)?s?,? ?(?:at )?{_CLOCK}", text)
    if match is None or not (match["half"] or match["minute"] or match["day"]):
        return ""
    day = _DAYS.get("day" if match["day"] in (None, "daily", "at") else str(match["day"]))
    if day is None:
        return ""
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    if match["half"]:
        if not 1 <= hour <= 12:
            return ""
        hour = hour % 12 + (12 if match["half"] == "pm" else 0)
    if hour > 23 or minute > 59:
        return ""
    return f"times are cron expressions: pass cron='{minute} {hour} * * {day}'"


def _marks(fields: list[str]) -> str:
    """Return the hint for characters that only one system has."""
    if len(fields) != 5:
        return ""
    if any(re.match(r"[Hh](\(|/|$)", field) for field in fields):
        return "H is a number that Jenkins chooses: write one yourself"
    if re.search(r"\d?W", fields[2].upper()):
        return "W, the nearest working day of Quartz, has no equivalent: write a class with next(after), and pass at="
    return ""
