"""The times of a trigger in words."""

from __future__ import annotations

import pytest

from taskqueue import Again, Cron, Every
from taskqueue.model.schedules import Trigger
from taskqueue.web.words import trigger_times


@pytest.mark.parametrize(
    ("trigger", "said"),
    [
        (Cron("15 3 * * 1-5", "Europe/Berlin"), "At 03:15, Monday through Friday, Europe/Berlin"),
        (Cron("@daily"), "At 00:00, UTC"),
        (Every("5m"), "Every 5 min after the last run ended"),
        (Every(3600, "start"), "Every 60 min after the last run began"),
        (Every("1d", "2030-01-31T12:00Z"), "Every 24 h"),
        (Again(), "Again at once, whenever a run has ended"),
    ],
)
def test_a_trigger_is_said_in_words(trigger: Trigger, said: str) -> None:
    assert trigger_times(trigger) == said
