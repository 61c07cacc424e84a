"""An independent reference for times on walls whose clocks change: every minute is looked at, nothing computed ahead.

``python -m tests.model.clocks`` compares it with ``Cron``, ``Every`` and local times as people write them, around every
clock change of every IANA zone from 2000 to 2040; the suite does so for a sample.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from taskqueue.model.schedules import Cron, Every, moment_of

FIRST, LAST = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (2000, 2041))
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)

NEAR, FAR = 5 * HOUR, 40 * HOUR
"""How far from a change the fixed expressions are compared, of which some run each minute, and those drawn."""

DRAWN = 3

EXPRESSIONS = (
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0 3 * * *",
    "15,45 0-4 * * *",
    "0 0 * * *",
    "59 23 * * sun",
    "30 1-3/2 * 3,10,11 *",
    "20 */6 1-7 * 6",
    "31-31 9-9 * * wed-wed",
    "0 22-2 * nov-mar *",
    "10 4 31-2 * fri-mon",
    "5 6 5 * 0-6",
)

_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = {name: number for number, name in (*enumerate(_WEEKDAYS), *enumerate(_MONTHS, start=1))}
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def matches(expr: str, local: datetime) -> bool:
    """Return whether the time on the wall matches the five fields."""
    minutes, hours, days, months, weekdays, both_restricted = _read(expr)
    if local.minute not in minutes or local.hour not in hours or local.month not in months:
        return False
    day, weekday = local.day in days, local.isoweekday() % 7 in weekdays
    return (day or weekday) if both_restricted else (day and weekday)


Fields: TypeAlias = frozenset[int]


@cache
def _read(expr: str) -> tuple[Fields, Fields, Fields, Fields, Fields, bool]:
    fields = expr.split()
    minutes, hours, days, months, weekdays = (
        _allowed(field, bounds) for field, bounds in zip(fields, _BOUNDS, strict=True)
    )
    return minutes, hours, days, months, weekdays, fields[2] != "*" and fields[4] != "*"


def _allowed(field: str, bounds: tuple[int, int]) -> Fields:
    return frozenset(value for part in field.split(",") for value in _range(part, bounds))


def _range(part: str, bounds: tuple[int, int]) -> list[int]:
    """Return what a part of a list names, found by counting on from its first number, as a clock does."""
    span, _, step = part.partition("/")
    low, _, high = span.partition("-")
    if span == "*":
        value, last = bounds
    else:
        value = _number(low, bounds)
        last = _number(high, bounds) if high else bounds[1] if step else value
    counted = [value]
    while value != last:
        value = bounds[0] if value == bounds[1] else value + 1
        counted.append(value)
    return counted[:: int(step or 1)]


def _number(written: str, bounds: tuple[int, int]) -> int:
    """Return the number of a name, or the number; 7 is Sunday."""
    number = _NAMES[written] if written in _NAMES else int(written)
    return 0 if (number, bounds) == (7, (0, 6)) else number


def wall_clock(zone: ZoneInfo, since: datetime, until: datetime) -> dict[datetime, datetime]:
    """Return the first instant of each minute that the clock on the wall shows, from a day before ``since``."""
    seen: dict[datetime, datetime] = {}
    minute = since - DAY
    while minute <= until:
        seen.setdefault(minute.astimezone(zone).replace(tzinfo=None), minute)
        minute += MINUTE
    return seen


def slots(expr: str, seen: dict[datetime, datetime], since: datetime, until: datetime) -> list[datetime]:
    """Return the instants from behind ``since`` to ``until`` at which the expression runs, by the written rules."""
    found = set()
    for wall in _minutes(min(seen), max(seen)):
        if matches(expr, wall):
            found.add(_first_shown(wall, seen))
    return sorted(at for at in found if since < at <= until)


def _minutes(first: datetime, last: datetime) -> Iterator[datetime]:
    while first <= last:
        yield first
        first += MINUTE


def changes(zone: ZoneInfo, first: datetime = FIRST, last: datetime = LAST) -> list[datetime]:
    """Return the minutes at which the clocks of the zone change."""
    found = []
    day = first
    while day < last:
        if day.astimezone(zone).utcoffset() != (day + DAY).astimezone(zone).utcoffset():
            found.append(_change(zone, day))
        day += DAY
    return found


def _change(zone: ZoneInfo, day: datetime) -> datetime:
    offset = day.astimezone(zone).utcoffset()
    low, high = 0, 1440
    while high - low > 1:
        middle = (low + high) // 2
        if (day + middle * MINUTE).astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return day + high * MINUTE


def differences(name: str, change: datetime) -> list[str]:
    """Return all that differs from the reference around a clock change; what is drawn follows from zone and change."""
    chance = random.Random(f"{name} {change}")
    seen = wall_clock(ZoneInfo(name), change - FAR, change + FAR)
    near = wall_clock(ZoneInfo(name), change - NEAR, change + NEAR)
    return [
        *(line for expr in EXPRESSIONS for line in _of_cron(expr, name, change, NEAR, near)),
        *(line for _ in range(DRAWN) for line in _of_cron(drawn(chance), name, change, FAR, seen)),
        *(line for _ in range(DRAWN) for line in _of_local_times(chance, name, change, seen)),
    ]


def drawn(chance: random.Random) -> str:
    """Return an expression at random, of some times a day at most."""
    one = chance.randrange(24)
    hours = (
        str(one),
        f"{one}-{one}",
        f"{chance.randrange(20, 24)}-{chance.randrange(4)}",
        f"{chance.randrange(4)}-{chance.randrange(4, 24)}/{chance.randint(2, 5)}",
        f"*/{chance.randint(3, 12)}",
        f"{chance.randrange(3)},{chance.randrange(3, 24)}",
    )
    days = ("*", "*", "*/2", "1-31", f"{chance.randint(1, 31)}-{chance.randint(1, 31)}")
    weekdays = (
        "*",
        "*",
        "0",
        "sat",
        "0-6",
        "1-7",
        "wed-wed",
        f"{chance.randrange(7)}-{chance.randrange(7)}",
        "fri-mon/2",
    )
    same = chance.randrange(60)
    minute = chance.choice([str(same), f"{same}-{same}", f"{same}-{same}/5", f"{chance.randrange(30)}/20"])
    return f"{minute} {chance.choice(hours)} {chance.choice(days)} * {chance.choice(weekdays)}"


def _of_cron(expr: str, name: str, change: datetime, around: timedelta, seen: dict[datetime, datetime]) -> list[str]:
    since, until = change - around, change + around
    return _told(f"{expr} in {name}", change, slots(expr, seen, since, until), _walked(Cron(expr, name), since, until))


def _of_local_times(chance: random.Random, name: str, change: datetime, seen: dict[datetime, datetime]) -> list[str]:
    """Compare a time on the wall near the change, and an interval that counts from it."""
    shown = (change + chance.randrange(-180, 180) * MINUTE).astimezone(ZoneInfo(name)).replace(tzinfo=None)
    wall = chance.choice([shown, shown - HOUR, shown + HOUR])
    text = f"{wall.isoformat(' ')} {name}"
    base = _first_shown(wall, seen)
    span, since = chance.randint(1, 3 * 1440) * MINUTE, change - chance.randrange(1440) * MINUTE
    steps = [at for at in (base + step * span for step in range(3 * 1440)) if at > since]
    return [
        *_told(text, change, [base], [moment_of(text, change)]),
        *_told(f"every {span} from {text}", change, steps[:3], _next(Every(span, text), since, 3)),
    ]


def _first_shown(wall: datetime, seen: dict[datetime, datetime]) -> datetime:
    """Return when the clock on the wall first showed this, or first showed more."""
    return seen.get(wall) or min(at for on_wall, at in seen.items() if on_wall > wall)


def _told(what: str, change: datetime, expected: list[datetime], found: list[datetime]) -> list[str]:
    return [] if expected == found else [f"{what} around {change}: {found} instead of {expected}"]


def _walked(cron: Cron, since: datetime, until: datetime) -> list[datetime]:
    found = []
    slot = cron.after(since)
    while slot is not None and slot <= until:
        found.append(slot)
        slot = cron.after(slot)
    return found


def _next(every: Every, since: datetime, count: int) -> list[datetime]:
    found = [every.after(since)]
    while len(found) < count:
        found.append(every.after(found[-1]))
    return found


def zones() -> list[str]:
    """Return the names of all zones, without the copies that some systems keep."""
    return sorted(
        name for name in available_timezones() if not name.startswith(("posix/", "right/")) and name != "localtime"
    )


def main() -> int:
    """Compare everything, one zone after another, and return whether something differed."""
    compared, wrong = 0, 0
    known = set()
    for name in zones():
        zone = ZoneInfo(name)
        for change in changes(zone):
            kind = (change, *((change + k * HOUR).astimezone(zone).utcoffset() for k in range(-48, 49)))
            if kind in known:  # other zones change their clocks in the same way at the same time
                continue
            known.add(kind)
            compared += 1
            for line in differences(name, change):
                wrong += 1
                print(line, flush=True)
    per_change = f"{len(EXPRESSIONS) + DRAWN} expressions and {DRAWN} local times with an interval from each"
    print(f"{compared} clock changes of {len(zones())} zones, {per_change}: {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
