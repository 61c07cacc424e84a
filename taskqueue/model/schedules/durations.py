"""Reads times and durations as people write them into aware UTC moments and seconds."""

from __future__ import annotations

import functools
import math
import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TypeAlias

from taskqueue.errors import InvalidOption, naive_time
from taskqueue.model.shown_text import as_code
from taskqueue.model.timestamps import EPOCH, MILLISECOND, whole
from taskqueue.model.wording import or_nearest

Moment: TypeAlias = datetime | int | float | str
"""A time: an aware datetime, unix seconds, ``"now"``, ``"+1 hour"``, or ISO text followed by an offset or a zone."""

Duration: TypeAlias = timedelta | int | float | str
"""A span: seconds, a timedelta, ``"5m"``, ``"1h30m"``, ``"200 ms"`` or ``"HH:MM:SS"``."""

LATEST = datetime(9000, 1, 1, tzinfo=timezone.utc)
"""No job is planned beyond this: ranks are times too, and must not leave the calendar."""

LONGEST = 10 * 366 * 86_400.0
"""The longest duration in seconds: ten years."""

_SECOND = timedelta(seconds=1)
_ALMOST_A_MILLISECOND = timedelta(microseconds=999)
_LATEST_SECONDS = LATEST.timestamp()

_UNITS = {
    1e-3: ("ms", "millisecond", "milliseconds"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("m", "min", "mins", "minute", "minutes"),
    3600.0: ("h", "hour", "hours"),
    86_400.0: ("d", "day", "days"),
    7 * 86_400.0: ("w", "week", "weeks"),
    30 * 86_400.0: ("month", "months"),
    365 * 86_400.0: ("y", "year", "years"),
}
_SECONDS = {name: seconds for seconds, names in _UNITS.items() for name in names}
_PART = r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*"
_CLOCK = r"([0-9]+):([0-5][0-9]):([0-5][0-9])"
_CLOCK_TIME = re.compile(r"([0-9-]{10}.[0-9:]{8})(?:[.,]([0-9]+))?(?:([+-][0-9]{2}):?([0-9]{2})?)?")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_NAMED_ZONE = r"(.*[0-9])\s+([A-Za-z][A-Za-z0-9_+/-]*)"


def moment_of(value: object, now: datetime) -> datetime:
    """Return the time that ``value`` means, as aware UTC in whole milliseconds; relative ones count from ``now``.

    A time between two milliseconds is rounded up, so that nothing starts before it. Raises ``InvalidOption`` for
    other values, including durations, for times without a zone, and for years outside 1970 to 9000.
    """
    match value:
        case bool():
            raise _no_time(value)
        case datetime():
            moment = _with_zone(value)
        case int() | float():
            if 0 <= value <= LONGEST:  # a duration, which would be a time long past
                raise _no_time(value)
            moment = EPOCH + timedelta(seconds=value) if LONGEST < value < _LATEST_SECONDS else LATEST
        case str():
            moment = _from_text(value.strip(), now)
        case _:
            raise _no_time(value)
    return _within(moment, value)


def seconds_of(value: object) -> float:
    """Return the seconds that ``value`` means, at least 0 and at most ten years; raise ``InvalidOption`` otherwise.

    A month is 30 days, a year 365. A bare number as text is refused, because it does not say its unit.
    """
    match value:
        case bool():
            raise _no_duration(value)
        case int() | float():
            seconds = float(value) if 0 <= value <= LONGEST else -1
        case timedelta():
            seconds = value.total_seconds()
        case str():
            seconds = _parse(value)
        case _:
            raise _no_duration(value)
    if not 0 <= seconds <= LONGEST:
        raise InvalidOption(f"{as_code(value)} is out of range: pass a duration between 0 and ten years")
    return seconds


def ago(value: object, end: datetime) -> datetime:
    """Return the time that is a duration before ``end``, or else the time that ``value`` means."""
    try:
        seconds = seconds_of(value)
    except InvalidOption as refused:
        if "out of range" in str(refused):
            raise
        return _moment_ago(value, end)
    return whole(end - timedelta(seconds=seconds))


def _moment_ago(value: object, end: datetime) -> datetime:
    try:
        return moment_of(value, end)
    except InvalidOption as refused:
        if "is not a time:" not in str(refused):
            raise
        raise InvalidOption(
            f"{as_code(value)} is not a time: pass how long ago, such as '90m' or '2d', or ISO text with a zone, "
            "e.g. '2030-07-20 00:15:00+02:00' or '2030-07-20 00:15:00 Europe/Berlin'"
        ) from None


def instant(local: datetime, zone: tzinfo) -> datetime:
    """Return the UTC instant of a local time: the first of two; for a skipped time, the first instant after it."""
    utc = local.replace(tzinfo=zone, fold=0).astimezone(timezone.utc)
    if utc.astimezone(zone).replace(tzinfo=None) == local:
        return utc
    return _change(local.replace(tzinfo=zone, fold=1).astimezone(timezone.utc), utc, zone)


def _change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """Return the instant between the two, to the second, at which the clocks of the zone change."""
    offset = before.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) // 2 // _SECOND * _SECOND
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after


def from_now(seconds: float) -> str:
    """Return the text of the time that many seconds from now: ``+60 seconds``."""
    return f"+{seconds:.6f}".rstrip("0").rstrip(".") + " seconds"


