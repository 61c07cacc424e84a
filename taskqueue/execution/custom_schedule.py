"""Asks a custom schedule for its next time: in a worker, as a job, or in the caller's process."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.execution.loader import load_trigger
from taskqueue.model.job import Fail, Job
from taskqueue.model.schedules import Custom, moment_of
from taskqueue.model.timestamps import whole


class NextTime(Job):
    """Finds the next time of a custom schedule, and stores it unless the schedule has changed since.

    Data: ``schedule``, its name, and ``after``, the time after which the next one must be.
    """

    def start(self) -> str:
        """Return the time, or the reason why it was not needed."""
        schedule = self.scheduler.get_schedule(self.data["schedule"])
        trigger = schedule.snapshot.trigger
        if schedule.snapshot.awaits != self.id or not isinstance(trigger, Custom):
            return "the schedule no longer awaits it"
        next_at = next_of(trigger, datetime.fromisoformat(self.data["after"]))
        schedule.learn(self.id, next_at)
        return "there is none" if next_at is None else next_at.isoformat()


def next_of(trigger: Custom, after: datetime) -> datetime | None:
    """Return the first time after ``after`` from the user's class; raise ``Fail`` for an invalid answer."""
    answer: Any = load_trigger(trigger.path)(**trigger.arguments).next(after)
    if answer is None:
        return None
    try:
        moment = moment_of(answer, after)
    except InvalidOption as refused:
        raise Fail(f"{trigger.path}.next() returned {refused}") from None
    if moment <= after:
        raise Fail(f"{trigger.path}.next() returned {moment}, which is not after {after}")
    return whole(moment)
