"""Which forms the fields of a cron expression have, and that each names what a reader of crontabs takes it for."""

from __future__ import annotations

import calendar
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from taskqueue import Cron
from taskqueue.errors import InvalidOption
from taskqueue.model.schedules.cron import local_times
from taskqueue.model.schedules.cron_fields import SHORT, read
from tests.model import clocks

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
CENTURY = datetime.fromisoformat("2000-01-01T00:00:00")
SUNDAY = datetime.fromisoformat("2026-11-22T18:00:00")


@pytest.mark.parametrize(
    ("expr", "plain"),
    [
        ("0 9-9 * * *", "0 9 * * *"),
        ("31-31 * * * *", "31 * * * *"),
        ("0 0 * * wed-wed", "0 0 * * 3"),
        ("10-10/5 * * * *", "10 * * * *"),
        ("0 0 3-3 * mon", "0 0 3 * 1"),
        ("0 0 * feb-feb *", "0 0 * 2 *"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("0 0 * * 7-0", "0 0 * * 0"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 0-7/2", "0 0 * * 0,2,4,6"),
        ("0 0 * * 1/2", "0 0 * * 1,3,5"),
        ("0 0 * * 7/3", "0 0 * * 0,3,6"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("0 22-2/2 * * *", "0 22,0,2 * * *"),
        ("58-3/4 * * * *", "58,2 * * * *"),
        ("0 0 * nov-feb *", "0 0 * 11,12,1,2 *"),
        ("0 0 * * FRI-mon", "0 0 * * 5,6,0,1"),
        ("0 0 * * 7-2", "0 0 * * 0,1,2"),
        ("0 0 31-2 * *", "0 0 31,1,2 * *"),
        ("5/15 * * * *", "5,20,35,50 * * * *"),
        ("*/90 * * * *", "0 * * * *"),
        ("0 0 ? * ?", "0 0 * * *"),
        ("0 0 5 * 0-6", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@Yearly", "0 0 1 1 *"),
    ],
)
def test_what_a_field_names_is_the_same_for_every_host(expr: str, plain: str) -> None:
    assert first(expr, 50) == first(plain, 50)


@pytest.mark.parametrize(
    ("expr", "days"),
    [
        ("0 0 L * *", ["11-30", "12-31", "01-31", "02-28"]),
        ("0 0 15,L * *", ["11-30", "12-15", "12-31", "01-15"]),
        ("0 0 * * mon#1", ["12-07", "01-04", "02-01", "03-01"]),
        ("0 0 * * 7#5", ["11-29", "01-31", "05-30", "08-29"]),
        ("0 0 * * L5", ["11-27", "12-25", "01-29", "02-26"]),
        ("0 0 * * lfri", ["11-27", "12-25", "01-29", "02-26"]),
        ("0 0 * * 1#1,3", ["11-25", "12-02", "12-07", "12-09"]),
        ("0 0 1 * fri#2", ["12-01", "12-11", "01-01", "01-08"]),
        ("0 0 1,31 2,3 *", ["02-01", "03-01", "03-31", "02-01"]),
        ("0 0 30 2 mon", ["02-01", "02-08", "02-15", "02-22"]),
        ("0 0 L 2 mon#1,tue", ["02-01", "02-02", "02-09", "02-16"]),
    ],
)
def test_last_days_and_numbered_weekdays(expr: str, days: list[str]) -> None:
    assert [f"{at:%m-%d}" for at in first(expr, 4)] == days


@pytest.mark.parametrize(
    "expr",
    [
        "0 0 15W * *", "0 0 LW * *", "0 0 * * 5L", "0 0 * * L", "0 0 ?,1 * *", "? * * * *", "0 0 ,1 * *", "-5 * * * *",
        "1-2-3 * * * *", "*-5 * * * *", "5/0 * * * *", "5/00 * * * *", "0 24 * * *", "0 0 0 * *", "0 0 32 * *",
        "0 0 * 13 *", "0 0 * * 8", "0 0 * * mon#6", "0 0 * * mon#0", "0 0 mon * *", "0 0 * sun *", "٣ * * * *",
        "0 0 29 2-2 *  * 1", "99999 * * * *",
    ],
)  # fmt: skip
def test_another_form_is_refused_with_the_part_that_cannot_be_read(expr: str) -> None:
    with pytest.raises(InvalidOption, match=r"cannot be read, .*(neither a number|out of range|step of 0|fields)"):
        Cron(expr)


@pytest.mark.parametrize("expr", ["0 0 30-31 2 *", "0 0 31 2-2 *"])
def test_one_that_matches_no_day_is_refused(expr: str) -> None:
    with pytest.raises(InvalidOption, match="matches no day"):
        Cron(expr)


@pytest.mark.parametrize(
    ("expr", "plain"),
    [
        ("58-3/4 22-2/2 * nov-feb *", ["2,58 0,2,22 * 1,2,11,12 *"]),
        ("0-59 0-23 1-31 1-12 0-7", ["* * * * *"]),
        ("0 0 5 * 0-6", ["0 0 * * *"]),
        ("*/90 9-9 ? jan ?", ["0 9 * 1 *"]),
        ("0 0 13 * fri", ["0 0 13 * *", "0 0 * * 5"]),
        ("0 0 31-2 * *", ["0 0 1,2 * *", "0 0 31 * *"]),
        ("0 0 15,L * *", ["0 0 15 * *", "0 0 l * *"]),
        ("0 0 * 3 Lsun,mon#1,7", ["0 0 * 3 0", "0 0 * 3 1#1,l0"]),
        ("0 0 30 2 L5", ["0 0 30 2 *", "0 0 * 2 l5"]),
    ],
)
def test_what_is_computed_elsewhere_has_one_form_that_all_versions_read_alike(expr: str, plain: list[str]) -> None:
    assert list(read(expr)) == plain


def test_the_rarest_day_is_found() -> None:
    assert first("0 0 29 2 *", 2) == [datetime.fromisoformat(f"{year}-02-29T00:00:00") for year in (2028, 2032)]
    assert len(set(SHORT)) == 7


def field(low: int, high: int) -> some.SearchStrategy[str]:
    """Return fields of all forms that the reference reads, too."""
    number = some.integers(low, high).map(str)
    step = some.just("") | some.integers(1, high + 5).map("/{}".format)
    spans = some.tuples(number, number, step).map(lambda one: f"{one[0]}-{one[1]}{one[2]}")
    same = some.tuples(number, step).map(lambda one: f"{one[0]}-{one[0]}{one[1]}")
    parts = number | spans | same | some.tuples(number, step).map("".join)
    return some.just("*") | some.integers(1, high + 5).map("*/{}".format) | some.lists(parts, min_size=1).map(",".join)


@given(
    fields=some.tuples(field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6)),
    since=some.integers(0, 40 * 366 * 1440).map(
        lambda minutes: datetime.fromisoformat("2000-01-01") + minutes * MINUTE
    ),
)
def test_every_minute_of_two_days_agrees_with_the_reference(fields: tuple[str, ...], since: datetime) -> None:
    expr = " ".join(fields)
    found = []
    for at in local_times(expr, since):
        if at > since + 2 * DAY:
            break
        found.append(at)

    minutes = [since + minute * MINUTE for minute in range(1, 2 * 1440 + 1)]
    assert found == [minute for minute in minutes if clocks.matches(expr, minute)]


NUMBERED = some.tuples(some.integers(0, 6), some.integers(1, 5)).map(lambda one: f"{one[0]}#{one[1]}")
LAST = some.integers(0, 6).map("L{}".format)


def lists_with(parts: some.SearchStrategy[str], low: int, high: int) -> some.SearchStrategy[str]:
    """Return fields of all forms, or lists of them with other parts in them."""
    mixed = some.tuples(field(low, high).filter(lambda one: "*" not in one), some.lists(parts, min_size=1))
    return field(low, high) | parts | mixed.map(lambda one: ",".join([one[0], *one[1]]))


@given(
    day=lists_with(some.just("L"), 1, 31),
    month=field(1, 12),
    weekday=lists_with(NUMBERED | LAST, 0, 6),
    since=some.integers(0, 150 * 365).map(lambda days: CENTURY + days * DAY),
)
def test_every_day_of_five_quarters_agrees_with_the_reference(
    day: str, month: str, weekday: str, since: datetime
) -> None:
    found = []
    for at in local_times(f"0 0 {day} {month} {weekday}", since):
        if at > since + 456 * DAY:
            break
        found.append(at)

    days = [since + number * DAY for number in range(1, 457)]
    assert found == [at for at in days if clocks.matches(f"0 0 {on_that(day, at)} {month} {on_that(weekday, at)}", at)]


def on_that(written: str, day: datetime) -> str:
    """Return the field with each last day and numbered weekday as the one that it is, or is not, on that day."""
    last, weekday = calendar.monthrange(day.year, day.month)[1], day.isoweekday() % 7
    plain = []
    for part in written.split(","):
        named, _, number = part.removeprefix("L").partition("#")
        is_number = (day.day - 1) // 7 + 1 == int(number) if number else day.day > last - 7
        if part == "L":
            plain.append(str(last))
        elif number or part.startswith("L"):
            plain.append(named if is_number else str((weekday + 1) % 7))
        else:
            plain.append(part)
    return ",".join(plain)


def first(expr: str, count: int) -> list[datetime]:
    """Return the first times behind a Sunday evening in November."""
    return [at for at, _ in zip(local_times(expr, SUNDAY), range(count), strict=False)]
