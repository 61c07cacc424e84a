"""Intervals, cron expressions and what is read back of them (X-12, REC-31, LZQ-13)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from taskqueue.errors import InvalidOption
from taskqueue.model.schedules import Again, Cron, Custom, Every, Trigger, schedule, trigger
from taskqueue.model.timestamps import moment

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
MOMENTS = some.integers(946_684_800_000, 2_208_988_800_000).map(moment)
THREE = datetime(2026, 7, 1, 3, tzinfo=timezone.utc)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


@pytest.mark.parametrize(
    ("finished", "runs_next"),
    [
        (utc("2026-07-01 15:00:00"), utc("2026-07-02 03:00:00")),
        (utc("2026-07-01 14:59:59"), utc("2026-07-01 15:00:00")),
        (utc("2026-06-30 10:00:00"), THREE),
        (THREE, utc("2026-07-01 15:00:00")),
    ],
)
def test_a_base_time_gives_the_smallest_step_strictly_after_the_reference(
    finished: datetime, runs_next: datetime
) -> None:
    assert Every("12:00:00", THREE).after(finished) == runs_next  # X-12, LZQ-13, vector 16


@pytest.mark.parametrize("anchor", ["end", "start"])
def test_without_a_base_time_the_interval_is_added(anchor: str) -> None:
    assert Every("1h", anchor).after(NOON) == NOON + HOUR  # LZQ-13


def test_again_is_at_once() -> None:
    assert Again().after(NOON) == NOON  # PTS-36


@given(base=MOMENTS, reference=MOMENTS, milliseconds=some.integers(1, 10**10))
def test_the_next_step_is_ahead_and_no_step_lies_between(
    base: datetime, reference: datetime, milliseconds: int
) -> None:
    every = Every(timedelta(milliseconds=milliseconds), base)
    found = every.after(reference)
    assert every.base is not None
    span = timedelta(milliseconds=milliseconds)

    assert found > reference
    assert (found - every.base) % span == timedelta(0)
    assert found == every.base or found - span <= reference


@pytest.mark.parametrize(
    ("expr", "runs_at"),
    [
        ("10 * * * *", "2019-01-15 15:10:00"),
        ("14 2 * * *", "2019-01-16 02:14:00"),
        ("18 10 15 * *", "2019-02-15 10:18:00"),
        ("18 10 15 8 *", "2019-08-15 10:18:00"),
        ("18 10 * * 2", "2019-01-22 10:18:00"),
        ("@hourly", "2019-01-15 16:00:00"),
        ("0 9 * * mon-FRI", "2019-01-16 09:00:00"),
        ("0 0 29 2 *", "2020-02-29 00:00:00"),
    ],
)
def test_the_vectors_of_cron(expr: str, runs_at: str) -> None:
    assert Cron(expr).after(utc("2019-01-15 15:00:00")) == utc(runs_at)  # REC-31, vector 14


def test_a_slot_is_strictly_ahead() -> None:
    assert Cron("0 15 * * *").after(utc("2019-01-15 15:00:00")) == utc("2019-01-16 15:00:00")
    assert Cron("0 15 * * *").after(utc("2019-01-15 14:59:59.999")) == utc("2019-01-15 15:00:00")


def test_a_local_time_that_is_skipped_runs_at_the_first_instant_after_it() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")

    assert cron.after(utc("2026-03-28 12:00:00")) == utc("2026-03-29 01:00:00")  # 03:00 there
    assert cron.after(utc("2026-03-29 01:00:00")) == utc("2026-03-30 00:30:00")


def test_a_local_time_that_comes_twice_runs_once() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")

    assert cron.after(utc("2026-10-24 12:00:00")) == utc("2026-10-25 00:30:00")
    assert cron.after(utc("2026-10-25 00:30:00")) == utc("2026-10-26 01:30:00")


def test_in_the_hour_that_comes_again_nothing_runs() -> None:
    cron = Cron("*/15 * * * *", "Europe/Berlin")

    assert cron.after(utc("2026-10-25 00:45:00")) == utc("2026-10-25 02:00:00")
    assert cron.after(utc("2026-10-25 01:20:00")) == utc("2026-10-25 02:00:00")


def test_a_day_that_a_zone_left_out_runs_at_the_first_instant_of_the_next() -> None:
    assert Cron("0 12 30 12 *", "Pacific/Apia").after(utc("2011-12-29 00:00:00")) == utc("2011-12-30 10:00:00")


@pytest.mark.parametrize(
    "expr",
    ["", "60 * * * *", "* * * *", "* * * * * *", "R * * * *", "H * * * *", "0 0 30 2 *", "*/0 * * * *", "@never", 5],
)
def test_an_expression_that_cannot_be_read_is_refused(expr: Any) -> None:
    with pytest.raises(InvalidOption, match="cron"):
        Cron(expr)


@pytest.mark.parametrize("tz", ["Europe/Atlantis", "", 1, "../etc/passwd"])
def test_a_zone_that_does_not_exist_is_refused(tz: Any) -> None:
    with pytest.raises(InvalidOption, match=r"zone"):
        Cron("* * * * *", tz)


def test_a_cron_that_is_over_has_no_next_time() -> None:
    assert Cron("0 0 1 1 *").after(utc("8999-06-01 00:00:00")) is None
    assert Cron("0 0 30 2 mon").after(datetime.max.replace(tzinfo=timezone.utc)) is None


@pytest.mark.parametrize(("interval", "anchor"), [(0, "end"), (-1, "end"), ("soon", "end"), (60, "middle")])
def test_an_interval_that_makes_no_sense_is_refused(interval: Any, anchor: Any) -> None:
    with pytest.raises(InvalidOption):
        Every(interval, anchor)


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("no path", {}),
        (5, {}),
        ("app:Holidays", 5),
        ("app:Holidays", {"when": NOON}),
        ("app:Holidays", {"x": float("nan")}),
    ],
)
def test_a_custom_trigger_is_named_and_its_arguments_are_json(path: Any, arguments: Any) -> None:
    with pytest.raises(InvalidOption):
        Custom(path, arguments)


@pytest.mark.parametrize(
    "given_one",
    [
        Every(60),
        Every("5m", "start"),
        Every("12:00:00", THREE),
        Cron("5 4 * * sun", "America/New_York"),
        Again(),
        Custom("app:Holidays", {"country": "DE"}),
    ],
    ids=str,
)
def test_a_trigger_is_read_back_as_it_was(given_one: Trigger) -> None:
    assert trigger(given_one.document()) == given_one


@pytest.mark.parametrize(
    ("given_one", "depends"),
    [(Every(60), True), (Every(60, "start"), False), (Again(), True), (Cron("@daily"), False), (Custom("a:B"), False)],
    ids=str,
)
def test_some_triggers_wait_for_the_end_of_a_run(given_one: Trigger, depends: bool) -> None:
    assert given_one.follows_end is depends


def test_the_newest_slots_that_have_come_are_found_without_walking_all() -> None:
    minutes = Every("1m", THREE)

    assert schedule.come(minutes, THREE, THREE + timedelta(days=3650), limit=2) == [
        THREE + timedelta(days=3650) - timedelta(minutes=1),
        THREE + timedelta(days=3650),
    ]
    assert schedule.come(minutes, THREE, THREE + timedelta(seconds=150)) == [
        THREE + timedelta(minutes=k) for k in range(3)
    ]
    assert schedule.come(minutes, THREE, THREE - HOUR) == []


def test_slots_are_counted_up_to_a_bound() -> None:
    assert schedule.count(Every("1m", THREE), THREE, THREE + HOUR) == 60
    assert schedule.count(Every("1m", THREE), THREE, THREE + 100 * HOUR, limit=10) == 10
    assert schedule.count(Cron("0 0 1 1 *"), utc("8999-01-01 00:00:00"), utc("8999-12-01 00:00:00")) == 1
