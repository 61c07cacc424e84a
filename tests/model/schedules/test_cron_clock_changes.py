"""Cron and intervals around clock changes, compared with a reference; ``python -m tests.model.clocks`` compares all."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as some

from taskqueue.model.schedules import Cron
from tests.model import clocks

SAMPLE = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia", "Asia/Gaza")


@pytest.mark.parametrize("name", SAMPLE)
def test_cron_and_intervals_agree_with_the_reference_around_clock_changes(name: str) -> None:
    chosen = random.Random(name).sample(clocks.changes(ZoneInfo(name)), 3)

    assert [line for change in chosen for line in clocks.differences(name, change)] == []


@given(
    name=some.sampled_from(clocks.zones()),
    at=some.integers(int(clocks.FIRST.timestamp()), int(clocks.LAST.timestamp())),
    expr=some.sampled_from(clocks.EXPRESSIONS),
)
def test_no_zone_and_no_time_is_an_exception(name: str, at: int, expr: str) -> None:
    found = Cron(expr, name).after(datetime.fromtimestamp(at, timezone.utc))

    assert found is not None
    assert found.timestamp() > at
