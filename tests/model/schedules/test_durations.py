"""Times and durations as people write them (X-18)."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from taskqueue.errors import InvalidOption
from taskqueue.model.record import PRIORITY_STEP
from taskqueue.model.schedules import LATEST, LONGEST, is_relative, moment_of, seconds_of
from taskqueue.model.timestamps import EPOCH, whole

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (NOON, NOON),
        (NOON.astimezone(timezone(timedelta(hours=5))), NOON),
        (1e9, EPOCH + timedelta(seconds=1e9)),
        (1_000_000_000.5, EPOCH + timedelta(seconds=1_000_000_000.5)),
        ("now", NOON),
        ("+1 hour", NOON + HOUR),
        (" +1h30m ", NOON + 1.5 * HOUR),
        ("+01:00:00", NOON + HOUR),
        ("2014-07-20 00:15:00+00:00", datetime(2014, 7, 20, 0, 15, tzinfo=timezone.utc)),  # LZQ-5
        ("2014-07-20T00:15:00Z", datetime(2014, 7, 20, 0, 15, tzinfo=timezone.utc)),
        ("2014-07-20 00:15:00 UTC", datetime(2014, 7, 20, 0, 15, tzinfo=timezone.utc)),
        ("2014-07-20 00:15:00 Europe/Berlin", datetime(2014, 7, 19, 22, 15, tzinfo=timezone.utc)),
        ("2014-07-20 Europe/Berlin", datetime(2014, 7, 19, 22, tzinfo=timezone.utc)),
        (
            "2026-03-29 02:30:00 Europe/Berlin",
            datetime(2026, 3, 29, 1, tzinfo=timezone.utc),
        ),  # never shown by a clock: the first instant after it
        (
            "2026-10-25 02:30:00 Europe/Berlin",
            datetime(2026, 10, 25, 0, 30, tzinfo=timezone.utc),
        ),  # shown twice: the first
    ],
)
def test_a_time_is_read(value: Any, moment: datetime) -> None:
    assert moment_of(value, NOON) == moment


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (datetime(2026, 7, 1), "2026-07-01T00:00:00 has no time zone"),  # noqa: DTZ001
        ("2026-07-01 12:00:00", "has no time zone: append one, as in '2026-07-01 12:00:00 UTC' or"),
        ("2026-07-01", "as in '2026-07-01 UTC' or '2026-07-01 Europe/Berlin'"),
        ("in 5 minutes", "'in 5 minutes' is not a time"),
        ("2026-07-01 12:00:00 Europe/Atlantis", "this host has no time zone 'Europe/Atlantis'"),
        (
            "2026-07-01 12:00:00 Berlin",
            "has no time zone 'Berlin': correct the name, or install tzdata on the host; did you mean Europe/Berlin?",
        ),
        ("2026-07-01 12:00:00+02:00 Europe/Berlin", "names two zones"),
        ("tomorrow", "'tomorrow' is not a time: pass an aware datetime, unix seconds"),
        ("", "is not a time"),
        ("+5 minuts", "is not a duration"),
        (True, "True is not a time"),
        (None, "None is not a time"),
        (HOUR, "is not a time: write '+3600 seconds' for that long from now"),
        (60, "60 is not a time: write '+60 seconds' for that long from now; unix seconds of 1970 to 1980 are refused"),
        (0, "0 is not a time: write '+0 seconds' for that long from now"),
        (0.25, "0.25 is not a time: write '+0.25 seconds'"),
        (LONGEST, "is not a time: write '+316224000 seconds'"),
        ("60", "'60' is not a time: write '+60 seconds' for that long from now"),
        ("5m", "'5m' is not a time: write '+5m' for that long from now"),
        (" 1 hour ", "'1 hour' is not a time: write '+1 hour' for that long from now"),
        (-1, "-1 is out of range: pass a time between the years 1970 and 9000"),
        (1e300, "out of range"),
        (10**400, "out of range"),
        (float("nan"), "out of range"),
        (datetime.max.replace(tzinfo=timezone.utc), "out of range"),
        (datetime.min.replace(tzinfo=timezone(HOUR)), "out of range"),
        ("1969-12-31T23:59:59Z", "out of range"),
        ("8999-12-31T23:59:59.9999Z", "out of range"),  # the next whole millisecond is
    ],
)
def test_what_is_no_time_is_refused_with_the_way_out(value: Any, words: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        moment_of(value, NOON)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "2026-07-01T12:00:00.5Z",
        "2026-07-01T12:00:00,5+00",
        "2026-07-01 14:00:00.5000+0200",
        "2026-07-01 14:00:00.500000000+02:00",
        "2026-07-01 14:00:00.50 Europe/Berlin",
    ],
)
def test_each_python_reads_fractions_and_short_offsets(text: str) -> None:
    assert moment_of(text, NOON) == datetime(2026, 7, 1, 12, 0, 0, 500_000, tzinfo=timezone.utc)


@given(some.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(8999, 12, 30), timezones=some.timezones()))  # noqa: DTZ001
def test_every_moment_is_read_alike_from_a_datetime_and_from_text(moment: datetime) -> None:
    read = moment_of(moment, NOON)

    assert timedelta(0) <= read - moment < timedelta(milliseconds=1)  # nothing begins before it
    assert read == whole(read)
    assert moment_of(read.isoformat(), NOON) == read
    if read.timestamp() > LONGEST:  # unix seconds of the first years are taken for durations
        assert moment_of(read.timestamp(), NOON) - read < timedelta(milliseconds=2)
    assert EPOCH <= read < LATEST
    assert read + 20 * PRIORITY_STEP > read - 20 * PRIORITY_STEP  # ranks stay within the calendar


@given(some.text())
def test_any_text_is_a_time_or_refused(text: str) -> None:
    with suppress(InvalidOption):
        assert moment_of(text, NOON).tzinfo is timezone.utc


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (5, 5),
        (0.25, 0.25),
        (timedelta(minutes=2), 120),
        ("5m", 300),
        ("4 ms", 0.004),  # vector 17
        ("4ms", 0.004),
        ("+4 seconds", 4),
        ("200ms", 0.2),
        ("12:00:00", 43_200),  # LZQ-6
        ("100:00:01", 360_001),
        ("1h30m", 5400),
        ("1.5 hours", 5400),
        ("1 Day 2 min", 86_520),
        ("2w", 14 * 86_400),
        ("1 month", 30 * 86_400),
        ("1 year", 365 * 86_400),
    ],
)
def test_a_duration_is_read(value: Any, seconds: float) -> None:
    assert seconds_of(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["60", "", "m", "5 parsecs", "5m and more", "-5m", "1:00", "00:60:00", "٥m", True, None, [5], NOON]
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match="is not a duration: pass seconds, a timedelta"):
        seconds_of(value)


@pytest.mark.parametrize(
    "value",
    [
        -1,
        LONGEST + 1,
        10**400,
        float("nan"),
        float("inf"),
        timedelta(days=-1),
        "11 years",
        f"{'9' * 400}:00:00",
        f"{'9' * 5000}:00:00",
    ],
)
def test_a_duration_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match="pass a duration between 0 and ten years"):
        seconds_of(value)


@given(some.floats(min_value=0, max_value=LONGEST))
def test_every_duration_is_read_alike_in_every_form(seconds: float) -> None:
    assert seconds_of(seconds) == seconds
    assert seconds_of(timedelta(seconds=seconds)) == pytest.approx(seconds, abs=1e-6)
    assert seconds_of(f"{seconds:.6f} s") == pytest.approx(seconds, abs=1e-6)


@given(some.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with suppress(InvalidOption):
        assert 0 <= seconds_of(text) <= LONGEST


def test_times_that_count_from_now_are_known() -> None:
    assert is_relative("now")
    assert is_relative(" +5m")
    assert not is_relative("2026-07-01")
    assert not is_relative(5)