def is_later(moment: datetime, now: datetime) -> bool:
    """Return whether the time is in the future: a time rounded up to the next whole millisecond may be now."""
    return moment - now > MILLISECOND


def is_relative(value: object) -> bool:
    """Return whether the time counts from the moment it is read at."""
    return isinstance(value, str) and (value.strip() == "now" or value.strip().startswith("+"))


def unknown_zone(name: str) -> InvalidOption:
    """Return the error for a time zone that this host does not know, whether or not it exists."""
    ends = [zone for zone in _zones() if zone.lower().endswith(f"/{name.lower()}")]
    hint = f"; did you mean {ends[0]}?" if ends else or_nearest(name, _zones())
    return InvalidOption(f"this host has no time zone {name!r}: correct the name, or install tzdata on the host{hint}")


@functools.cache
def _zones() -> list[str]:
    """Return the time zones of this host, which hundreds of files name."""
    from zoneinfo import available_timezones

    return sorted(available_timezones())


def _from_text(text: str, now: datetime) -> datetime:
    if text == "now":
        return now
    if text.startswith("+"):
        return now + timedelta(seconds=seconds_of(text))
    if _as_time_from_now(text) is not None:
        raise _no_time(text)
    plain, zone = _split_zone(text)
    try:
        parsed = datetime.fromisoformat(_for_python_3_10(re.sub(r"[zZ]$", "+00:00", plain)))
    except ValueError:
        raise _no_time(text) from None
    if zone is None and parsed.utcoffset() is None:
        raise InvalidOption(f"{text!r} has no time zone: append one, as in '{text} UTC' or '{text} Europe/Berlin'")
    if zone is None:
        return parsed
    if parsed.tzinfo is not None:
        raise InvalidOption(f"{text!r} names two zones: keep the offset or the name")
    try:
        return instant(parsed, zone)
    except OverflowError:  # out of range, as the caller finds
        return parsed.replace(tzinfo=zone)


def _for_python_3_10(text: str) -> str:
    """Return ISO text with six digits of the second and minutes of the offset: Python 3.10 reads no other."""
    match = _CLOCK_TIME.fullmatch(text)
    if match is None:
        return text
    start, fraction, hours, minutes = match.groups(default="")
    return start + (f".{fraction:0<6.6}" if fraction else "") + (hours and f"{hours}:{minutes or '00'}")


def _split_zone(text: str) -> tuple[str, tzinfo | None]:
    named = re.fullmatch(_NAMED_ZONE, text)
    if named is None:
        return text, None
    if named[2].upper() in ("UTC", "GMT"):
        return named[1], timezone.utc
    from zoneinfo import ZoneInfo

    try:
        return named[1], ZoneInfo(named[2])
    except (OSError, ValueError, LookupError):
        if not named[1][:4].isdigit():  # its last word is no zone, since the others are no time
            raise _no_time(text) from None
        raise InvalidOption(f"{text!r}: {unknown_zone(named[2])}") from None


def _with_zone(value: datetime) -> datetime:
    if value.utcoffset() is None:
        raise naive_time(value)
    return value


def _within(time: datetime, value: object) -> datetime:
    if EPOCH <= time < LATEST:
        moment = whole(time.astimezone(timezone.utc) + _ALMOST_A_MILLISECOND)
        if moment < LATEST:
            return moment
    raise InvalidOption(f"{as_code(value)} is out of range: pass a time between the years 1970 and 9000")


def _parse(text: str) -> float:
    """Return the seconds of a clock or of a sequence of numbers with units."""
    text = text.strip().lower().removeprefix("+").strip()
    clock = re.fullmatch(_CLOCK, text)
    if clock is not None:
        hours, minutes, seconds = map(float, clock.groups())  # more digits than a number has are infinite
        return hours * 3600 + minutes * 60 + seconds
    if not text or re.sub(_PART, "", text):
        raise _no_duration(text)
    parts = re.findall(_PART, text)
    if any(unit not in _SECONDS for _, unit in parts):
        raise _no_duration(text)
    return math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)


def _no_time(value: object) -> InvalidOption:
    duration = _as_time_from_now(value)
    if duration is not None:
        of_number = "; unix seconds of 1970 to 1980 are refused" if isinstance(value, int | float) else ""
        return InvalidOption(f"{as_code(value)} is not a time: write {duration!r} for that long from now{of_number}")
    return InvalidOption(
        f"{as_code(value)} is not a time: pass an aware datetime, unix seconds, 'now', '+1 hour' or ISO text with a "
        "zone, e.g. '2030-07-20 00:15:00+02:00' or '2030-07-20 00:15:00 Europe/Berlin'"
    )


def _as_time_from_now(value: object) -> str | None:
    """Return the text of the time that is a duration from now; None if the value is not a duration."""
    is_number = isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    try:
        seconds = seconds_of(float(value) if is_number else value)  # type: ignore[arg-type]  # text, as just found
    except InvalidOption:
        return None
    return f"+{value}" if isinstance(value, str) and not is_number else from_now(seconds)


def _no_duration(value: object) -> InvalidOption:
    is_cron = isinstance(value, str) and len(value.split()) == 5 and "*" in value
    cron = f"; for times of day use cron={value!r}" if is_cron else ""
    return InvalidOption(
        f"{as_code(value)} is not a duration: pass seconds, a timedelta, '5m', '1h30m', '200 ms' or 'HH:MM:SS'{cron}"
    )
