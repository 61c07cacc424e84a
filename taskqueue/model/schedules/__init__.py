"""Schedules: moments and durations as people write them, and the triggers of recurring jobs."""

from __future__ import annotations

from taskqueue.model.schedules.cron import Cron
from taskqueue.model.schedules.durations import (
    LATEST,
    LONGEST,
    Duration,
    Moment,
    ago,
    from_now,
    is_later,
    is_relative,
    moment_of,
    seconds_of,
)
from taskqueue.model.schedules.trigger import Again, Custom, Every, Trigger, UnreadableTrigger, trigger

__all__ = [
    "LATEST",
    "LONGEST",
    "Again",
    "Cron",
    "Custom",
    "Duration",
    "Every",
    "Moment",
    "Trigger",
    "UnreadableTrigger",
    "ago",
    "from_now",
    "is_later",
    "is_relative",
    "moment_of",
    "seconds_of",
    "trigger",
]
