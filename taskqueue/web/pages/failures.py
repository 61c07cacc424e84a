"""The failures of a time, grouped by class and error: how many, since when, and whether they go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from taskqueue.model.history import Figures, Step
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.web.charts import Chart, chart
from taskqueue.web.job_filter import JobFilter
from taskqueue.web.view import View

PERIODS: Mapping[str, tuple[str, Step, timedelta]] = {
    "1h": ("hour", Step.MINUTE, timedelta(hours=1)),
    "24h": ("24 hours", Step.HOUR, timedelta(hours=24)),
    "72h": ("72 hours", Step.HOUR, timedelta(hours=72)),
    "7d": ("7 days", Step.HOUR, timedelta(days=7)),
}
"""How far back the page may look: in words, by minute or hour, and how long."""

BARS = 24
"""The parts of the trend."""

MOST = 100
"""Groups on the page: with more it is larger than 150 kB."""


@dataclass(kw_only=True)
class Group:
    """The jobs of one class that ended by one error."""

    job: str
    error: str
    count: int
    first: datetime
    last: datetime
    parts: list[int]
    """How many in each part of the time."""

    @property
    def trend(self) -> Chart:
        """Return them as bars."""
        return chart((("", 0, number) for number in self.parts), f"{self.count:,} failures over the time")


def failures(view: View) -> Mapping[str, Any]:
    """Return the groups of a time, the most frequent first."""
    chosen = view.query.get("since", "24h")
    words, step, length = PERIODS.get(chosen, PERIODS["24h"])
    job = view.query.get("job", "").strip()
    groups = _groups(view, step, length, job)
    since = datetime.now(timezone.utc) - length
    for_batch = JobFilter(status="bad", since=str(milliseconds(since)))
    return {
        "groups": groups[:MOST],
        "left_out": len(groups[MOST:]),
        "total": sum(group.count for group in groups),
        "periods": {name: period[0] for name, period in PERIODS.items()},
        "chosen": chosen if chosen in PERIODS else "24h",
        "words": words,
        "job": job,
        "addresses": {group.job: for_batch.address(job=group.job) for group in groups},
        "may_act": view.may_act,
    }


def _groups(view: View, step: Step, length: timedelta, only: str) -> list[Group]:
    now = datetime.now(timezone.utc)
    begin = now - length
    figures = view.figures()
    parts = figures.minutes(now) if step is Step.MINUTE else figures.hours(begin, now)
    found: dict[tuple[str, str], Group] = {}
    for milliseconds_at, part in sorted(parts.items()):
        at = moment(milliseconds_at)
        place = min(max(int((at - begin) / length * BARS), 0), BARS - 1)
        for (_, job), numbers in part.items():
            for error, number in _errors(numbers).items() if only in ("", job) else ():
                group = found.get((job, error))
                if group is None:
                    group = Group(job=job, error=error, count=0, first=at, last=at, parts=[0] * BARS)
                    found[job, error] = group
                group.count += number
                group.last = at
                group.parts[place] += number
    return sorted(found.values(), key=lambda group: (-group.count, group.job, group.error))


def _errors(numbers: Figures) -> dict[str, int]:
    """Return how many jobs failed by each error, "" without one."""
    errors = {name[2:]: number for name, number in numbers.items() if name.startswith("e:")}
    without = numbers.get("failed", 0) + numbers.get("timeout", 0) - sum(errors.values())
    return {**errors, "": without} if without > 0 else errors
